"""A backing queue that remembers the message ids of the last messages it was given.

The ids are small messages themselves, in a second level that no consumer sees: so the disk, mirrors
and backups have them as they have all else. The oldest goes when there are more than the window
holds. In memory stands which ids there are; after a start, or at another leader, that is read from
the level (`recall`).

On the disk a message and its id are in the same batch of the log (`BackingSpec.beside`): a crash
finds both or none. Mirrors are told of the message first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from warren.core.backing.backing_queue import (
    BackingQueue,
    BackingQueueStatus,
    MirroredLevel,
)
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import ContentCodec

MESSAGES: Final = 0
IDS: Final = 1
"""The levels: one of messages, one of ids."""

ID_EXCHANGE: Final = "amq.deduplication-window"
"""Stands in the envelopes of ids; no client may declare an exchange of such a name."""

RECALL_COUNT = 500
RECALL_BYTES = 1 << 20
"""Ids that are read in one go: a millisecond or two."""


def is_id(envelope: Envelope) -> bool:
    """Whether this is the envelope of an id; only this kind of queue has ids."""
    return envelope.exchange == ID_EXCHANGE


class WindowedQueue(PriorityQueue):
    """Implements `BackingQueue` for the messages of its first level; the second has the ids."""

    def __init__(
        self, size: int, new_level: Callable[[int], BackingQueue], codec: ContentCodec
    ) -> None:
        super().__init__(1, new_level)
        self._size = size
        self._codec = codec
        self._recalled_below = 0
        # The position of each id; and each id with its position in the order in which they came,
        # those that were forgotten meanwhile included.
        self._positions: dict[bytes, int] = {}
        self._order: deque[tuple[bytes, int]] = deque()
        self._envelopes: dict[tuple[int, bool], Envelope] = {}
        self._fetch_order = self._levels[:IDS]
        self.expiring = self._levels[MESSAGES].expiring
        self._count()

    # Ids

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._positions

    @property
    def ids(self) -> int:
        """How many ids are remembered."""
        return len(self._positions)

    def remember(
        self, message_id: bytes, *, persistent: bool, confirms: PublishConfirms, publish_seq: int
    ) -> bool:
        """Remember an id that is not known, and forget the oldest if there are too many.

        Call this right behind the publish of the message. Returns whether `confirms` will be told
        when the id is safe.
        """
        level = self._levels[IDS]
        position = level.next_position
        envelope = self._envelope(len(message_id), persistent)
        level.publish(envelope, message_id, None, confirms, publish_seq)
        self._note(message_id, position)
        while len(self._positions) > self._size:
            oldest, at = self._order.popleft()
            if self._positions.get(oldest) == at:
                del self._positions[oldest]
                dropped = level.fetch_to_drop()
                if dropped is not None:
                    level.ack([dropped])
        return level.defers_confirms if persistent else level.defers_transient

    def was_there_before(self, message_id: bytes) -> bool:
        """Whether the id was there when this object began: as at a leader that was a mirror, some
        mirror may lack it and its message."""
        return self._positions[message_id] < self._recalled_below

    def remember_again(
        self, message_id: bytes, confirms: PublishConfirms, publish_seq: int
    ) -> bool:
        """Have an id that is known written once more, as the last one: when that is safe, its
        message is. Returns as `remember`."""
        level = self._levels[IDS]
        earlier = cast(MirroredLevel, level).take([self._positions.pop(message_id)])
        level.ack(earlier)
        return self.remember(
            message_id,
            # There is none if the disk has lost the id: then its message counts as persistent.
            persistent=all([message.envelope.persistent for message in earlier]),
            confirms=confirms,
            publish_seq=publish_seq,
        )

    def forget(self, message_id: bytes) -> None:
        """Forget this id, if it is known: it counts as new from now on."""
        position = self._positions.pop(message_id, None)
        if position is not None:
            level = self._levels[IDS]
            level.ack(cast(MirroredLevel, level).take([position]))

    def recall(self) -> bool:
        """Read some of the ids that were there before; returns whether there may be more."""
        level = cast(MirroredLevel, self._levels[IDS])
        if len(self._positions) >= level.length:
            return False
        peeked = level.peek(self._recalled_below, RECALL_COUNT, RECALL_BYTES)
        for message in peeked.messages:
            self._note(message.body, message.position)
        self._recalled_below = peeked.next_position
        return bool(peeked.messages) or peeked.next_position < level.next_position

    def _note(self, message_id: bytes, position: int) -> None:
        self._positions[message_id] = position
        self._order.append((message_id, position))

    def _envelope(self, octets: int, persistent: bool) -> Envelope:
        envelope = self._envelopes.get((octets, persistent))
        if envelope is None:
            header = self._codec.content_header(octets, {})
            envelope = Envelope(ID_EXCHANGE, "", header, persistent, 0, None)
            self._envelopes[octets, persistent] = envelope
        return envelope

    # The messages alone, without the ids

    def replace_levels(self, levels: list[BackingQueue]) -> None:
        super().replace_levels(levels)
        self._fetch_order = levels[:IDS]

    @property
    def ready_bytes(self) -> int:
        return self._levels[MESSAGES].ready_bytes

    @property
    def published(self) -> int:
        return self._levels[MESSAGES].published

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired = self._levels[MESSAGES].fetch_expired(now, limit)
        self._count()
        return expired

    def purge(self) -> int:
        self.length = 0
        return self._levels[MESSAGES].purge()

    def status(self, now: float) -> BackingQueueStatus:
        return self._levels[MESSAGES].status(now)

    def level_number(self, envelope: Envelope) -> int:
        return IDS if envelope.exchange == ID_EXCHANGE else MESSAGES

    def level_of(self, envelope: Envelope) -> BackingQueue:
        return self._levels[MESSAGES]

    def _by_level(
        self, messages: Iterable[Message]
    ) -> Iterable[tuple[BackingQueue, list[Message]]]:
        return [(self._levels[MESSAGES], list(messages))]

    def _count(self) -> None:
        self.length = self._levels[MESSAGES].length
