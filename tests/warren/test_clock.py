"""What must end with a node while its process goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from manual_clock import ManualClock

from warren.clock import EndingClock, LoopClock, MovableClock


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


@pytest.mark.parametrize("kind", [LoopClock, MovableClock])
def test_timers_of_a_node_that_has_stopped_are_gone_and_keep_nothing(kind: type[LoopClock]) -> None:
    class Part:
        def call(self) -> None:
            called.append(1)

    called: list[int] = []

    async def scenario() -> None:
        clock = kind(asyncio.get_running_loop())
        part = Part()
        clock.call_later(0.0, part.call)
        timer = clock.call_later(0.0, part.call)
        timer.cancel()
        timer.cancel()
        await asyncio.sleep(0.01)
        assert called == [1]
        clock.call_later(0.0, part.call)
        clock.call_later(3600, part.call)
        kept = weakref.ref(part)
        clock.end()
        clock.call_later(0.0, part.call)
        del part, timer
        await asyncio.sleep(0.01)
        gc.collect()
        assert called == [1] and kept() is None

    asyncio.run(scenario())
