"""Work is shared out over the turns of the loop by what it costs."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock

from warren.core.scheduling.turns import LET_GO_AT_ONCE, TURN_US, Turns
from warren.core.scheduling.waiting import run


@pytest.fixture
def turns(clock: ManualClock) -> Turns:
    return Turns(clock)


def test_a_turn_is_over_when_it_is_used_up_and_another_one_begins(
    turns: Turns, clock: ManualClock
) -> None:
    turns.spend(TURN_US - 1)
    assert not turns.over
    turns.spend(1)
    assert turns.over
    clock.settle()
    assert not turns.over and turns.left_us == TURN_US


def test_steps_have_their_share_in_order(turns: Turns, clock: ManualClock) -> None:
    done: list[str] = []

    def step(name: str, times: int) -> None:
        done.append(name)
        turns.spend(TURN_US // 2)
        if times > 1:
            turns.soon(lambda: step(name, times - 1))

    turns.soon(lambda: step("a", 3))
    turns.soon(lambda: step("b", 1))
    turns.soon(lambda: step("c", 1))
    clock.turn()
    assert done == ["a", "b"]
    clock.turn()
    assert done == ["a", "b", "c", "a"]
    clock.settle()
    assert done == ["a", "b", "c", "a", "a"]


def test_what_a_step_asks_for_waits_for_the_next_turn(turns: Turns, clock: ManualClock) -> None:
    done: list[int] = []

    def step() -> None:
        done.append(len(done))
        if len(done) < 5:
            turns.soon(step)

    turns.soon(step)
    clock.turn()
    assert done == [0]
    clock.turn()
    assert done == [0, 1]


def test_a_step_that_raises_does_not_stop_the_others(turns: Turns, clock: ManualClock) -> None:
    done: list[str] = []

    def fails() -> None:
        raise ValueError

    turns.soon(fails)
    turns.soon(lambda: done.append("after"))
    with pytest.raises(ValueError):
        clock.turn()
    clock.settle()
    assert done == ["after"]


def test_a_coroutine_pauses_only_when_the_turn_is_over(turns: Turns, clock: ManualClock) -> None:
    done: list[int] = []

    async def work() -> None:
        for number in range(4):
            turns.spend(TURN_US // 2)
            await turns.pause()
            done.append(number)

    run(work(), lambda result: result())
    assert done == [0]
    clock.turn()
    assert done == [0, 1, 2]
    clock.settle()
    assert done == [0, 1, 2, 3]


def test_what_clients_sent_goes_first_and_of_the_rest_one_step_at_least(
    turns: Turns, clock: ManualClock
) -> None:
    done: list[str] = []

    def step(name: str) -> None:
        done.append(name)
        turns.spend(TURN_US)

    for number in range(3):
        turns.soon(lambda number=number: step(f"work {number}"))
    for number in range(2):
        turns.soon_for_client(lambda number=number: step(f"client {number}"))
    clock.turn()
    assert done == ["client 0", "work 0"]
    clock.turn()
    assert done == ["client 0", "work 0", "client 1", "work 1"]
    clock.settle()
    assert done[4:] == ["work 2"]


def test_many_objects_are_let_go_in_turns(turns: Turns, clock: ManualClock) -> None:
    few = [object()] * LET_GO_AT_ONCE
    turns.let_go(few)
    assert not few
    many = [object() for _ in range(10 * LET_GO_AT_ONCE)]
    turns.let_go(many)
    left = []
    while many:
        left.append(len(many))
        clock.turn()
    assert len(left) > 5 and left == sorted(left, reverse=True)
