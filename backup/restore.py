"""Puts the files of a backup into an empty directory, from which a node can be started.

Everything is compared with its hash while it is copied. The identity of the node comes last: a
directory in which the copying was cut off is no data directory, and no node starts from it.
"""

from __future__ import annotations

import os
from pathlib import Path

from warren.backup.archive import Archive, Backup, Progress, Tell, copy_durably, silent
from warren.backup.errors import BackupDamaged, BackupRefused
from warren.persist.data_directory import (
    IDENTITY_FILE,
    NOT_OURS_BUT_HARMLESS,
    create_directory,
    sync_directory,
)


def restore(archive: Archive, backup: Backup, target: Path, tell: Tell = silent) -> None:
    """Make `target` what the data directory was. Raises `BackupRefused`, `BackupDamaged`, OSError.

    The node that starts from it is the one that was backed up, under whatever name.
    """
    if target.exists() and (not target.is_dir() or set(os.listdir(target)) - NOT_OURS_BUT_HARMLESS):
        raise BackupRefused(f"{target} is not empty")
    create_directory(target)
    progress = Progress(0, backup.size)
    for file in sorted(backup.files, key=lambda file: file.path == IDENTITY_FILE):
        path = target / file.path
        if target not in path.parents or ".." in path.parts:
            raise BackupDamaged(f"the backup names a file outside of a data directory: {file.path}")
        create_directory(path.parent)
        try:
            found = copy_durably(archive.content(file), path, file.size)
        except FileNotFoundError:
            raise BackupDamaged(f"{file.path}: {archive.content(file)} is missing") from None
        if found != file.sha256:
            path.unlink()
            raise BackupDamaged(f"{file.path}: {archive.content(file)} is not what was put there")
        progress.done += file.size
        tell(progress)
    sync_directory(target)
