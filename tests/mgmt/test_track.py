"""Samples of many objects, how long they are kept, and their cost."""

from __future__ import annotations

import asyncio
import tracemalloc

from warren.mgmt.statistics.detail import HISTORY_OCTETS_MAX, Detail
from warren.mgmt.statistics.history import Figures
from warren.mgmt.statistics.track import SampledKind, Track

MANY = 100_000


class Thing:
    """Counts what passed, and has a length."""

    __slots__ = ("length", "name", "passed")

    def __init__(self, name: str = "thing") -> None:
        self.name = name
        self.passed = self.length = 0


def figures(thing: Thing) -> Figures:
    # As many as of a queue, and most of them large.
    return (thing.passed, thing.length) + (1_000_000 + thing.passed,) * 9 + (0,) * 12


KIND = SampledKind(
    names=["passed", "length", *[f"more {at}" for at in range(21)]],
    figures=figures,
    activity=lambda thing: float(thing.passed),
    levels=("length",),
    key=lambda thing: thing.name,
)


class Rounds:
    """Rounds of samples, 5 seconds apart."""

    def __init__(self, things: list[Thing], detail: Detail | None = None) -> None:
        self.things = things
        self.detail = detail or Detail()
        self.track = Track(KIND, self.detail)
        self.now = 0.0

    def take(self, rounds: int = 1, *, moving: int = 0) -> None:
        """In each of these rounds, something has happened in so many things."""

        async def sample() -> None:
            for _ in range(rounds):
                for thing in self.things[:moving]:
                    thing.passed += 1
                await self.track.sample(self.now, self.things)
                if self.detail.settle(self.track.history_count):
                    for history in self.track.histories():
                        history.limit(self.detail.coarse)
                self.now += 5.0

        asyncio.run(sample())

    def passed(self, *times: float) -> list[float]:
        """What had passed through the first thing at these times."""
        return [figures[0] for _, figures in self.track.samples(self.things[0], times)]


def test_a_thing_has_a_history_though_nobody_has_asked_for_it() -> None:
    rounds = Rounds([Thing()])
    rounds.take(20, moving=1)
    assert rounds.passed(95.0, 50.0, 0.0) == [20, 11, 1]


def test_what_happens_first_is_a_step_up_from_nothing() -> None:
    rounds = Rounds([Thing()])
    rounds.take(3)
    rounds.things[0].passed = 1000
    rounds.take()
    assert rounds.passed(15.0, 10.0) == [1000, 0]
    # And it shows as a rate at once.
    assert rounds.track.rates(rounds.things[0], 16.0, figures(rounds.things[0]))[0] == 1000 / 6


def test_nothing_is_forgotten_while_a_thing_is_idle() -> None:
    rounds = Rounds([Thing()])
    rounds.take(10, moving=1)
    rounds.take(300)
    assert rounds.passed(rounds.now, 45.0, 0.0) == [10, 10, 1]
    rounds.take(5, moving=1)
    assert rounds.passed(rounds.now, rounds.now - 30.0, 0.0) == [15, 10, 1]


def test_a_thing_idle_for_long_is_shown_as_it_is_and_costs_its_last_figures() -> None:
    rounds = Rounds([Thing()])
    rounds.take(10, moving=1)
    rounds.take(800)
    assert rounds.track.history_count == 0
    assert rounds.passed(rounds.now, rounds.now - 3600.0) == [10, 10]
    # What it does then begins where it was.
    rounds.take(1, moving=1)
    assert rounds.passed(rounds.now, rounds.now - 10.0) == [11, 10]


def test_a_thing_that_is_gone_costs_nothing() -> None:
    rounds = Rounds([Thing()])
    rounds.take(10, moving=1)
    rounds.things.clear()
    rounds.take()
    assert list(rounds.track.histories()) == []


def test_things_without_activity_cost_nothing() -> None:
    rounds = Rounds([Thing() for _ in range(MANY)])
    rounds.take()
    tracemalloc.start()
    rounds.take(2)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rounds.track.history_count == 0
    assert grown < 100_000


def test_a_round_of_100000_things_takes_many_turns_of_the_loop() -> None:
    things = [Thing(str(number)) for number in range(MANY)]
    track = Track(KIND, Detail())
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def sample() -> None:
        counting = asyncio.ensure_future(count_turns())
        for now in (0.0, 5.0):
            for thing in things:
                thing.passed += 1
            await track.sample(now, things)
        counting.cancel()

    asyncio.run(sample())
    # A slice is a millisecond: 200,000 samples take far more than a hundred of them.
    assert track.history_count == MANY and turns > 100


def test_the_samples_of_100000_busy_things_stay_within_their_bound() -> None:
    # Few histories at first, in full detail; then all things are busy.
    rounds = Rounds([Thing(str(number)) for number in range(MANY)])
    rounds.take(10, moving=2000)
    assert rounds.detail.coarse == 1
    octets = sum([history.octets for history in rounds.track.histories()])
    assert 0 < octets < HISTORY_OCTETS_MAX
    rounds.take(1, moving=MANY)
    assert rounds.detail.coarse > 10
    for _ in range(2):
        rounds.take(1, moving=MANY)
        octets = sum([history.octets for history in rounds.track.histories()])
        assert octets <= HISTORY_OCTETS_MAX
    # All of them still have a past.
    assert len(rounds.passed(rounds.now, 50.0, 0.0)) == 3


def test_histories_are_cut_when_more_things_become_busy_and_grow_again_later() -> None:
    detail = Detail(octets_max=200_000)
    rounds = Rounds([Thing(str(number)) for number in range(200)], detail)
    rounds.take(130, moving=10)
    full = max([history.octets for history in rounds.track.histories()])
    rounds.take(130, moving=200)
    assert detail.coarse > 5
    assert sum([history.octets for history in rounds.track.histories()]) <= 200_000
    assert max([history.octets for history in rounds.track.histories()]) < full / 4
    del rounds.things[10:]
    rounds.take(130, moving=10)
    assert detail.coarse == 1
    assert max([history.octets for history in rounds.track.histories()]) > 0.95 * full


def test_histories_of_an_earlier_start_are_taken_up_by_their_owners() -> None:
    rounds = Rounds([Thing("a"), Thing("b")])
    rounds.take(5, moving=2)
    restored = dict(zip(("a", "b"), rounds.track.histories(), strict=True))
    after = Rounds([Thing("a"), Thing("b")])
    after.track = Track(KIND, Detail(), dict(restored))
    after.now = 100.0
    # Nothing happens in it: its past is shown nevertheless.
    after.take(2)
    assert after.passed(after.now, 10.0) == [5, 3]
    # Its counters begin at 0, and go on in the history.
    after.take(2, moving=1)
    assert after.passed(after.now, 100.0) == [7, 5]

    async def kept() -> dict[object, object]:
        return {key: history async for key, history in after.track.kept()}

    assert set(asyncio.run(kept())) == {"a", "b"}
