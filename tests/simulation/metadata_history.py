"""Random transactions from several nodes, and the check of what became of them.

Every transaction writes a text of its own, so the history tells which of them are in it. What is
checked: each commit that was told visible is in the history exactly once and whole, with its
preconditions true just before; each that was refused is not in it; one of which nothing was told
is in it at most once; and those of one node are in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from warren.core.definitions.definition_table import Change
from warren.core.definitions.records import VirtualHostRecord
from warren.core.ports import Commit, Conflict, Key, MetadataStore, Precondition, Write

NAMES = ("a", "b\0", "caf\udce9", "d", "e" * 255, "f")


class Made(NamedTuple):
    """A transaction that was sent."""

    node: str
    text: str
    writes: Sequence[Write]
    preconditions: Sequence[Precondition]
    commit: Commit


class Writers:
    """Makes transactions, and remembers them."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.made: list[Made] = []
        self.conflicts = 0

    def write(self, node: str, store: MetadataStore) -> None:
        """One more transaction of that node; it may meet a conflict at once."""
        text = f"{node} {len(self.made)}"
        keys: list[Key] = [
            ("vhost", name) for name in self._random.sample(NAMES, self._random.randint(1, 3))
        ]
        writes = [Write(key, self._record(text)) for key in keys]
        preconditions = [
            Precondition(key, self._version(store, key))
            for key in [*keys, ("vhost", self._random.choice(NAMES))]
            if self._random.random() < 0.4
        ]
        try:
            commit = store.transact(writes, preconditions)
        except Conflict:
            self.conflicts += 1
            return
        self.made.append(Made(node, text, writes, preconditions, commit))

    def _record(self, text: str) -> VirtualHostRecord | None:
        return None if self._random.random() < 0.15 else VirtualHostRecord(text)

    def _version(self, store: MetadataStore, key: Key) -> int:
        stored = store.get(key)
        version = stored.version if stored is not None else 0
        return version + (self._random.random() < 0.02)


def check(made: Sequence[Made], history: Sequence[Sequence[Change]]) -> dict[str, int]:
    """Check the whole history against all transactions; how many there were of each outcome."""
    places = _places(history)
    versions_before = _versions(history)
    last_place: dict[str, int] = {}
    outcomes = {"visible": 0, "refused": 0, "undecided": 0}
    for node, text, writes, preconditions, commit in made:
        found = places.get(text, [])
        puts = [write.key for write in writes if write.record is not None]
        if commit.refused:
            assert commit.done and not commit.visible and not found, text
            outcomes["refused"] += 1
            continue
        assert commit.visible == commit.done
        outcomes["visible" if commit.visible else "undecided"] += 1
        if commit.visible and puts:
            assert found, f"{text} was told visible and is not in the history"
        if not found:
            continue
        assert len({place for place, _ in found}) == 1, f"{text} was done more than once"
        assert sorted(key for _, key in found) == sorted(puts), f"{text} was done in part"
        place = found[0][0]
        for key, version in preconditions:
            assert versions_before[place].get(key, 0) == version, (text, key)
        assert place >= last_place.get(node, 0), f"{text} was overtaken"
        last_place[node] = place
    return outcomes


def final_table(history: Sequence[Sequence[Change]]) -> list[object]:
    """What a store has to hold in the end."""
    table: dict[Key, object] = {}
    for changes in history:
        for change in changes:
            if change.stored is None:
                table.pop(change.key, None)
            else:
                table[change.key] = change.stored
    return [table[key] for key in sorted(table)]


def _places(history: Sequence[Sequence[Change]]) -> dict[str, list[tuple[int, Key]]]:
    places: dict[str, list[tuple[int, Key]]] = {}
    for place, changes in enumerate(history):
        for change in changes:
            if change.stored is not None:
                assert isinstance(change.stored.record, VirtualHostRecord)
                text = change.stored.record.description
                places.setdefault(text, []).append((place, change.key))
    return places


def _versions(history: Sequence[Sequence[Change]]) -> list[dict[Key, int]]:
    """The versions before each place of the history; those of a key rise, for ever."""
    before: list[dict[Key, int]] = []
    versions: dict[Key, int] = {}
    last: dict[Key, int] = {}
    for changes in history:
        before.append(dict(versions))
        for key, stored, _ in changes:
            if stored is None:
                versions.pop(key, None)
            else:
                assert stored.version > last.get(key, 0), key
                last[key] = versions[key] = stored.version
    return before
