"""Backups of a broker of several processes: one of each, below `BACKUPS/process-N`.

The first process is backed up last, because its copy of the definitions is what a restored broker
begins with: it has all the queues that the others had messages of.
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
    """Where the backups of a process are, at a path or a URL."""
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


def restore_all(backups: str, target: Path, tell: Tell) -> Iterator[tuple[int, Backup]]:
    """Restore the latest backup of each process. Raises `BackupRefused`, `BackupDamaged`, OSError.

    Until the last one is there no broker starts from the directory.
    """
    number = 1
    while number == 1 or is_there(backups, number):
        archive = Archive.open(place_of(backups, number))
        chosen = archive.backup(None)
        restore(archive, chosen, directory_of(target, number), tell)
        yield number, chosen
        number += 1
        create_directory(target / PROCESSES)
    # Empty: the first process fills it with its copy.
    create_directory(target / PROCESSES / STORE)
