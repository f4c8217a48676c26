"""Moves of messages inside the broker: the old queue keeps a message until the new ones have it.

A dead letter is published to its new queues, and only when all of them have it safe may it leave
the old one: the removal becomes durable in a later batch of the log than the publish. So a crash
finds the message in the old queue or in the new ones, or in both, where the old one counts as
redelivered. The new queues may be at other nodes, and mirrored; the rule is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement
from warren.core.ports import Clock
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import run

AGAIN_S = 1.0
"""How long a successor waits that could not be delivered: the node of its queue is down."""


PUBLISH_US = 5
"""The cost of a publish, in the microseconds of `core/scheduling/turns.py`."""

QUEUES_AT_ONCE = 200
"""A message for more queues is published in turns."""


class Successor(Protocol):
    """A queue that takes the message."""

    name: str
    published: int
    deleted: bool

    @property
    def refuses_when_full(self) -> bool:
        """Whether it has a length limit above which it refuses messages."""
        ...

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement: ...

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        """`publish` a message that the queue may have had before, and may have delivered."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether `publish_many` is not for the queue."""
        ...

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        """`publish` messages that do not expire, numbered from `first_seq` on."""
        ...


class _UnsafeMessage:
    """One message, and how many queues do not have it safe yet.

    `missed` is called instead of `done` if a queue was deleted before it had the message; where it
    is None, such a queue counts as having had it.
    """

    __slots__ = ("done", "missed", "unsafe")

    def __init__(self, done: Callable[[], None], missed: Callable[[], None] | None) -> None:
        self.done = done
        self.missed = missed
        self.unsafe = 1

    @property
    def insists(self) -> bool:
        """Whether a queue that is full gets the message when it has room again."""
        return self.missed is not None

    def miss(self) -> None:
        """Note that one of the queues is gone."""
        if self.missed is not None:
            self.done = self.missed


class _Publish:
    """The message on its way to one queue, which may have `had` it before it was refused."""

    __slots__ = ("body", "envelope", "had", "message", "queue")

    def __init__(
        self, message: _UnsafeMessage, queue: str, envelope: Envelope, body: bytes
    ) -> None:
        self.message = message
        self.queue = queue
        self.envelope = envelope
        self.body = body
        self.had = False


class Succession(PublishConfirms):
    """Publishes messages and tells when they are safe. Implements `PublishConfirms`.

    `queue_named` finds the queue that has a name now.
    """

    def __init__(
        self, clock: Clock, turns: Turns, queue_named: Callable[[str], Successor | None]
    ) -> None:
        self._clock = clock
        self._turns = turns
        self._queue_named = queue_named
        self._unsafe: dict[int, _Publish] = {}
        # The publishes of later turns, in order, by message: each is made when it is its turn. And
        # what is tried again.
        self._unsent: deque[Iterator[_Publish]] = deque()
        self._later: list[_Publish] = []
        self._last_number = 0
        self._ended = False
        # The callbacks to call: one message may be safe because another one is, to any depth.
        self._done: deque[Callable[[], None]] = deque()
        self._telling = False

    def __len__(self) -> int:
        """Publishes that are not safe yet."""
        return len(self._unsafe) + len(self._unsent)

    @property
    def unsent(self) -> bool:
        """Whether a message for many queues is not published to all of them yet."""
        return bool(self._unsent)

    def publish(
        self,
        queues: Collection[Successor],
        envelope: Envelope,
        body: bytes,
        done: Callable[[], None],
        missed: Callable[[], None] | None = None,
    ) -> None:
        """Publish to these queues, and call `done` once all of them have the message safe.

        That may be within this call. A queue that is `deleted`, since they were looked up before,
        is found by its name again: another node may lead it. A queue that refuses messages when it
        is full does not get it, as its owner wished; one that cannot be reached is tried again
        until it can.

        With `missed`, one that is full is tried again as well, and `missed` is called instead of
        `done` if a queue was deleted before it had the message.
        """
        message = _UnsafeMessage(done, missed)
        message.unsafe += len(queues)
        if len(queues) > QUEUES_AT_ONCE or self._unsent:
            if not self._unsent:
                self._turns.soon(self._send_some)
            names = [queue.name for queue in queues]
            self._unsent.append(_Publish(message, name, envelope, body) for name in names)
        else:
            for queue in queues:
                publish = _Publish(message, queue.name, envelope, body)
                if queue.deleted:
                    self._publish_by_name(publish)
                else:
                    self._publish(publish, queue)
        self._one_is_safe(message)

    def publish_many(
        self,
        queue: Successor,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        done: Sequence[Callable[[], None]],
    ) -> None:
        """`publish` each of these messages to this queue; they do not expire."""
        count = len(bodies)
        if count == 1 or queue.deleted or queue.one_by_one or self._unsent:
            for envelope, body, one_done in zip(envelopes, bodies, done, strict=True):
                self.publish((queue,), envelope, body, one_done)
            return
        first = self._last_number + 1
        self._last_number += count
        for number, envelope, body, one_done in zip(
            range(first, first + count), envelopes, bodies, done, strict=True
        ):
            self._unsafe[number] = _Publish(
                _UnsafeMessage(one_done, None), queue.name, envelope, body
            )
        queue.published += count
        answers = queue.publish_many(envelopes, bodies, self, first)
        for number, answer in enumerate(answers, first):
            if answer is not PENDING:
                self._answered(self._unsafe.pop(number), queue, answer)

    def end(self) -> None:
        """Try nothing again, and answer no publisher any more: the queues are gone."""
        self._ended = True
        self._unsafe.clear()
        self._unsent.clear()
        self._later.clear()

    def settle(self, publish_seq: int) -> None:
        publish = self._unsafe.pop(publish_seq, None)
        if publish is not None:
            self._one_is_safe(publish.message)

    def refuse(self, publish_seq: int) -> None:
        publish = self._unsafe.pop(publish_seq, None)
        if publish is not None:
            queue = self._queue_named(publish.queue)
            # A full queue has not taken the message; a queue whose node is gone may have taken it.
            publish.had |= queue is not None and not queue.refuses_when_full
            self._refused(publish, queue)

    def _publish(self, publish: _Publish, queue: Successor) -> None:
        self._last_number += 1
        number = self._last_number
        self._unsafe[number] = publish
        queue.published += 1
        send = queue.publish_again if publish.had else queue.publish
        answer = send(publish.envelope, publish.body, self, number)
        if answer is PENDING:
            return
        del self._unsafe[number]
        self._answered(publish, queue, answer)

    def _answered(self, publish: _Publish, queue: Successor, answer: Settlement) -> None:
        """Note the answer to a publish, which is not `PENDING`."""
        if answer is REJECTED:
            self._refused(publish, queue)
        else:
            self._one_is_safe(publish.message)

    def _send_some(self) -> None:
        while self._unsent and not self._turns.over:
            publish = next(self._unsent[0], None)
            if publish is None:
                self._unsent.popleft()
            else:
                self._publish_by_name(publish)
        if self._unsent:
            self._turns.soon(self._send_some)

    def _publish_by_name(self, publish: _Publish) -> None:
        queue = self._queue_named(publish.queue)
        self._turns.spend(PUBLISH_US)
        if queue is None:
            publish.message.miss()
            self._one_is_safe(publish.message)
        else:
            self._publish(publish, queue)

    def _refused(self, publish: _Publish, queue: Successor | None) -> None:
        message = publish.message
        if queue is None:
            # The queue was deleted, and would have been deleted with the message in it.
            message.miss()
            self._one_is_safe(message)
        elif queue.refuses_when_full and not message.insists:
            self._one_is_safe(message)
        else:
            self._try_later(publish)

    def _try_later(self, publish: _Publish) -> None:
        """Try a publish later: the queue cannot be reached, or its node is gone and it is not known
        what the queue has."""
        if not self._later:
            self._clock.call_later(AGAIN_S, self._try_again)
        self._later.append(publish)

    def _try_again(self) -> None:
        later, self._later = self._later, []
        run(self._publish_again(later), lambda result: result())

    async def _publish_again(self, publishes: list[_Publish]) -> None:
        for publish in publishes:
            if self._ended:
                return
            self._publish_by_name(publish)
            await self._turns.pause()

    def _one_is_safe(self, message: _UnsafeMessage) -> None:
        message.unsafe -= 1
        if message.unsafe:
            return
        self._done.append(message.done)
        if self._telling:
            return
        self._telling = True
        try:
            while self._done:
                self._done.popleft()()
        finally:
            self._telling = False
