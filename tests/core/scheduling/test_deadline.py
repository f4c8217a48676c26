"""Deadlines on a clock that is set by hand."""

from __future__ import annotations

from manual_clock import ManualClock

from warren.core.scheduling.deadline import Deadline


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock(start=100.0)
        self.called_at: list[float] = []
        self.deadline = Deadline(self.clock, lambda: self.called_at.append(self.clock.now()))


def test_the_earliest_moment_counts_and_one_timer_is_kept() -> None:
    watched = Watched()
    for moment in (110.0, 105.0, 120.0, 105.0):
        watched.deadline.no_later_than(moment)
    assert len(watched.clock.timers) == 1
    watched.clock.advance(30.0)
    assert watched.called_at == [105.0]


def test_a_moment_that_has_passed_is_due_at_once() -> None:
    watched = Watched()
    watched.deadline.no_later_than(50.0)
    watched.clock.advance(0.0)
    assert watched.called_at == [100.0]


def test_it_can_be_set_again_when_it_was_due() -> None:
    watched = Watched()
    watched.deadline.no_later_than(105.0)
    watched.clock.advance(6.0)
    assert not watched.deadline.is_set
    watched.deadline.no_later_than(110.0)
    watched.clock.advance(6.0)
    assert watched.called_at == [105.0, 110.0]


def test_a_restart_forgets_the_earlier_moment() -> None:
    watched = Watched()
    watched.deadline.restart(2.0)
    watched.clock.advance(1.0)
    watched.deadline.restart(2.0)
    watched.deadline.no_later_than(104.0)
    watched.clock.advance(10.0)
    assert watched.called_at == [103.0]


def test_a_cancelled_deadline_does_not_call() -> None:
    watched = Watched()
    watched.deadline.cancel()
    watched.deadline.restart(2.0)
    assert watched.deadline.is_set
    watched.deadline.cancel()
    assert not watched.deadline.is_set
    watched.clock.advance(10.0)
    assert watched.called_at == []
