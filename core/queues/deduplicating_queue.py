"""A queue that takes each message id once: `x-message-deduplication-window`.

The queue remembers the ids of the messages it took last (`windowed_queue.py`); the argument says
how many. It drops a message whose id it remembers, and confirms it when the first message with that
id is safe: a publisher who tries again gets the answer that its first try would have got. A message
without an id is always taken.

The queue remembers an id also after its message was consumed, expired or was purged. It forgets the
id when the message could not be kept, and when an operator takes the message out, who may want to
put it back. It takes dead letters whatever their ids: a dead letter comes from a queue, perhaps
from this one, and not from a publisher who tries again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.backing.windowed_queue import RECALL_COUNT, WindowedQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.messages_in_hand import MessagesInHand
from warren.core.queues.moving import Moving, Unanswered
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import LocalQueueOwner
from warren.core.scheduling.waiting import run

DEATHS: Final = "x-death"

RECALL_US = 2
"""The cost of reading an id, in the microseconds of `core/scheduling/turns.py`."""

EARLY_US = 5
"""The cost of taking a message that had to wait."""


class Early(NamedTuple):
    """A publish that came before the queue knew which ids it has."""

    envelope: Envelope
    body: bytes
    confirms: PublishConfirms | None
    publish_seq: int
    again: bool


class Unsafe:
    """A message that is not safe yet: how many have to say that it is, it and its id, and the
    publishers that wait for that."""

    __slots__ = ("left", "message_id", "publishers")

    def __init__(self, message_id: bytes, left: int) -> None:
        self.message_id = message_id
        self.left = left
        self.publishers: list[tuple[PublishConfirms, int]] = []


class DeduplicatingQueue(ClassicQueue, PublishConfirms):
    """Its backing queue is a `WindowedQueue`. `duplicates` counts the messages dropped."""

    __slots__ = (
        "_codec",
        "_early",
        "_last_number",
        "_unsafe",
        "_unsafe_ids",
        "_window",
        "duplicates",
    )

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        backing: WindowedQueue,
    ) -> None:
        self._codec = vhost.codec
        self._window = backing
        self._last_number = 0
        self._unsafe: dict[int, Unsafe] = {}
        self._unsafe_ids: dict[bytes, Unsafe] = {}
        self.duplicates = 0
        # Messages that were published before all ids were recalled; None when they are.
        self._early: deque[Early] | None = None
        super().__init__(vhost, declared, settings, backing)
        if backing.recall():
            self._early = deque()
            run(self._recall(), lambda result: result())

    @property
    def ids(self) -> int:
        """How many ids the queue remembers."""
        return self._window.ids

    def window(self) -> dict[str, int | None]:
        """Return how many ids the queue may remember and how many it does, and how many messages it
        has dropped since this object is here."""
        size = self.settings.deduplication_window
        return {"window": size, "ids": self.ids, "duplicates": self.duplicates}

    # Publishing

    @property
    def one_by_one(self) -> bool:
        return True

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        return self._take(envelope, body, confirms, publish_seq, again=False)

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        return self._publish_each(envelopes, bodies, confirms, first_seq)

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        return self._take(envelope, body, confirms, publish_seq, again=True)

    def _take(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
        *,
        again: bool,
    ) -> Settlement:
        if self._early is not None:
            self._early.append(Early(envelope, body, confirms, publish_seq, again))
            return SETTLED if confirms is None else PENDING
        message_id = self._codec.property_text(envelope.header, "message_id")
        if not message_id or self.is_held:
            # While the queue is held, the message comes once more: to this queue or to its
            # successor.
            return self._keep(envelope, body, confirms, publish_seq, again)
        if message_id in self._window:
            if DEATHS in self._codec.headers(envelope.header):
                return self._keep(envelope, body, confirms, publish_seq, again)
            return self._drop(envelope, message_id, confirms, publish_seq)
        self._last_number += 1
        number = self._last_number
        answer = self._keep(envelope, body, self, number, again)
        if answer is REJECTED:
            return REJECTED
        left = int(answer is PENDING)
        left += self._window.remember(
            message_id, persistent=envelope.persistent, confirms=self, publish_seq=number
        )
        if not left:
            return SETTLED
        unsafe = Unsafe(message_id, left)
        self._unsafe[number] = self._unsafe_ids[message_id] = unsafe
        if confirms is None:
            return SETTLED
        unsafe.publishers.append((confirms, publish_seq))
        return PENDING

    def _keep(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
        again: bool,
    ) -> Settlement:
        publish = super().publish_again if again else super().publish
        return publish(envelope, body, confirms, publish_seq)

    def _drop(
        self,
        envelope: Envelope,
        message_id: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        self.duplicates += 1
        self._turned_away += 1
        if self._trace is not None:
            self._trace.duplicate(self, envelope)
        if confirms is None:
            return SETTLED
        unsafe = self._unsafe_ids.get(message_id)
        if unsafe is None and self._window.was_there_before(message_id):
            unsafe = self._make_sure(message_id)
        if unsafe is None:
            return SETTLED
        unsafe.publishers.append((confirms, publish_seq))
        return PENDING

    def _make_sure(self, message_id: bytes) -> Unsafe | None:
        """Find out when an id of the time before this object, and its message, are safe; None if
        they are now."""
        self._last_number += 1
        number = self._last_number
        if not self._window.remember_again(message_id, self, number):
            return None
        unsafe = self._unsafe[number] = self._unsafe_ids[message_id] = Unsafe(message_id, 1)
        return unsafe

    # The queue itself is the `PublishConfirms` of messages that are not safe yet. It tells their
    # publishers, and those of the duplicates that it dropped meanwhile.

    def settle(self, publish_seq: int) -> None:
        unsafe = self._unsafe.get(publish_seq)
        if unsafe is None:
            return
        unsafe.left -= 1
        if not unsafe.left:
            self._no_longer_unsafe(publish_seq, unsafe)
            for confirms, number in unsafe.publishers:
                confirms.settle(number)

    def refuse(self, publish_seq: int) -> None:
        unsafe = self._unsafe.get(publish_seq)
        if unsafe is None:
            return
        self._no_longer_unsafe(publish_seq, unsafe)
        if not self.deleted:
            self._window.forget(unsafe.message_id)
        for confirms, number in unsafe.publishers:
            confirms.refuse(number)

    def _no_longer_unsafe(self, number: int, unsafe: Unsafe) -> None:
        del self._unsafe[number]
        if self._unsafe_ids.get(unsafe.message_id) is unsafe:
            del self._unsafe_ids[unsafe.message_id]

    # Ids that were there before

    async def _recall(self) -> None:
        turns = self._vhost.turns
        more = True
        while more and not self.deleted:
            turns.spend(RECALL_COUNT * RECALL_US)
            await turns.pause()
            more = not self.deleted and self._window.recall()
        while self._early and not self.deleted:
            early, self._early = self._early, None
            publish = early.popleft()
            answer = self._take(*publish[:4], again=publish.again)
            self._early = early
            if publish.confirms is not None and answer is not PENDING:
                told = publish.confirms
                (told.refuse if answer is REJECTED else told.settle)(publish.publish_seq)
            turns.spend(EARLY_US)
            await turns.pause()
        if not self.deleted:
            self._early = None

    # Operators

    @property
    def levels(self) -> list[MirroredLevel]:
        return super().levels[:1]

    def _new_hand(self) -> MessagesInHand:
        return MessagesInHand(self, self._forget_ids)

    def _forget_ids(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message_id = self._codec.property_text(message.envelope.header, "message_id")
            if message_id:
                self._window.forget(message_id)

    # Life

    def delete(self) -> None:
        super().delete()
        for publish in self._take_early():
            if publish.confirms is not None:
                publish.confirms.refuse(publish.publish_seq)

    def move_out(self) -> Moving:
        moving = super().move_out()
        early = [
            Unanswered(0, *publish[:4], may_be_delivered=publish.again)
            for publish in self._take_early()
        ]
        return moving._replace(unanswered=[*moving.unanswered, *early])

    def _take_early(self) -> list[Early]:
        early, self._early = list(self._early or ()), None
        return early
