"""Where backups and exports are kept: a local directory, or what `backup/remote_shelf.py` reaches.

Names are relative paths with slashes. A file is there whole or not at all, and on return it lasts.
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
from warren.persist.disk.data_directory import create_directory, sync_directory, write_durably

LOCK_FILE = "lock"
CHUNK = 1 << 20


class Shelf(Protocol):
    """Files by their names. What is said to raise OSError raises FileNotFoundError for one that is
    not there."""

    @property
    def shown(self) -> str:
        """What people know it by; no password is in it."""

    @property
    def local(self) -> Path | None:
        """The directory, if it is one of this machine."""

    def is_inside(self, directory: Path) -> bool:
        """Whether it is a part of this local directory."""

    def is_foreign(self) -> bool:
        """Whether it holds something, though none of ours. Raises OSError."""

    def locked(self) -> AbstractContextManager[None]:
        """Keeps others from changing it meanwhile, where that is possible.

        Raises `ShelfRefused` when somebody else does.
        """

    def names(self, folder: str) -> list[str]:
        """All files in a folder and below it, in order, relative to the shelf; none without the
        folder."""

    def size(self, name: str) -> int | None:
        """The octets of a file; None if it is not there."""

    def read(self, name: str) -> bytes:
        """All of a file. Raises OSError."""

    def open(self, name: str) -> BinaryIO:
        """A file, to be read from its beginning. Raises OSError."""

    def write(self, name: str, octets: bytes) -> None:
        """Put a small file, in place of what is there. Raises OSError."""

    def store(self, name: str, source: Path, size: int) -> str:
        """Put the first octets of a local file, and return their SHA-256.

        Raises `ShelfRefused` when it has become shorter, OSError.
        """

    def scratch(self, folder: str) -> Path:
        """A local directory, made if it is missing, for files that are to be put there by `adopt`.
        It may be this folder. Raises OSError."""

    def adopt(self, name: str, file: Path) -> None:
        """Put a local file, which is gone from its place then. Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there. Raises OSError."""


PRIVATE = 0o700
SHARED = 0o777
"""Modes of new directories; the second as far as the umask allows."""


class DirectoryShelf:
    """A local directory, or one that is mounted."""

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
        return path.exists() and (not path.is_dir() or bool(set(os.listdir(path)) - {LOCK_FILE}))

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
        target = self.path / name
        create_directory(target.parent, self._mode)
        write_durably(target, octets)

    def store(self, name: str, source: Path, size: int) -> str:
        target = self.path / name
        create_directory(target.parent, self._mode)
        with source.open("rb") as octets:
            return put_durably(chunks(octets, size, source), target)

    def scratch(self, folder: str) -> Path:
        path = self.path / folder
        create_directory(path, self._mode)
        return path

    def adopt(self, name: str, file: Path) -> None:
        target = self.path / name
        create_directory(target.parent, self._mode)
        with file.open("rb") as octets:
            os.fsync(octets.fileno())
        os.rename(file, target)
        sync_directory(target.parent)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.path / folder, ignore_errors=True)


def chunks(octets: BinaryIO, size: int, shown: object) -> Iterator[bytes]:
    """The first octets of a file. Raises `ShelfRefused` when there are fewer."""
    left = size
    while left:
        chunk = octets.read(min(CHUNK, left))
        if not chunk:
            raise ShelfRefused(f"{shown} has become shorter")
        yield chunk
        left -= len(chunk)


def put_durably(octets: Iterable[bytes], target: Path) -> str:
    """Make a local file, whole or not at all; returns the SHA-256 of what is in it."""
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
