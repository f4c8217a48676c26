"""What must end with a node while its process goes on."""

from __future__ import annotations

from manual_clock import ManualClock

from warren.clock import EndingClock


def test_nothing_happens_on_a_clock_that_has_ended() -> None:
    clock = ManualClock()
    ending = EndingClock(clock)
    called: list[str] = []
    ending.call_later(1.0, lambda: called.append("before"))
    ending.call_later(3.0, lambda: called.append("later"))
    clock.advance(2.0)
    ending.call_soon(lambda: called.append("soon"))
    ending.end()
    ending.call_later(1.0, lambda: called.append("asked for after the end"))
    clock.advance(5.0)
    assert called == ["before"]
    assert ending.now() == clock.now()
