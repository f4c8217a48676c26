"""A backing queue that has messages safe when a test says so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms


class DurableQueue(MemoryQueue):
    """Has nothing safe until it is told so, and notes what leaves it."""

    __slots__ = ("removed", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.defers_confirms = True
        self.waiting: list[tuple[PublishConfirms, int]] = []
        self.removed: list[bytes] = []

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        super().publish(envelope, body, expires_at, confirms, publish_seq)
        if confirms is not None:
            self.waiting.append((confirms, publish_seq))

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        super().publish_many(envelopes, bodies, expires_at, confirms, first_seq)
        if confirms is not None:
            numbers = range(first_seq, first_seq + len(bodies))
            self.waiting += [(confirms, number) for number in numbers]

    def ack(self, messages: Collection[Message]) -> None:
        self.removed += [message.body for message in messages]

    def sync(self) -> None:
        """Everything it was given is safe."""
        waiting, self.waiting = self.waiting, []
        for confirms, publish_seq in waiting:
            confirms.settle(publish_seq)

    def fail(self) -> None:
        """Nobody can say what became of it."""
        waiting, self.waiting = self.waiting, []
        for confirms, publish_seq in waiting:
            confirms.refuse(publish_seq)
