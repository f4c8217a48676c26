"""An asyncio loop on a simulated clock."""

from __future__ import annotations

import asyncio
import logging

import pytest
from clock_loop import ClockLoop
from cluster import NodeClock
from manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_task_sleeps_as_long_as_the_clock_says(clock: ManualClock) -> None:
    loop = ClockLoop(clock)
    task = loop.create_task(asyncio.sleep(2, "rested"))
    clock.advance(1.9)
    assert not task.done()
    clock.advance(0.2)
    assert task.result() == "rested"


def test_what_waits_gives_up_in_time(clock: ManualClock) -> None:
    async def waits() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3)
        return loop.time()

    began = clock.now()
    task = ClockLoop(clock).create_task(waits())
    clock.advance(10)
    assert task.result() == began + 3


def test_tasks_wait_for_each_other(clock: ManualClock) -> None:
    happened = asyncio.Event()

    async def waits() -> list[object]:
        other = asyncio.ensure_future(tells())
        done, _ = await asyncio.wait([asyncio.ensure_future(happened.wait())])
        await other
        return [task.result() for task in done]

    async def tells() -> None:
        await asyncio.sleep(1)
        happened.set()

    task = ClockLoop(clock).create_task(waits())
    clock.advance(2)
    assert task.result() == [True]


def test_a_timer_that_is_cancelled_does_nothing(clock: ManualClock) -> None:
    called: list[int] = []
    loop = ClockLoop(clock)
    loop.call_later(1, called.append, 1).cancel()
    loop.call_later(1, called.append, 2)
    loop.call_soon(called.append, 3).cancel()
    clock.advance(2)
    assert called == [2]


def test_no_loop_runs_outside_of_its_callbacks(clock: ManualClock) -> None:
    ClockLoop(clock).create_task(asyncio.sleep(1))
    clock.advance(0.5)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_what_a_callback_raises_is_logged(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("no")

    ClockLoop(clock).call_soon(fails)
    clock.settle()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_a_dead_node_does_nothing_more(clock: ManualClock) -> None:
    node = NodeClock(clock)
    task = ClockLoop(node).create_task(asyncio.sleep(1))
    clock.advance(0.5)
    node.is_dead = True
    clock.advance(5)
    assert not task.done()
