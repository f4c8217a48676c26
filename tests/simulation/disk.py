"""A disk in memory that fails on command; implements `persist.disk.filesystem.FileSystem`.

    disk = SimulatedDisk(Random(seed))
    disk.crash_after(7)             the seventh operation from now raises PowerLost
    ...
    disk.crash()                    what is left; the disk works again
    disk.kill()                     or: only the process ended

It promises what the interface promises and nothing beyond. Operations that have an effect are
steps: they are counted, noted in `trace`, and each can be the one at which the power fails. All
chance comes from the one `Random`, so that the same seed gives the same trace and the same disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar
from zlib import crc32

from disk_image import EVERYWHERE, Node, StoredDirectory, StoredFile

Outcome = TypeVar("Outcome")


class PowerLost(BaseException):
    """The power failed: not an Exception, so that no handler for errors goes on without it."""


class NthTime:
    """Says of a thing that happens again and again whether this is one of the times to fail."""

    __slots__ = ("_count", "_due")

    def __init__(self) -> None:
        self._count = 0
        self._due: set[int] = set()

    def arm(self, n: int) -> None:
        assert n > 0, n
        self._due.add(self._count + n)

    def disarm(self) -> None:
        self._due.clear()

    def is_now(self) -> bool:
        self._count += 1
        if self._count not in self._due:
            return False
        self._due.remove(self._count)
        return True

    def copy(self) -> NthTime:
        made = NthTime()
        made._count = self._count
        made._due = set(self._due)
        return made


class SimulatedFile:
    """Implements `File`. It ends with the process: after `crash` or `kill` it raises PowerLost."""

    __slots__ = ("_closed", "_disk", "_file", "_life", "_path", "_writable")

    def __init__(self, disk: SimulatedDisk, file: StoredFile, path: str, writable: bool) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._writable = writable
        self._life = disk.life
        self._closed = False

    def write(self, offset: int, data: bytes) -> None:
        self._check(writing=True)
        self._disk._step(
            f"write {self._path} {offset} {len(data)} {crc32(data):08x}",
            lambda whole: self._disk._write(self._file, self._path, offset, data, whole),
        )

    def write_synced(self, offset: int, data: bytes) -> None:
        self.write(offset, data)
        self._disk._step(
            f"sync {self._path} {offset} {len(data)}",
            lambda whole: self._disk._sync(
                self._file, self._path, whole, range(offset, offset + len(data))
            ),
        )

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        if offset < 0:
            raise _error(errno.EINVAL, self._path)
        bad = self._file.unreadable
        if offset < bad.stop and bad.start < offset + size:
            raise _error(errno.EIO, self._path)
        return bytes(self._file.cache[offset : offset + size])

    def sync(self) -> None:
        self._check()
        self._disk._step(
            f"sync {self._path}", lambda whole: self._disk._sync(self._file, self._path, whole)
        )

    def truncate(self, size: int) -> None:
        self._check(writing=True)
        self._disk._step(
            f"truncate {self._path} {size}",
            lambda whole: self._disk._truncate(self._file, self._path, size),
        )

    def size(self) -> int:
        self._check()
        return len(self._file.cache)

    def close(self) -> None:
        self._closed = True

    def _check(self, *, writing: bool = False) -> None:
        if self._life != self._disk.life:
            raise PowerLost(f"{self._path} was opened before the process ended")
        self._disk._check_power()
        if self._closed or (writing and not self._writable):
            raise _error(errno.EBADF, self._path)


class SimulatedDisk:
    """One disk and the operating system above it, from one seed.

    `capacity` is how many octets all files may have; None is no limit. `lying` set, the disk says
    of every sync that it was done and does nothing. `steps` counts what had an effect, over all
    lives.
    """

    def __init__(self, random: Random, *, capacity: int | None = None) -> None:
        self.steps = 0
        self.trace: list[str] = []
        self.lying = False
        self.life = 0
        self._random = random
        self._root = StoredDirectory()
        self._directories = {"": self._root}
        self._used = 0
        self._capacity = self._capacity_given = capacity
        self._power_fails_at = 0
        self._powerless = False
        self._failing_writes = NthTime()
        self._failing_syncs = NthTime()
        self._failing_directory_syncs = NthTime()

    # The interface

    def create(self, path: Path) -> SimulatedFile:
        key = _key(path)
        return self._step(f"create {key}", lambda whole: self._create(key))

    def open(self, path: Path, *, writable: bool = True) -> SimulatedFile:
        self._check_power()
        key = _key(path)
        return SimulatedFile(self, self._file_at(key), key, writable)

    def names(self, directory: Path) -> list[str]:
        self._check_power()
        key = _key(directory)
        found = self._directories.get(key)
        if found is not None:
            return sorted(found.entries)
        if self._node_at(key) is not None:
            raise _error(errno.ENOTDIR, key)
        return []

    def make_directory(self, path: Path) -> None:
        key = _key(path)
        self._step(f"make_directory {key}", lambda whole: self._make_directory(key, whole))

    def remove_directory(self, path: Path) -> None:
        key = _key(path)
        self._step(f"remove_directory {key}", lambda whole: self._remove_directory(key, whole))

    def remove(self, path: Path) -> None:
        key = _key(path)
        self._step(f"remove {key}", lambda whole: self._remove(key))

    def rename(self, old: Path, new: Path) -> None:
        old_key, new_key = _key(old), _key(new)
        self._step(f"rename {old_key} {new_key}", lambda whole: self._rename(old_key, new_key))

    def sync_directory(self, path: Path) -> None:
        key = _key(path)
        self._step(
            f"sync_directory {key}",
            lambda whole: self._sync_directory(self._directory_at(key), key, whole),
        )

    def sync_files(self, paths: Sequence[Path]) -> None:
        keys = [_key(path) for path in paths]
        self._step(f"sync_files {' '.join(keys)}", lambda whole: self._sync_files(keys, whole))

    # The end of the process, and of the power

    def crash_after(self, n: int) -> None:
        """Let the power fail at the n-th step from now: before it, amid it or after it."""
        assert n > 0, n
        self._power_fails_at = self.steps + n

    def crash(self) -> None:
        """The power failed: of what was not durable some is there, and what it is, is durable."""
        self._end_of_life("crash")
        self._root.lose_power(self._random)
        self._find_all()
        self._note(f"left {self.checksum():08x}")

    def kill(self) -> None:
        """The process ended, and nothing else: all that it wrote is there, durable or not."""
        self._end_of_life("kill")

    def copy(self, random: Random | None = None) -> SimulatedDisk:
        """The same disk once more, with the same future unless it is given another one."""
        if random is None:
            random = Random()
            random.setstate(self._random.getstate())
        made = SimulatedDisk(random, capacity=self._capacity_given)
        made.steps = self.steps
        made.trace = list(self.trace)
        made.lying = self.lying
        made.life = self.life
        made._root = self._root.copy({})
        made._find_all()
        made._capacity = self._capacity
        made._power_fails_at = self._power_fails_at
        made._powerless = self._powerless
        made._failing_writes = self._failing_writes.copy()
        made._failing_syncs = self._failing_syncs.copy()
        made._failing_directory_syncs = self._failing_directory_syncs.copy()
        return made

    # Faults; those of one time are past once they happened, the others last until `heal`

    def fail_write(self, n: int) -> None:
        """The n-th write from now fails, and may have written a part."""
        self._failing_writes.arm(n)

    def fail_sync(self, n: int) -> None:
        """The n-th sync of a file from now fails; later ones work and do not bring back its data.

        What was written since the last good sync is still read. It becomes durable only if it is
        written again and then synced.
        """
        self._failing_syncs.arm(n)

    def fail_sync_directory(self, n: int) -> None:
        """The n-th sync of a directory from now fails; its changes wait for the next."""
        self._failing_directory_syncs.arm(n)

    def fail_read(self, path: Path, octets: range = EVERYWHERE) -> None:
        """Every read of these octets of the file fails."""
        self._file_at(_key(path)).unreadable = octets

    def full_after(self, octets: int) -> None:
        """There is room for so many octets more."""
        self._capacity = self._used + octets

    def free(self, octets: int) -> None:
        """There is room for so many octets more than there was."""
        if self._capacity is not None:
            self._capacity += octets

    def flip_bit(self, path: Path, offset: int, bit: int) -> None:
        self._file_at(_key(path)).flip_bit(offset, bit)

    def heal(self) -> None:
        """No fault that was asked for happens any more; what happened stays."""
        for fault in (self._failing_writes, self._failing_syncs, self._failing_directory_syncs):
            fault.disarm()
        for _, file in self._walk_files():
            file.unreadable = range(0)
        self.lying = False
        self._capacity = self._capacity_given
        self._power_fails_at = 0

    # What is there

    def used_bytes(self) -> int:
        """The sizes of all files that have a name."""
        return self._used

    def files(self) -> dict[Path, int]:
        """Every file with its size."""
        return {Path(key): len(file.cache) for key, file in self._walk_files()}

    def checksum(self) -> int:
        """The same for the same names and contents."""
        crc = 0
        for key, file in self._walk_files():
            crc = crc32(file.cache, crc32(key.encode(), crc))
        return crc

    # Steps

    def _step(self, what: str, effect: Callable[[bool], Outcome]) -> Outcome:
        """Have an effect wholly (`effect(True)`), unless it is here that the power fails."""
        self._check_power()
        self.steps += 1
        self._note(what)
        if self.steps != self._power_fails_at:
            return effect(True)
        moment = self._random.choice(("before", "amid", "after"))
        self._note(f"power lost {moment}")
        if moment != "before":
            try:
                effect(moment == "after")
            except OSError:
                # Whom it was to be told to is gone.
                pass
        self._powerless = True
        raise PowerLost(f"{moment} step {self.steps}: {what}")

    def _check_power(self) -> None:
        if self._powerless:
            raise PowerLost(f"lost at step {self.steps}")

    def _note(self, what: str) -> None:
        self.trace.append(what)

    def _end_of_life(self, how: str) -> None:
        self._note(how)
        self.life += 1
        self._power_fails_at = 0
        self._powerless = False

    # Files

    def _write(self, file: StoredFile, path: str, offset: int, data: bytes, whole: bool) -> None:
        if offset < 0:
            raise _error(errno.EINVAL, path)
        broken = self._failing_writes.is_now()
        room = self._room(file, offset, len(data))
        full = room < len(data)
        if broken or full or not whole:
            data = data[: self._random.randint(0, room)]
        before = len(file.cache)
        file.write(offset, data, self._random)
        self._grown(file, before)
        if broken:
            raise self._failed(errno.EIO, path)
        if full:
            raise self._failed(errno.ENOSPC, path)

    def _room(self, file: StoredFile, offset: int, size: int) -> int:
        """How many of so many octets can be written at the offset."""
        end = offset + size
        if self._capacity is None or not file.linked or end <= len(file.cache):
            return size
        end_max = len(file.cache) + max(0, self._capacity - self._used)
        return min(size, max(0, end_max - offset))

    def _truncate(self, file: StoredFile, path: str, size: int) -> None:
        if size < 0:
            raise _error(errno.EINVAL, path)
        before = len(file.cache)
        if size > before and self._room(file, before, size - before) < size - before:
            raise self._failed(errno.ENOSPC, path)
        file.truncate(size, self._random)
        self._grown(file, before)

    def _grown(self, file: StoredFile, before: int) -> None:
        if file.linked:
            self._used += len(file.cache) - before

    def _sync(self, file: StoredFile, path: str, whole: bool, octets: range = EVERYWHERE) -> None:
        if not whole:
            return
        if self._failing_syncs.is_now():
            file.fail_sync()
            raise self._failed(errno.EIO, path)
        if self.lying:
            return
        if octets is EVERYWHERE:
            file.sync()
        else:
            file.sync_range(octets.start, octets.stop)

    def _sync_files(self, keys: list[str], whole: bool) -> None:
        """As many as come before the power fails, and in the end their directories."""
        files = [self._file_at(key) for key in keys]
        count = len(files) if whole else self._random.randrange(len(files) + 1)
        for key, file in list(zip(keys, files, strict=True))[:count]:
            self._sync(file, key, True)
        for parent in dict.fromkeys(_parent(key) for key in keys):
            self._sync_directory(self._directory_at(parent), parent, whole)

    # Directories

    def _create(self, key: str) -> SimulatedFile:
        directory, name = self._directory_at(_parent(key)), _name(key)
        file = directory.entries.get(name)
        if isinstance(file, StoredDirectory):
            raise _error(errno.EISDIR, key)
        if file is None:
            if self._is_full():
                raise self._failed(errno.ENOSPC, key)
            file = StoredFile()
            directory.link(name, file)
        else:
            self._truncate(file, key, 0)
        return SimulatedFile(self, file, key, True)

    def _make_directory(self, key: str, whole: bool) -> StoredDirectory:
        if not key:
            return self._root
        directory = self._directories.get(key)
        if directory is None:
            parent = self._make_directory(_parent(key), whole)
            if _name(key) in parent.entries:
                raise _error(errno.EEXIST, key)
            if self._is_full():
                raise self._failed(errno.ENOSPC, key)
            directory = self._directories[key] = StoredDirectory()
            parent.link(_name(key), directory)
        else:
            parent = self._directories[_parent(key)]
        if not parent.is_settled(_name(key)):
            self._sync_directory(parent, _parent(key), whole, _name(key))
        return directory

    def _remove_directory(self, key: str, whole: bool) -> None:
        node = self._node_at(key)
        if node is None:
            return
        if isinstance(node, StoredFile):
            raise _error(errno.ENOTDIR, key)
        names = sorted(node.entries)
        count = len(names) if whole else self._random.randrange(len(names) + 1)
        for name in names[:count]:
            self._remove(f"{key}/{name}")
        if whole:
            self._directories[_parent(key)].unlink(_name(key))
            del self._directories[key]

    def _remove(self, key: str) -> None:
        node = self._node_at(key)
        if node is None:
            return
        if isinstance(node, StoredDirectory):
            raise _error(errno.EISDIR, key)
        self._directories[_parent(key)].unlink(_name(key))
        self._unlinked(node)

    def _rename(self, old: str, new: str) -> None:
        assert _parent(old) == _parent(new), f"{old} and {new} are in two directories"
        directory = self._directory_at(_parent(old))
        file = self._file_at(old)
        replaced = directory.entries.get(_name(new))
        if isinstance(replaced, StoredDirectory):
            raise _error(errno.EISDIR, new)
        if replaced is file:
            return
        directory.rename(_name(old), _name(new))
        if replaced is not None:
            self._unlinked(replaced)

    def _unlinked(self, file: StoredFile) -> None:
        file.linked = False
        self._used -= len(file.cache)

    def _sync_directory(
        self, directory: StoredDirectory, key: str, whole: bool, name: str | None = None
    ) -> None:
        if not whole:
            return
        if self._failing_directory_syncs.is_now():
            raise self._failed(errno.EIO, key or "/")
        if not self.lying:
            directory.sync(name)

    # Finding

    def _node_at(self, key: str) -> Node | None:
        if not key:
            return self._root
        directory = self._directories.get(_parent(key))
        return None if directory is None else directory.entries.get(_name(key))

    def _file_at(self, key: str) -> StoredFile:
        node = self._node_at(key)
        if node is None:
            raise _error(errno.ENOENT, key)
        if isinstance(node, StoredDirectory):
            raise _error(errno.EISDIR, key)
        return node

    def _directory_at(self, key: str) -> StoredDirectory:
        directory = self._directories.get(key)
        if directory is None:
            raise _error(errno.ENOENT if self._node_at(key) is None else errno.ENOTDIR, key)
        return directory

    def _find_all(self) -> None:
        """Know the directories and the space used, of a tree that was not made step by step."""
        self._directories = {"": self._root}
        self._used = 0
        unseen = [("", self._root)]
        while unseen:
            above, directory = unseen.pop()
            for name, node in directory.entries.items():
                if isinstance(node, StoredDirectory):
                    self._directories[f"{above}/{name}"] = node
                    unseen.append((f"{above}/{name}", node))
                else:
                    node.linked = True
                    self._used += len(node.cache)

    def _walk_files(self) -> Iterator[tuple[str, StoredFile]]:
        for key, directory in sorted(self._directories.items()):
            for name, node in sorted(directory.entries.items()):
                if isinstance(node, StoredFile):
                    yield f"{key}/{name}", node

    # Space, errors

    def _is_full(self) -> bool:
        return self._capacity is not None and self._used >= self._capacity

    def _failed(self, number: int, path: str) -> OSError:
        """An error that was asked for."""
        self._note(f"failed {errno.errorcode[number]}")
        return _error(number, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _key(path: Path) -> str:
    """The path as it is kept: that of the root is empty."""
    key = str(path)
    assert key.startswith("/"), f"{key} is not absolute"
    return "" if key == "/" else key


def _parent(key: str) -> str:
    return key.rpartition("/")[0]


def _name(key: str) -> str:
    return key.rpartition("/")[2]
