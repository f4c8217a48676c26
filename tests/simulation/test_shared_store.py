"""The simulated store: one order of changes, whatever happens to the answers."""

from __future__ import annotations

from random import Random

from scheduler import Scheduler
from shared_store import Answer, Outcome, SharedStore

SEEDS = range(200)


def store_of(seed: int) -> tuple[Scheduler, SharedStore[int]]:
    """Values are their versions."""
    scheduler = Scheduler(Random(seed))
    return scheduler, SharedStore(scheduler, lambda value: value)


def test_of_two_that_expect_the_same_version_one_is_first() -> None:
    for seed in SEEDS:
        scheduler, store = store_of(seed)
        answers: list[Answer[int]] = []
        for _ in range(2):
            store.compare_and_set("key", 0, 1, answers.append)
        scheduler.run()
        assert sorted(answer.outcome.value for answer in answers) == ["conflict", "done"]
        assert [answer.value for answer in answers] == [1, 1]
        assert store.history["key"] == [1]


def test_answers_overtake_each_other() -> None:
    orders = set()
    for seed in SEEDS:
        scheduler, store = store_of(seed)
        order: list[str] = []
        store.read("key", lambda answer: order.append("first"))  # noqa: B023
        store.read("key", lambda answer: order.append("second"))  # noqa: B023
        scheduler.run()
        orders.add(tuple(order))
    assert len(orders) == 2


def test_without_an_answer_a_change_was_made_or_not() -> None:
    outcomes = set()
    for seed in SEEDS:
        scheduler, store = store_of(seed)
        store.failure_chance = 1.0
        answers: list[Answer[int]] = []
        store.compare_and_set("key", 0, 1, answers.append)
        scheduler.run(0.03)
        early = store.version("key")
        scheduler.run()
        assert [answer.outcome for answer in answers] == [Outcome.UNAVAILABLE]
        outcomes.add((early, store.version("key")))
    assert outcomes == {(0, 0), (0, 1), (1, 1)}


def test_watchers_hear_of_changes_and_deletions_or_not() -> None:
    for chance, heard in ((1.0, {0, 1}), (0.0, set())):
        scheduler, store = store_of(1)
        store.watch_chance = chance
        versions: list[int] = []
        store.watch("key", versions.append)
        store.compare_and_set("key", 0, 1, lambda answer: None)
        scheduler.run()
        store.delete("key")
        scheduler.run()
        assert set(versions) == heard
        assert store.version("key") == 0
