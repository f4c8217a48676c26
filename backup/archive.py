"""A backup directory: what backups are in it, making another one, checking and removing them.

    archive.json            the format, and the id of the node whose backups these are
    lock                    held (flock) by who changes something
    backups/ID.json         a backup: when it was made, and its files
    files/ab/ab12...        what is in files, each once, under its SHA-256

A backup is there when its list is, which is written last, so one that was cut off is not there;
what it has put into `files` is used by the next one, or goes when a backup is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import msgspec

from warren.backup.errors import BackupDamaged, BackupRefused
from warren.backup.moment import Link, TakenFile, link_or_copy, moment
from warren.persist.data_directory import (
    create_directory,
    read_identity,
    sync_directory,
    write_durably,
)

FORMAT = 1
ARCHIVE_FILE = "archive.json"
LOCK_FILE = "lock"
BACKUPS = "backups"
FILES = "files"

CHUNK = 1 << 20

NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")


class Head(msgspec.Struct, frozen=True):
    """What stands in `archive.json`."""

    format: int
    node_id: str


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a backup: its path in a data directory, its octets and their SHA-256. A file that
    was not changed since `changed_ns` need not be read again."""

    path: str
    size: int
    sha256: str
    changed_ns: int


class Backup(msgspec.Struct, frozen=True):
    """`created_at` is in seconds since 1970; `new_bytes` had to be copied, the rest was there."""

    id: str
    created_at: float
    node_id: str
    files: list[StoredFile]
    new_bytes: int = 0

    @property
    def size(self) -> int:
        """Octets of all its files."""
        return sum([file.size for file in self.files])


class Progress(msgspec.Struct):
    """How far a backup or a restore is, in octets."""

    done: int
    total: int


Tell = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """For those who do not want to know."""


class Archive:
    """An open backup directory. `lock` it before changing something."""

    def __init__(self, path: Path, head: Head | None) -> None:
        self.path = path
        self._head = head

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Archive:
        """Raises `BackupRefused`, OSError."""
        try:
            octets = (path / ARCHIVE_FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if not create:
                raise BackupRefused(f"{path} is no directory of backups") from None
            if path.exists() and (not path.is_dir() or set(os.listdir(path)) - {LOCK_FILE}):
                raise BackupRefused(f"{path} holds something else than backups") from None
            return cls(path, None)
        try:
            head = msgspec.json.decode(octets, type=Head)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(f"{path / ARCHIVE_FILE} cannot be read: {error}") from None
        if head.format > FORMAT:
            raise BackupRefused(
                f"{path} has backups of format {head.format}; this version reads {FORMAT}"
            )
        return cls(path, head)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises `BackupRefused` when somebody else works on it."""
        create_directory(self.path)
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupRefused(f"another process is at work on {self.path}") from None
            yield
        finally:
            os.close(fd)

    # Looking

    def backups(self) -> list[Backup]:
        """The oldest first. Raises `BackupDamaged`."""
        try:
            names = os.listdir(self.path / BACKUPS)
        except FileNotFoundError:
            return []
        ids = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        found = [self._read(backup_id) for backup_id in ids if NAME.fullmatch(backup_id)]
        return sorted(found, key=lambda backup: (backup.created_at, backup.id))

    def backup(self, backup_id: str | None) -> Backup:
        """The one with that id, or the latest. Raises `BackupRefused`."""
        found = self.backups()
        if not found:
            raise BackupRefused(f"there is no backup in {self.path}")
        if backup_id is None:
            return found[-1]
        for backup in found:
            if backup.id == backup_id:
                return backup
        raise BackupRefused(f"there is no backup {backup_id} in {self.path}")

    def _read(self, backup_id: str) -> Backup:
        path = self.path / BACKUPS / f"{backup_id}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Backup)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(f"{path} cannot be read: {error}") from None

    def content(self, file: StoredFile) -> Path:
        """Where what is in a file stands."""
        return self.path / FILES / file.sha256[:2] / file.sha256

    def verify(self, backup: Backup, tell: Tell = silent) -> list[str]:
        """Read everything; returns what is wrong, a line each."""
        wrong = []
        progress = Progress(0, backup.size)
        for file in backup.files:
            path = self.content(file)
            try:
                found, size = _hashed(path, None)
            except FileNotFoundError:
                wrong.append(f"{file.path}: {path} is missing")
                continue
            if (found, size) != (file.sha256, file.size):
                wrong.append(f"{file.path}: {path} is not what was put there")
            progress.done += file.size
            tell(progress)
        return wrong

    # Changing

    def create(
        self,
        data_directory: Path,
        tell: Tell = silent,
        *,
        link: Link = link_or_copy,
        now: Callable[[], float] = time.time,
    ) -> Backup:
        """Back up a data directory, of a node that runs or not.

        Raises `BackupRefused`, OSError.
        """
        if self.path.resolve().is_relative_to(data_directory.resolve()):
            raise BackupRefused(
                f"{self.path} is inside of the data directory, and would go with it when the node"
                " is reset; choose another place"
            )
        with self.locked(), moment(data_directory, link=link) as files:
            node_id = read_identity(data_directory)
            assert node_id is not None
            self._expect_node(node_id)
            created_at = now()
            known = self._known()
            progress = Progress(0, sum([file.size for file in files]))
            stored, new_bytes = [], 0
            for file in files:
                one, is_new = self._store(file, known)
                stored.append(one)
                new_bytes += file.size if is_new else 0
                progress.done += file.size
                tell(progress)
            stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%dT%H%M%SZ")
            backup = Backup(f"{stamp}-{token_hex(2)}", created_at, node_id, stored, new_bytes)
            create_directory(self.path / BACKUPS)
            write_durably(self.path / BACKUPS / f"{backup.id}.json", msgspec.json.encode(backup))
            sync_directory(self.path / BACKUPS)
        return backup

    def _expect_node(self, node_id: str) -> None:
        """Backups of two nodes in one directory would be taken for each other's."""
        # Somebody else may have begun it since it was opened.
        self._head = Archive.open(self.path, create=True)._head
        if self._head is None:
            self._head = Head(FORMAT, node_id)
            write_durably(self.path / ARCHIVE_FILE, msgspec.json.encode(self._head))
        elif self._head.node_id != node_id:
            raise BackupRefused(f"{self.path} has the backups of another node")

    def _known(self) -> dict[tuple[str, int, int], str]:
        """The hashes of files that the latest backup has, by path, size and time of change."""
        try:
            backups = self.backups()
        except BackupDamaged:
            # Everything is read, then.
            return {}
        files = backups[-1].files if backups else []
        return {(file.path, file.size, file.changed_ns): file.sha256 for file in files}

    def _store(
        self, file: TakenFile, known: dict[tuple[str, int, int], str]
    ) -> tuple[StoredFile, bool]:
        """Have what is in a file; returns it, and whether it had to be copied."""
        sha256 = known.get((file.path, file.size, file.changed_ns))
        if sha256 is None or not (self.path / FILES / sha256[:2] / sha256).exists():
            sha256, size = _hashed(file.source, file.size)
            if size != file.size:
                raise BackupRefused(f"{file.source} has become shorter")
        stored = StoredFile(file.path, file.size, sha256, file.changed_ns)
        path = self.content(stored)
        if path.exists():
            return stored, False
        create_directory(path.parent)
        if copy_durably(file.source, path, file.size) != sha256:
            path.unlink()
            raise BackupRefused(f"{file.source} has changed while it was copied; try again")
        return stored, True

    def remove(self, backups: Sequence[Backup]) -> int:
        """Remove backups, and what only they have; returns how many octets that were."""
        with self.locked():
            for backup in backups:
                (self.path / BACKUPS / f"{backup.id}.json").unlink(missing_ok=True)
            needed = {file.sha256 for backup in self.backups() for file in backup.files}
            freed = 0
            for path in sorted((self.path / FILES).glob("??/*")):
                if path.name not in needed:
                    freed += path.stat().st_size
                    path.unlink()
        return freed


def copy_durably(source: Path, target: Path, size: int) -> str:
    """Copy the first octets of a file, whole or not at all; returns their SHA-256."""
    unfinished = target.with_name(f"{target.name}.{token_hex(4)}.new")
    hashed, left = hashlib.sha256(), size
    try:
        with source.open("rb") as read, unfinished.open("wb") as written:
            while left and (chunk := read.read(min(CHUNK, left))):
                hashed.update(chunk)
                written.write(chunk)
                left -= len(chunk)
            if left:
                raise BackupRefused(f"{source} has become shorter")
            written.flush()
            os.fsync(written.fileno())
        os.rename(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
    return hashed.hexdigest()


def _hashed(path: Path, size: int | None) -> tuple[str, int]:
    """SHA-256 of the first octets, or of all, and how many these were."""
    hashed, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        while size is None or count < size:
            chunk = file.read(CHUNK if size is None else min(CHUNK, size - count))
            if not chunk:
                break
            hashed.update(chunk)
            count += len(chunk)
    return hashed.hexdigest(), count
