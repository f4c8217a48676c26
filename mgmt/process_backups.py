"""Backups of a broker of several processes: one of each, below `BACKUPS/process-N`.

The first process is backed up last, because a restored broker begins with that process's copy of
the definitions: so it has every queue that the other backups have messages of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from warren.backup.archive import Archive, Backup, Tell
from warren.backup.errors import BackupRefused
from warren.backup.restore import restore
from warren.mgmt.processes.directory import STORE, largest_first
from warren.mgmt.processes.plan import directory_of
from warren.persist.disk.data_directory import PROCESSES, create_directory


def place_of(backups: str, number: int) -> str:
    """The place of a process's backups, below a path or a URL."""
    path, mark, query = backups.partition("?")
    return f"{path.rstrip('/')}/process-{number}{mark}{query}"


def create_all(data_directory: Path, backups: str, tell: Tell) -> Iterator[tuple[int, Backup]]:
    """Back up each process. Raises `BackupRefused`, OSError."""
    for number in [*largest_first(data_directory / PROCESSES), 1]:
        archive = Archive.open(place_of(backups, number), create=True)
        yield number, archive.create(directory_of(data_directory, number), tell)


def is_there(backups: str, number: int = 1) -> bool:
    """Whether there are backups of a process. Raises OSError."""
    try:
        Archive.open(place_of(backups, number))
    except BackupRefused:
        return False
    return True


def archives(backups: str) -> list[tuple[str, Archive]]:
    """The archives at a place: of a node, and of the processes of a broker.

    Each has a text to print before every line about it, such as `process 2: `; it is empty for a
    node. Raises `BackupRefused`, OSError.
    """
    found = []
    number = 1
    while is_there(backups, number):
        found.append((f"process {number}: ", Archive.open(place_of(backups, number))))
        number += 1
    try:
        return [("", Archive.open(backups)), *found]
    except BackupRefused:
        if not found:
            raise
        return found


def archive_of_one(backups: str) -> Archive:
    """The archive of one node or process. Raises `BackupRefused`, OSError."""
    try:
        return Archive.open(backups)
    except BackupRefused:
        if not is_there(backups):
            raise
        one = Archive.open(place_of(backups, 1)).shelf.shown
        raise BackupRefused(
            f"these are backups of several processes: choose one, such as {one}"
        ) from None


def restore_all(backups: str, target: Path, tell: Tell) -> Iterator[tuple[int, Backup]]:
    """Restore the latest backup of each process. Raises `BackupRefused`, `BackupDamaged`, OSError.

    No broker starts from the directory until the last backup is restored.
    """
    number = 1
    while number == 1 or is_there(backups, number):
        archive = Archive.open(place_of(backups, number))
        chosen = archive.backup(None)
        restore(archive, chosen, directory_of(target, number), tell)
        yield number, chosen
        number += 1
        create_directory(target / PROCESSES)
    # The store is empty: the first process fills it with its copy.
    create_directory(target / PROCESSES / STORE)
