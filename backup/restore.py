"""Puts the files of a backup into an empty directory, from which a node can be started.

Every file is compared with its hash while it is copied. The file with the identity of the node is
copied last: if copying is cut off before, the directory is not a data directory, and no node starts
from it.
"""

from __future__ import annotations

import os
from pathlib import Path

from warren.backup.alone import make_alone
from warren.backup.archive import (
    Archive,
    ArchiveProgress,
    Backup,
    StoredFile,
    Tell,
    silent,
)
from warren.backup.errors import BackupDamaged, BackupRefused
from warren.persist.disk.data_directory import (
    IDENTITY_FILE,
    NOT_OURS_BUT_HARMLESS,
    create_directory,
    sync_directory,
)


def restore(
    archive: Archive,
    backup: Backup,
    target: Path,
    tell: Tell = silent,
    *,
    alone: bool = False,
) -> list[str]:
    """Make `target` the data directory that was backed up.

    The node that starts from it has the identity of the node that was backed up, whatever its name.
    `alone`: a member of a cluster becomes a node without a cluster. Returns the queues, as
    `vhost/name`, of which that member had no copy. Raises `BackupRefused`, `BackupDamaged`,
    OSError.
    """
    if target.exists() and (not target.is_dir() or set(os.listdir(target)) - NOT_OURS_BUT_HARMLESS):
        raise BackupRefused(f"{target} is not empty")
    create_directory(target)
    progress = ArchiveProgress(0, backup.size)

    def put(file: StoredFile) -> None:
        _put(archive, file, target)
        progress.done += file.size
        tell(progress)

    for file in backup.files:
        if file.path != IDENTITY_FILE:
            put(file)
    without_copy = make_alone(target) if alone else []
    for file in backup.files:
        if file.path == IDENTITY_FILE:
            put(file)
    sync_directory(target)
    return without_copy


def _put(archive: Archive, file: StoredFile, target: Path) -> None:
    path = target / file.path
    if target not in path.parents or ".." in path.parts:
        raise BackupDamaged(f"the backup names a file outside of a data directory: {file.path}")
    create_directory(path.parent)
    archive.fetch(file, path)
