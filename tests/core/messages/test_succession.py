"""What a queue is told of a message that may have been there before (`succession.py`)."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement
from warren.core.messages.succession import AGAIN_S, Succession
from warren.core.scheduling.turns import Turns

ENVELOPE = Envelope("", "there", b"", True, 0, None)


class Target:
    """A queue that answers as it is told, and counts what came anew and what came again."""

    name = "there"
    deleted = False
    published = 0

    def __init__(self, *, refuses_when_full: bool) -> None:
        self.refuses_when_full = refuses_when_full
        self.answer = PENDING
        self.came: list[str] = []
        self.last = 0

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        self.came.append("anew")
        self.last = publish_seq
        return self.answer

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        self.came.append("again")
        self.last = publish_seq
        return self.answer


@pytest.mark.parametrize(
    ("full", "sent", "second"),
    [(False, True, "again"), (False, False, "anew"), (True, True, "anew")],
)
def test_what_a_queue_may_have_had_comes_again(*, full: bool, sent: bool, second: str) -> None:
    """It had not if it was out of reach, or full."""
    clock = ManualClock()
    target = Target(refuses_when_full=full)
    succession = Succession(clock, Turns(clock), lambda name: target)
    done: list[bool] = []
    if not sent:
        target.answer = REJECTED
    missed = (lambda: done.append(False)) if full else None
    succession.publish([target], ENVELOPE, b"x", lambda: done.append(True), missed)
    if sent:
        succession.refuse(target.last)
    target.answer = PENDING
    clock.advance(AGAIN_S)
    assert target.came == ["anew", second] and not done
    succession.settle(target.last)
    assert done == [True]
