"""A delay queue: where the delayed messages of one exchange wait.

A message here expires when its delay is over, and what expires is routed by the exchange as if it
were published now: by the way of dead letters (`burials.py`), so it stays here, on disk and at
mirrors, until every queue it is for has it safe. It gets no `x-death`.

The broker declares and deletes the queue with its exchange. Clients cannot use it, and of policies
only the keys that say where it is and how it is mirrored count (`Policies.queue_settings`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol, cast

from warren.core.backing.backing_queue import BackingQueue
from warren.core.exchanges.delay import DELAY_NAMES, delay_ms
from warren.core.messages.message import Envelope, Message
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeathReason, LocalQueueOwner

UNDER_WAY_MAX = 2000
UNDER_WAY_BYTES_MAX = 16 << 20
"""Messages that are due and have not arrived yet, and the octets of their bodies: the others wait
on disk."""


DUE_SLICE = 64
"""Messages that are read in one go when they are due: each is wherever it was written."""

READ_US = 15
"""The cost of reading one message, in the microseconds of `core/scheduling/turns.py`."""


class TakingQueue(BackingQueue, Protocol):
    """The backing queue of a delay queue: a `DueQueue`, or the level of a leader around it."""

    def take(self, positions: Collection[int]) -> list[Message]:
        """Make these messages pending, whenever they are due; those that are not ready are passed
        over."""
        ...

    def due_order(self) -> Iterator[int]:
        """The positions of the messages that are ready now, by due time."""
        ...

    def look_at(self, positions: Iterable[int]) -> list[Message]:
        """Look at the messages at these positions that are still ready."""
        ...


class DelayQueue(ClassicQueue):
    """The queue behind one exchange of type `x-delayed-message`."""

    __slots__ = ("_codec", "_under_way", "_under_way_bytes")

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        backing: TakingQueue,
    ) -> None:
        self._codec = vhost.codec
        # Messages that were taken out and have not arrived, and the octets of their bodies.
        self._under_way = 0
        self._under_way_bytes = 0
        super().__init__(vhost, declared, settings, backing)

    # Publishing

    @property
    def one_by_one(self) -> bool:
        return True

    def _find_rules(self) -> None:
        # Each message is due at a time of its own.
        self._rules = self._strict = True

    def _time_to_live_ms(self, envelope: Envelope) -> int | None:
        # A message without a delay is due now; it comes here only if the exchange was another
        # before.
        return delay_ms(self._codec.named_headers(envelope.header, DELAY_NAMES)) or 1

    # Due messages

    def _drop_expired(self, limit: int) -> bool:
        room = min(limit, UNDER_WAY_MAX - self._under_way, DUE_SLICE)
        if room <= 0 or self._under_way_bytes >= UNDER_WAY_BYTES_MAX:
            # `buried` goes on when some have arrived.
            return True
        before = self._under_way
        is_last = super()._drop_expired(room)
        self._vhost.turns.spend((self._under_way - before) * READ_US)
        return is_last

    def _bury(self, dead: list[Message], reason: DeathReason) -> None:
        if self._trace is not None:
            self._trace.due(self, dead)
        self._under_way += len(dead)
        self._under_way_bytes += sum([message.body_bytes for message in dead])
        self._vhost.burials.bury(self, dead, reason)

    def buried(self, messages: list[Message]) -> None:
        self._under_way -= len(messages)
        self._under_way_bytes -= sum([message.body_bytes for message in messages])
        super().buried(messages)
        if not self.deleted:
            self._resume_soon()

    # For operators

    @property
    def _taking(self) -> TakingQueue:
        return cast(TakingQueue, self.backing)

    def due_order(self) -> Iterator[int]:
        """The positions of the messages that are delayed now, the next due first."""
        return self._taking.due_order()

    def look_at(self, positions: Iterable[int]) -> list[Message]:
        """Look at the messages at these positions that are still delayed."""
        return self._taking.look_at(positions)

    def send_now(self, positions: Collection[int]) -> int:
        """Route these messages now; returns how many of them were there."""
        messages = self._taking.take(positions)
        if messages:
            self._bury(messages, DeathReason.EXPIRED)
        return len(messages)

    def cancel(self, positions: Collection[int]) -> int:
        """Drop these messages; returns how many of them were there."""
        messages = self._taking.take(positions)
        if messages:
            self.ways_out.purged += len(messages)
            if self._trace is not None:
                for message in messages:
                    self._trace.taken(self, "delete", message.envelope, ())
            self.backing.ack(messages)
        return len(messages)
