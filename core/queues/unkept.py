"""Messages that die before their queue takes them."""

from __future__ import annotations

from typing import TypeVar

from warren.core.messages.message import Message
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement
from warren.core.queues.queue_owner import DeadLetters, DeathReason

Q = TypeVar("Q")


def bury_unkept(
    burials: DeadLetters[Q],
    queue: Q,
    message: Message,
    reason: DeathReason,
    answer: Settlement,
    confirms: PublishConfirms | None,
    publish_seq: int,
) -> Settlement:
    """Dead-letter a publish that the queue never kept. Its publisher gets the answer when the dead
    letter is safe."""
    waits = False
    safe = False

    def done() -> None:
        nonlocal safe
        safe = True
        if waits and confirms is not None:
            (confirms.refuse if answer is REJECTED else confirms.settle)(publish_seq)

    burials.bury_unkept(queue, message, reason, done)
    if safe or confirms is None:
        return answer
    waits = True
    return PENDING
