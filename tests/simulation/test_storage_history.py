"""Crash histories of the message storage: some at random in CI, and those that once failed.

`python -P tests/simulation/storage_history.py --seed S --count N` runs as many as one likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import storage_history
from in_hand_history import InHandHistory
from retained_history import RetainedHistory

from warren.persist.log import journal, log_writer

SEEDS_A_TEST = 35
TESTS = 4

ONCE_FAILED = (12, 28, 47, 50, 55, 83, 91, 118, 131, 198, 203, 217, 311, 391, 410, 467, 558)
ONCE_FAILED += (582, 750, 771, 778, 794, 1571, 1000592, 1009383, 1009794, 1010227, 1037063, 2000976)
ONCE_FAILED += (3009696, 3009726, 7001110, 7001739, 7100810, 7308566, 7360412)

ONCE_FAILED_RETAINED = (942,)

ONCE_FAILED_WITH_ROOM = (42000137, 42000185, 42000425, 42000479, 42000484, 42001349)

RARE = (
    "checkpoints",
    "clean stop",
    "combined",
    "disk fault: directory",
    "disk fault: full",
    "disk fault: sync",
    "disk fault: write",
    "killed",
    "notes of deletion taken away",
    "power lost in a step",
    "power lost in recovery",
)


IN_HAND = (
    "clean stop with messages delayed",
    "counts of returns found",
    "delayed messages cancelled",
    "delayed messages found",
    "delayed messages sent",
    "messages of the stream found",
    "moves done",
    "replayed and safe",
    "returns",
    "trimmed",
)


RETAINED = (
    "combined",
    "power lost in a step",
    "retained",
    "retained messages found",
    "retained messages replayed",
    "retained messages trimmed",
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(journal, "BATCH_BYTES_MAX", storage_history.BATCH_BYTES_MAX)
    yield


@pytest.mark.parametrize("first", range(0, SEEDS_A_TEST * TESTS, SEEDS_A_TEST))
def test_nothing_confirmed_is_lost_and_nothing_comes_back(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_A_TEST):
        storage_history.run(seed, seen)
    assert all(seen[name] for name in RARE), seen


def test_what_is_moved_is_in_its_old_queue_or_in_its_new_ones() -> None:
    seen: Counter[str] = Counter()
    for seed in range(storage_history.MOVES_FROM, storage_history.MOVES_FROM + SEEDS_A_TEST):
        storage_history.run(seed, seen)
    assert all(seen[name] for name in (*RARE, "moves", "moves done")), seen


def test_delays_counts_of_returns_and_streams_survive_and_replays_arrive() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS_A_TEST):
        storage_history.run(seed, seen, InHandHistory)
    assert all(seen[name] for name in (*RARE, *IN_HAND)), seen


def test_what_is_acknowledged_is_in_its_queue_or_retained() -> None:
    seen: Counter[str] = Counter()
    for seed in (*ONCE_FAILED_RETAINED, *range(SEEDS_A_TEST // 2)):
        storage_history.run(seed, seen, RetainedHistory)
    assert all(seen[name] for name in RETAINED), seen


def test_what_once_failed() -> None:
    for seed in ONCE_FAILED:
        storage_history.run(seed, Counter())


def test_files_that_always_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "SMALL_IN_A_ROW", 1)
    for seed in (*ONCE_FAILED_WITH_ROOM, *range(SEEDS_A_TEST)):
        storage_history.run(seed, Counter())


def test_the_same_seed_is_the_same_history() -> None:
    histories = [storage_history.History(4711, Counter()) for _ in range(2)]
    for history in histories:
        history.run()
    assert histories[0].disk.checksum() == histories[1].disk.checksum()
