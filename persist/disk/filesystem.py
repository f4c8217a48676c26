"""The few verbs the message storage needs of a file system, and the real one.

Answerable for every byte the stores read and write: nothing in the storage opens a file but
through this interface, so that a simulated disk can stand in for it and lose power at any step.

What durability takes, as POSIX has it and the simulated disk enforces:

- what `write` wrote is durable after `sync` of that file, or `sync_files` with its path; what
  `write_synced` wrote is when it returns;
- an entry made by `create`, `rename` or `remove` is durable after `sync_directory`;
- after an error of `sync` or `write_synced` nothing is known about what was written since the last
  good one, and a later success means nothing for it: the data must be written again, elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_SYNCED: int | None = getattr(os, "RWF_DSYNC", None)
"""The flag of a write that returns when its octets are durable; None where Python has none."""

NO_SYNCED_WRITES = (errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of systems that know no such write."""

SYNC_ONE_BY_ONE_MAX = 16
"""Files up to this many are synced one by one, more by one sync of the whole file system."""


class File(Protocol):
    """An open file. Every method may raise OSError."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of the data at the offset; after an error any part of it may be there."""
        ...

    def write_synced(self, offset: int, data: bytes) -> None:
        """`write`, and return when these octets are durable, and the size of the file. Octets that
        were written before without a sync need not be."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from the offset; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Return when everything written is durable, the size of the file included."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Every method may raise OSError."""

    def create(self, path: Path) -> File:
        """Open for reading and writing; the file is made, or emptied when it exists."""
        ...

    def open(self, path: Path, *, writable: bool = True) -> File:
        """Open a file that exists. Raises FileNotFoundError."""
        ...

    def names(self, directory: Path) -> list[str]:
        """The names in the directory, sorted; none when there is no such directory."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory, durably, and its parents; one that exists is no error."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove a directory, which need not exist, and the files in it."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; one that does not exist is no error."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within its directory; a file with the new name is replaced."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the entries of a directory durable."""
        ...

    def sync_files(self, paths: Sequence[Path]) -> None:
        """Make the octets written to these files durable, and their directory entries."""
        ...


class RealFile:
    """Implements `File` with the calls of the operating system. Errors name the path."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def write(self, offset: int, data: bytes) -> None:
        try:
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise self._named(error) from None

    def write_synced(self, offset: int, data: bytes) -> None:
        if _SYNCED is None:
            self.write(offset, data)
            self.sync()
            return
        try:
            written = os.pwritev(self._fd, [data], offset, _SYNCED)
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwritev(self._fd, [rest], offset + written, _SYNCED)
        except OSError as error:
            if error.errno not in NO_SYNCED_WRITES:
                raise self._named(error) from None
            self.write(offset, data)
            self.sync()

    def read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
            while data and len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._named(error) from None
        return data

    def sync(self) -> None:
        if self._fd < 0:
            # The call below takes the number of a closed file for a mistake of types.
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            # The descriptor is free even after an error, and may be another file's in a moment.
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError as error:
                raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, str(self._path))


class RealFileSystem:
    """Implements `FileSystem`. Only the owner may read files that it makes."""

    def create(self, path: Path) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o600), path)

    def open(self, path: Path, *, writable: bool = True) -> RealFile:
        mode = os.O_RDWR if writable else os.O_RDONLY
        return RealFile(os.open(path, mode | os.O_CLOEXEC), path)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            self.sync_directory(path.parent)
        except OSError:
            # The next try must not take it for a durable one.
            path.rmdir()
            raise

    def remove_directory(self, path: Path) -> None:
        for name in self.names(path):
            self.remove(path / name)
        try:
            path.rmdir()
        except FileNotFoundError:
            return

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._sync_opened(path, os.O_RDONLY | os.O_DIRECTORY)

    def sync_files(self, paths: Sequence[Path]) -> None:
        if len(paths) > SYNC_ONE_BY_ONE_MAX:
            self._sync_everything(paths[0].parent)
            return
        for path in paths:
            self._sync_opened(path, os.O_RDONLY)
        for directory in {path.parent for path in paths}:
            self.sync_directory(directory)

    def _sync_opened(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(fd)

    def _sync_everything(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)


def read_whole(filesystem: FileSystem, path: Path) -> bytes | None:
    """The octets of a file; None if there is none. Raises OSError."""
    try:
        file = filesystem.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_whole(filesystem: FileSystem, path: Path, data: bytes) -> None:
    """Replace a file durably; if that fails, the old file stays. Raises OSError."""
    unfinished = path.with_name(path.name + ".new")
    file = filesystem.create(unfinished)
    try:
        file.write(0, data)
        file.sync()
    finally:
        file.close()
    filesystem.rename(unfinished, path)
    filesystem.sync_directory(path.parent)
