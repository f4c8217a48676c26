"""What a simulated disk holds: files and directories, each as it is seen and as it is durable.

A file has a page cache, which reads see, and sectors on the disk. Sectors written since the last
sync are dirty. Sectors that were dirty when a sync failed are lost: they are clean for the next
sync, and yet not on the disk. When the power fails, each sector of either sort is decided on its
own, and so is the size if it changed since the last sync.

A directory has entries, which everyone sees, and durable ones; between them is the list of
changes since the last sync. When the power fails each change has happened or not, on its own. A
rename is one change: the file is found under exactly one of the two names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import TypeAlias

SECTOR_BYTES = 512

SECTOR_KEPT_CHANCES = (0.0, 0.5, 0.9, 1.0)
"""One of them is drawn for a file and a crash: all, none and half lost are all met often."""

CHANGE_KEPT_CHANCES = (0.0, 0.5, 1.0)

LOST_KEPT_CHANCE = 0.1
"""That what a failed sync was to write is there all the same."""

WRITE_BACK_CHANCE = 0.1
"""That a dirty sector which is written again was already on the disk as it was between."""

EVERYWHERE = range(1 << 62)
"""All octets of a file."""

SIZES_MAX = 16
"""Sizes remembered that a file had since its last sync; of more, some are forgotten."""


class StoredFile:
    """The octets of a file. `linked` is false when no directory has it any more; `unreadable` are
    octets that cannot be read."""

    __slots__ = (
        "_dirty",
        "_disk",
        "_disk_size",
        "_lost",
        "_sizes",
        "cache",
        "linked",
        "unreadable",
    )

    def __init__(self) -> None:
        self.cache = bytearray()
        self.linked = True
        self.unreadable = range(0)
        # Whole sectors; beyond `_disk_size` those that reached the disk before the size did.
        self._disk = bytearray()
        self._disk_size = 0
        self._dirty: set[int] = set()
        self._lost: set[int] = set()
        self._sizes: list[int] = []

    def write(self, offset: int, data: bytes, random: Random) -> None:
        if not data:
            return
        end = offset + len(data)
        before = len(self.cache)
        # A gap between the end of the file and the offset is written too, with zeros.
        sectors = range(min(offset, before) // SECTOR_BYTES, _sectors(end))
        self._maybe_write_back(sectors, random)
        self._soil(sectors)
        if offset > before:
            self.cache.extend(bytes(offset - before))
        self.cache[offset:end] = data
        if len(self.cache) != before:
            self._resized(random)

    def truncate(self, size: int, random: Random) -> None:
        before = len(self.cache)
        if size == before:
            return
        self._soil(range(min(size, before) // SECTOR_BYTES, _sectors(max(size, before))))
        del self.cache[size:]
        self.cache.extend(bytes(size - len(self.cache)))
        self._resized(random)

    def sync(self) -> None:
        self._persist(self._dirty)
        end = _sectors(len(self.cache))
        _resize(self._disk, end * SECTOR_BYTES)
        self._disk_size = len(self.cache)
        self._dirty.clear()
        self._lost = {sector for sector in self._lost if sector < end}
        self._sizes.clear()

    def sync_range(self, start: int, end: int) -> None:
        """These octets are durable, and the size. Of others that are dirty nothing is known."""
        synced = self._dirty.intersection(range(start // SECTOR_BYTES, _sectors(end)))
        self._persist(synced)
        self._dirty -= synced
        _resize(self._disk, _sectors(len(self.cache)) * SECTOR_BYTES)
        self._disk_size = len(self.cache)
        self._sizes.clear()

    def fail_sync(self) -> None:
        """What was to be synced will not be, and the next sync does not know of it."""
        self._lost |= self._dirty
        self._dirty.clear()

    def lose_power(self, random: Random) -> None:
        if not (self._dirty or self._lost or self._sizes):
            return
        size = self._size_left(random)
        image = self._disk
        _resize(image, max(len(image), _sectors(len(self.cache)) * SECTOR_BYTES))
        kept_chance = random.choice(SECTOR_KEPT_CHANCES)
        for sector in sorted(self._dirty | self._lost):
            chance = LOST_KEPT_CHANCE if sector in self._lost else kept_chance
            octets = SECTOR_BYTES if random.random() < chance else self._spoil(sector, random)
            start = sector * SECTOR_BYTES
            image[start : start + octets] = _padded(self.cache[start : start + octets], octets)
        _resize(image, size)
        self.cache = bytearray(image)
        _resize(image, _sectors(size) * SECTOR_BYTES)
        self._disk_size = size
        self._dirty.clear()
        self._lost.clear()
        self._sizes.clear()

    def flip_bit(self, offset: int, bit: int) -> None:
        self.cache[offset] ^= 1 << bit
        if offset < len(self._disk):
            self._disk[offset] ^= 1 << bit

    def copy(self, memo: dict[int, Node]) -> StoredFile:
        made = memo.get(id(self))
        if made is None:
            made = memo[id(self)] = StoredFile()
            made.cache = bytearray(self.cache)
            made.linked = self.linked
            made.unreadable = self.unreadable
            made._disk = bytearray(self._disk)
            made._disk_size = self._disk_size
            made._dirty = set(self._dirty)
            made._lost = set(self._lost)
            made._sizes = list(self._sizes)
        assert isinstance(made, StoredFile)
        return made

    def _soil(self, sectors: range) -> None:
        self._dirty.update(sectors)
        if self._lost:
            self._lost.difference_update(sectors)

    def _maybe_write_back(self, sectors: range, random: Random) -> None:
        if self._dirty.isdisjoint(sectors) or random.random() >= WRITE_BACK_CHANCE:
            return
        self._persist(self._dirty.intersection(sectors))

    def _persist(self, sectors: Iterable[int]) -> None:
        """Bring sectors from the cache to the disk, a run of neighbours at a time."""
        for _, numbered in groupby(enumerate(sorted(sectors)), lambda pair: pair[1] - pair[0]):
            run = [sector for _, sector in numbered]
            start, end = run[0] * SECTOR_BYTES, (run[-1] + 1) * SECTOR_BYTES
            _resize(self._disk, max(len(self._disk), start))
            self._disk[start:end] = _padded(self.cache[start:end], end - start)

    def _resized(self, random: Random) -> None:
        if len(self._sizes) < SIZES_MAX:
            self._sizes.append(len(self.cache))
        else:
            self._sizes[random.randrange(SIZES_MAX)] = len(self.cache)

    def _size_left(self, random: Random) -> int:
        if not self._sizes or random.random() < 0.5:
            return len(self.cache)
        return random.choice((self._disk_size, *self._sizes))

    def _spoil(self, sector: int, random: Random) -> int:
        """How many of the new octets of a sector that was not kept are there.

        The rest of it is old, or zero if it never was synced.
        """
        start = sector * SECTOR_BYTES
        outcome = random.randrange(3)
        if outcome == 0:
            return random.randrange(1, SECTOR_BYTES)
        if outcome == 1 and start >= self._disk_size:
            self._disk[start : start + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        return 0


@dataclass(slots=True)
class Change:
    """A name got a file, or lost the one it had; `old` is the name the file had before."""

    name: str
    node: Node
    removed: bool = False
    old: str | None = None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removed:
            if entries.get(self.name) is self.node:
                del entries[self.name]
            return
        if self.old is not None:
            # If an earlier rename did not happen, the file stands under a still older name.
            for name in [name for name, node in entries.items() if node is self.node]:
                del entries[name]
        entries[self.name] = self.node


class StoredDirectory:
    """The entries of a directory, in the order they were made."""

    __slots__ = ("_changes", "_durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._changes: list[Change] = []

    def link(self, name: str, node: Node) -> None:
        self._change(Change(name, node))

    def is_settled(self, name: str) -> bool:
        """Whether the entry is as durable as it will ever be."""
        return all(name not in (change.name, change.old) for change in self._changes)

    def unlink(self, name: str) -> None:
        self._change(Change(name, self.entries[name], removed=True))

    def rename(self, old: str, new: str) -> None:
        self._change(Change(new, self.entries[old], old=old))

    def sync(self, name: str | None = None) -> None:
        """Make all entries durable, or that of one name."""
        synced = [c for c in self._changes if name in (None, c.name)]
        names = {c.name for c in synced} | {c.old for c in synced if c.old is not None}
        for change in synced:
            change.apply(self._durable)
        self._changes = [
            change
            for change in self._changes
            if name is not None and change.name not in names and change.old not in names
        ]

    def lose_power(self, random: Random) -> None:
        kept_chance = random.choice(CHANGE_KEPT_CHANCES) if self._changes else 0.0
        for change in self._changes:
            if random.random() < (kept_chance):
                change.apply(self._durable)
        self._changes.clear()
        self.entries = dict(self._durable)
        for node in self.entries.values():
            node.lose_power(random)

    def copy(self, memo: dict[int, Node]) -> StoredDirectory:
        made = memo.get(id(self))
        if made is None:
            made = memo[id(self)] = StoredDirectory()
            made.entries = {name: node.copy(memo) for name, node in self.entries.items()}
            made._durable = {name: node.copy(memo) for name, node in self._durable.items()}
            made._changes = [replace(c, node=c.node.copy(memo)) for c in self._changes]
        assert isinstance(made, StoredDirectory)
        return made

    def _change(self, change: Change) -> None:
        change.apply(self.entries)
        self._changes.append(change)


Node: TypeAlias = StoredFile | StoredDirectory


def _sectors(octets: int) -> int:
    """How many sectors hold so many octets."""
    return -(-octets // SECTOR_BYTES)


def _padded(octets: bytearray, size: int) -> bytearray:
    return octets if len(octets) == size else octets.ljust(size, b"\0")


def _resize(octets: bytearray, size: int) -> None:
    """Cut, or filled up with zeros."""
    if len(octets) > size:
        del octets[size:]
    elif len(octets) < size:
        octets.extend(bytes(size - len(octets)))
