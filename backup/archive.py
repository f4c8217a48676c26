"""An archive of backups: listing, making, checking and removing them.

It is a directory, or a folder of a remote file system (`backup/shelf.py`):

    archive.json            the format, and the id of the node whose backups these are
    lock                    held (flock) by a process that changes something
    backups/ID.json         a backup: when it was made, and its files
    files/ab/ab12...        the contents of files, each once, under its SHA-256

The list of a backup is written last, and the backup exists once its list does; so a backup that was
cut off does not exist. The files that it has put into `files` are used by the next backup, or
removed when a backup is removed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Self

import msgspec

from warren.backup.errors import BackupDamaged, BackupRefused
from warren.backup.moment import Link, TakenFile, expect_messages, link_or_copy, moment
from warren.backup.shelf import CHUNK, Shelf, put_durably
from warren.backup.shelves import shelf_at
from warren.persist.disk.data_directory import read_identity

FORMAT = 1
ARCHIVE_FILE = "archive.json"
BACKUPS = "backups"
FILES = "files"

NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")


class Head(msgspec.Struct, frozen=True):
    """The contents of `archive.json`."""

    format: int
    node_id: str


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a backup: its path in a data directory, its size and its SHA-256. If the file still
    has this path, size and `changed_ns`, the next backup need not read it."""

    path: str
    size: int
    sha256: str
    changed_ns: int


class Backup(msgspec.Struct, frozen=True):
    """A backup. `created_at` is in seconds since 1970; `new_bytes` had to be copied for it.

    `number` is higher than those of all backups before: the clock may have been set back. 0 of
    those from before there were numbers.
    """

    id: str
    created_at: float
    node_id: str
    files: list[StoredFile]
    new_bytes: int = 0
    number: int = 0

    @property
    def size(self) -> int:
        """The total size of its files in octets."""
        return sum([file.size for file in self.files])


class ArchiveProgress(msgspec.Struct):
    """The progress of a backup or a restore, in octets."""

    done: int
    total: int


Tell = Callable[[ArchiveProgress], None]


def silent(_: ArchiveProgress) -> None:
    """Ignores the progress."""


def _in_order(backups: list[Backup]) -> list[Backup]:
    return sorted(backups, key=lambda backup: (backup.number, backup.created_at, backup.id))


def _known(backup: Backup) -> dict[tuple[str, int, int], str]:
    """The hashes of the files of a backup, by path, size and time of change."""
    return {(file.path, file.size, file.changed_ns): file.sha256 for file in backup.files}


class Archive:
    """An open archive."""

    def __init__(self, shelf: Shelf, head: Head | None) -> None:
        self.shelf = shelf
        self._head = head

    @classmethod
    def open(cls, where: Path | str, *, create: bool = False) -> Self:
        """The archive in a directory or at a URL. Raises `BackupRefused`, OSError."""
        return cls.on(shelf_at(where), create=create)

    @classmethod
    def on(cls, shelf: Shelf, *, create: bool = False) -> Self:
        """The archive on this shelf. Raises `BackupRefused`, OSError."""
        try:
            octets = shelf.read(ARCHIVE_FILE)
        except (FileNotFoundError, NotADirectoryError):
            if not create:
                raise BackupRefused(f"{shelf.shown} is no directory of backups") from None
            if not shelf.is_foreign():
                return cls(shelf, None)
            if shelf.size(ARCHIVE_FILE) is None:
                raise BackupRefused(f"{shelf.shown} holds something other than backups") from None
            # Another process has begun the archive meanwhile.
            return cls.on(shelf)
        try:
            head = msgspec.json.decode(octets, type=Head)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(f"{shelf.shown}/{ARCHIVE_FILE} cannot be read: {error}") from None
        if head.format > FORMAT:
            raise BackupRefused(
                f"{shelf.shown} has backups of format {head.format}; this version reads {FORMAT}"
            )
        return cls(shelf, head)

    # Looking

    def backups(self) -> list[Backup]:
        """The backups, oldest first. Raises `BackupDamaged`."""
        return _in_order([self._read(backup_id) for backup_id in self._ids()])

    def _readable(self) -> list[Backup]:
        """The same without those that cannot be read."""
        found = []
        for backup_id in self._ids():
            with suppress(BackupDamaged):
                found.append(self._read(backup_id))
        return _in_order(found)

    def _ids(self) -> list[str]:
        names = [name.removeprefix(f"{BACKUPS}/") for name in self.shelf.names(BACKUPS)]
        ids = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return [backup_id for backup_id in ids if NAME.fullmatch(backup_id)]

    def backup(self, backup_id: str | None) -> Backup:
        """The backup with this id, or the latest if it is None.

        Raises `BackupRefused`, and `BackupDamaged` if it cannot be read; for the latest, if any
        backup cannot: that may be the latest.
        """
        ids = self._ids()
        if not ids:
            raise BackupRefused(f"there is no backup in {self.shelf.shown}")
        if backup_id is None:
            return self.backups()[-1]
        if backup_id not in ids:
            raise BackupRefused(f"there is no backup {backup_id} in {self.shelf.shown}")
        return self._read(backup_id)

    def _read(self, backup_id: str) -> Backup:
        name = f"{BACKUPS}/{backup_id}.json"
        try:
            return msgspec.json.decode(self.shelf.read(name), type=Backup)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(f"{self.shelf.shown}/{name} cannot be read: {error}") from None

    def fetch(self, file: StoredFile, target: Path) -> None:
        """Copy a stored file to a local file, completely or not at all.

        Raises `BackupDamaged` if the contents are not those that were stored, OSError.
        """
        name = content_name(file.sha256)
        try:
            with self.shelf.open(name) as octets:
                found = put_durably(iter(lambda: octets.read(CHUNK), b""), target)
        except FileNotFoundError:
            raise BackupDamaged(f"{file.path}: {self.shelf.shown}/{name} is missing") from None
        if found != file.sha256:
            target.unlink()
            raise BackupDamaged(f"{file.path}: {self.shelf.shown}/{name} is not what was put there")

    def verify(self, backup: Backup, tell: Tell = silent) -> list[str]:
        """Read all files of a backup; returns the problems, one on each line."""
        wrong = []
        progress = ArchiveProgress(0, backup.size)
        for file in backup.files:
            name = content_name(file.sha256)
            try:
                with self.shelf.open(name) as octets:
                    found, size = _hashed(octets, None)
            except FileNotFoundError:
                wrong.append(f"{file.path}: {self.shelf.shown}/{name} is missing")
                continue
            if (found, size) != (file.sha256, file.size):
                wrong.append(f"{file.path}: {self.shelf.shown}/{name} is not what was put there")
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
        """Back up a data directory, whether its node runs or not.

        Raises `BackupRefused`, OSError.
        """
        if self.shelf.is_inside(data_directory):
            raise BackupRefused(
                f"{self.shelf.shown} is inside of the data directory, and would go with it when the"
                " node is reset; choose another place"
            )
        # A refused backup leaves no directory behind.
        expect_messages(data_directory)
        with self.shelf.locked(), moment(data_directory, link=link) as files:
            node_id = read_identity(data_directory)
            assert node_id is not None
            self._expect_node(node_id)
            created_at = now()
            before = self._readable()
            known = _known(before[-1]) if before else {}
            progress = ArchiveProgress(0, sum([file.size for file in files]))
            stored, new_bytes = [], 0
            for file in files:
                one, is_new = self._store(file, known)
                stored.append(one)
                new_bytes += file.size if is_new else 0
                progress.done += file.size
                tell(progress)
            stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%dT%H%M%SZ")
            number = before[-1].number + 1 if before else 1
            backup_id = f"{stamp}-{token_hex(2)}"
            backup = Backup(backup_id, created_at, node_id, stored, new_bytes, number)
            self.shelf.write(f"{BACKUPS}/{backup.id}.json", msgspec.json.encode(backup))
        return backup

    def _expect_node(self, node_id: str) -> None:
        """Refuse another node's archive: backups of two nodes in one archive would be confused."""
        # Another process may have begun the archive since it was opened.
        self._head = Archive.on(self.shelf, create=True)._head
        if self._head is None:
            self._head = Head(FORMAT, node_id)
            self.shelf.write(ARCHIVE_FILE, msgspec.json.encode(self._head))
        elif self._head.node_id != node_id:
            raise BackupRefused(f"{self.shelf.shown} has the backups of another node")

    def _store(
        self, file: TakenFile, known: dict[tuple[str, int, int], str]
    ) -> tuple[StoredFile, bool]:
        """Store a file's contents; returns the stored file, and whether it had to be copied."""
        sha256 = known.get((file.path, file.size, file.changed_ns))
        if sha256 is None or self.shelf.size(content_name(sha256)) != file.size:
            with file.source.open("rb") as octets:
                sha256, size = _hashed(octets, file.size)
            if size != file.size:
                raise BackupRefused(f"{file.source} has become shorter")
        stored = StoredFile(file.path, file.size, sha256, file.changed_ns)
        name = content_name(sha256)
        if self.shelf.size(name) == file.size:
            return stored, False
        if self.shelf.store(name, file.source, file.size) != sha256:
            self.shelf.remove(name)
            raise BackupRefused(f"{file.source} has changed while it was copied; try again")
        return stored, True

    def remove(self, backups: Sequence[Backup]) -> int:
        """Remove backups, and the files that only they use; returns the number of octets freed."""
        with self.shelf.locked():
            for backup in backups:
                self.shelf.remove(f"{BACKUPS}/{backup.id}.json")
            needed = {file.sha256 for backup in self.backups() for file in backup.files}
            freed = 0
            for name in self.shelf.names(FILES):
                if name.rpartition("/")[2] not in needed:
                    freed += self.shelf.size(name) or 0
                    self.shelf.remove(name)
        return freed


def content_name(sha256: str) -> str:
    """The name of the file with these contents."""
    return f"{FILES}/{sha256[:2]}/{sha256}"


def _hashed(octets: BinaryIO, size: int | None) -> tuple[str, int]:
    """The SHA-256 of the first `size` octets, or of all if it is None; and how many were read."""
    hashed, count = hashlib.sha256(), 0
    while size is None or count < size:
        chunk = octets.read(CHUNK if size is None else min(CHUNK, size - count))
        if not chunk:
            break
        hashed.update(chunk)
        count += len(chunk)
    return hashed.hexdigest(), count
