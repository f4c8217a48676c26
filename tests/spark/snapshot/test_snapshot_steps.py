"""Snapshots beside a store that changes between any two of their steps.

Each look at a directory, each file that is opened and each link is a step. Between two steps the
store may take publishes and removals, write its journal, take a checkpoint, write files anew. What
was there before and is there afterwards must be in the snapshot, and whatever is in it must be
what was published. Everything follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pinned_messages import records_of, units_of
from store_history import History, SteppingLinker
from stored_node import NAMES

from warren.spark_export.snapshot.log_links import Copier, Linker

SEEDS = 30
SNAPSHOTS = 3
"""Of each history."""


def run(path: Path, seed: int, linker: Linker) -> Counter[str]:
    history = History(path, seed)
    for _ in range(30):
        history.act()
    for _ in range(SNAPSHOTS):
        history.node.flush()
        before = {queue: set(alive) for queue, alive in history.alive.items()}
        dead = {queue: set(history.published[queue]) - before[queue] for queue in NAMES}
        snapshot = history.snapshot(SteppingLinker(history, linker))
        for _ in range(20):
            history.act()
        assert not snapshot.damage
        records = records_of(units_of(snapshot, max_bytes=20_000))
        for queue, name in NAMES.items():
            found = {
                position: record.payload
                for position, record in records.get(("/", name), {}).items()
            }
            published = history.published[queue]
            wrong = [at for at, body in found.items() if published.get(at) != body]
            assert not wrong, f"seed {seed}: wrong messages {wrong}"
            missing = [at for at in before[queue] if at in history.alive[queue] and at not in found]
            assert not missing, f"seed {seed}: messages {missing} of {name} are missing"
            old = [at for at in found if at in dead[queue]]
            assert not old, f"seed {seed}: messages {old} of {name} had been removed before"
            history.met["removed meanwhile and left out"] += any(
                at not in found for at in before[queue]
            )
            history.met["rows"] += len(found)
        snapshot.release()
    history.node.die()
    return history.met


@pytest.mark.parametrize("linker", [Linker(), Copier()], ids=["links", "copies"])
def test_a_snapshot_beside_a_store_that_changes_has_what_was_there_all_the_time(
    tmp_path: Path, linker: Linker
) -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met += run(tmp_path / str(seed), seed, linker)
    for what in (
        "combined",
        ".idx gone before it was opened",
        ".rdq gone before it was opened",
        "gone before it was linked",
        "removed meanwhile and left out",
        "rows",
    ):
        assert met[what], f"never met: {what}; {met}"


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    assert run(tmp_path / "one", 3, Linker()) == run(tmp_path / "two", 3, Linker())
