"""The storage of backups and exports: a local directory, or a remote place (`remote_shelf.py`).

Names are relative paths with slashes. A file exists completely or not at all, and when a method
that wrote it returns, it is durable.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol

from warren.backup.errors import ShelfRefused
from warren.persist.disk.data_directory import (
    create_directory,
    is_unfinished,
    sync_directory,
    write_durably,
)

LOCK_FILE = "lock"
CHUNK = 1 << 20


class Shelf(Protocol):
    """Files by their names. Methods documented to raise OSError raise FileNotFoundError for a
    missing file."""

    @property
    def shown(self) -> str:
        """The place, as people know it; without passwords."""

    @property
    def local(self) -> Path | None:
        """The directory, if the shelf is a directory of this machine."""

    def is_inside(self, directory: Path) -> bool:
        """Whether the shelf is inside this local directory."""

    def is_foreign(self) -> bool:
        """Whether the shelf holds files of other programs. Raises OSError."""

    def locked(self) -> AbstractContextManager[None]:
        """A context in which other processes may not change the shelf, where that can be enforced.

        Raises `ShelfRefused` if another process is changing it.
        """

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder and below it, sorted, relative to the shelf; none if
        the folder is missing."""

    def size(self, name: str) -> int | None:
        """The size of a file in octets; None if it is missing."""

    def read(self, name: str) -> bytes:
        """The contents of a file. Raises OSError."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises OSError."""

    def write(self, name: str, octets: bytes) -> None:
        """Write a small file, in place of an existing one. Raises OSError."""

    def store(self, name: str, source: Path, size: int) -> str:
        """Write a file with the first `size` octets of a local file; returns their SHA-256.

        Raises `ShelfRefused` if the local file has become shorter, OSError.
        """

    def draft(self, folder: str) -> Draft:
        """Begin a file that gets its name when it is complete; until then it may be in this folder.
        Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises OSError."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with everything in it, if it exists. Raises OSError."""


class Draft(Protocol):
    """A file that is being written. `file` is a local one.

    If the process is killed, an unfinished file may be left in the draft's folder, under a name
    that ends in `.new`; elsewhere nothing is left.
    """

    file: BinaryIO

    def keep(self, name: str) -> None:
        """Put the file on the shelf under this name. Raises OSError."""

    def discard(self) -> None:
        """Remove the file, unless it was kept."""


PRIVATE = 0o700
SHARED = 0o777
"""Modes of new directories; `SHARED` is limited by the umask."""


class DirectoryShelf:
    """A shelf in a local or mounted directory."""

    def __init__(self, path: Path, mode: int = PRIVATE) -> None:
        self.path = path
        self.local: Path | None = path
        self._mode = mode

    @property
    def shown(self) -> str:
        return str(self.path)

    def is_inside(self, directory: Path) -> bool:
        return self.path.resolve().is_relative_to(directory.resolve())

    def is_foreign(self) -> bool:
        path = self.path
        if not path.is_dir():
            return path.exists()
        return not all(name == LOCK_FILE or is_unfinished(name) for name in os.listdir(path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        create_directory(self.path, self._mode)
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ShelfRefused(f"another process is at work on {self.path}") from None
            yield
        finally:
            os.close(fd)

    def names(self, folder: str) -> list[str]:
        found = (self.path / folder).rglob("*")
        return sorted(str(one.relative_to(self.path)) for one in found if one.is_file())

    def size(self, name: str) -> int | None:
        try:
            return (self.path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def write(self, name: str, octets: bytes) -> None:
        write_durably(self.target(name), octets)

    def store(self, name: str, source: Path, size: int) -> str:
        target = self.target(name)
        with source.open("rb") as octets:
            return put_durably(chunks(octets, size, source), target)

    def draft(self, folder: str) -> Draft:
        path = self.path / folder
        create_directory(path, self._mode)
        return DirectoryDraft(self, path / f"{token_hex(16)}.new")

    def target(self, name: str) -> Path:
        """The path of a file, in a directory that exists. Raises OSError."""
        target = self.path / name
        create_directory(target.parent, self._mode)
        return target

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.path / folder, ignore_errors=True)


class DirectoryDraft:
    """A draft on the shelf's own file system, so that it is moved to its name and not copied."""

    def __init__(self, shelf: DirectoryShelf, path: Path) -> None:
        self.file: BinaryIO = path.open("wb")
        self._shelf = shelf
        self._path = path

    def keep(self, name: str) -> None:
        target = self._shelf.target(name)
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
        os.rename(self._path, target)
        sync_directory(target.parent)

    def discard(self) -> None:
        self.file.close()
        self._path.unlink(missing_ok=True)


def chunks(octets: BinaryIO, size: int, shown: object) -> Iterator[bytes]:
    """The first `size` octets of a file. Raises `ShelfRefused` if it has fewer."""
    left = size
    while left:
        chunk = octets.read(min(CHUNK, left))
        if not chunk:
            raise ShelfRefused(f"{shown} has become shorter")
        yield chunk
        left -= len(chunk)


def put_durably(octets: Iterable[bytes], target: Path) -> str:
    """Write a local file, completely or not at all; returns the SHA-256 of its contents."""
    unfinished = target.with_name(f"{target.name}.{token_hex(4)}.new")
    hashed = hashlib.sha256()
    try:
        with unfinished.open("wb") as written:
            for chunk in octets:
                hashed.update(chunk)
                written.write(chunk)
            written.flush()
            os.fsync(written.fileno())
        os.rename(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
    return hashed.hexdigest()
