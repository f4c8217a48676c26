"""A message storage that is missing, beside definitions of queues.

Its disk is not mounted, or it was left out of a copy. A node that began with an empty one would
show queues without messages, and say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Stored
from warren.core.resources.disk_monitor import DirectoryGone
from warren.persist.definitions.deleted_queues import own_storage
from warren.persist.disk.cluster_file import read_known_cluster
from warren.persist.disk.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    NotADataDirectory,
    is_of_a_process,
    read_identity,
)
from warren.persist.disk.filesystem import RealFileSystem, write_whole
from warren.persist.layout.format import Checkpoint, encode_checkpoint
from warren.persist.recovery.recovery import (
    CHECKPOINT_FILE,
    FIRST_PLACE,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    STORE_DIRECTORY,
)


def is_there(data_directory: Path) -> bool:
    """Whether a node has used the storage: it writes a checkpoint before anything else."""
    store = data_directory / STORE_DIRECTORY
    return (store / CHECKPOINT_FILE).exists() or any(
        any(path.iterdir())
        for path in (store / LOG_DIRECTORY, store / QUEUES_DIRECTORY)
        if path.is_dir()
    )


def begin_storage(directory: DataDirectory) -> None:
    """Make the storage of a directory that no node has used. Raises OSError.

    Call this before the node joins its cluster: the definitions may name it as soon as it has
    joined, and a storage that is missing then counts as lost.
    """
    if directory.is_new or not directory.holds_data:
        _make(directory)


def expect_store(directory: DataDirectory, queues: Iterable[Stored], member: str | None) -> None:
    """Refuse a directory whose storage is gone while there are durable queues.

    `queues` are all definitions of queues; `member` is the node's name in its cluster, or None.
    Raises `DataDirectoryRefused`, OSError.
    """
    if is_there(directory.path):
        return
    count = sum([_is_here(stored.record, member) for stored in queues])
    if count:
        raise DataDirectoryRefused(
            f"{directory.path / STORE_DIRECTORY} with the messages of this node is missing, and"
            f" there are definitions of durable queues ({count}): put it back; is its disk mounted?"
            f" If it is lost for good, {_way_out(directory.path)}"
        )


def free_bytes(directory: DataDirectory) -> int:
    """The free space on the disk of an open directory.

    Raises `DirectoryGone` if the directory or the storage is not where it was, OSError.
    """
    if not directory.is_in_place or not is_there(directory.path):
        raise DirectoryGone(f"{directory.path}, or what the node had there, is gone")
    status = os.statvfs(directory.path)
    return status.f_bavail * status.f_frsize


def make_empty(data_directory: Path) -> bool:
    """Make a storage without messages in place of one that is lost; False if there is one.

    Raises `DataDirectoryRefused`, also while a node runs there; OSError.
    """
    if read_identity(data_directory) is None:
        raise NotADataDirectory(f"{data_directory} is empty: no node has used it")
    with DataDirectory.open(data_directory) as directory:
        if is_there(data_directory):
            return False
        if _is_of_a_cluster(data_directory):
            raise DataDirectoryRefused(
                f"data directory {data_directory} is of a member of a cluster:"
                f" {_way_out(data_directory)}"
            )
        _make(directory)
    return True


def _make(directory: DataDirectory) -> None:
    filesystem = RealFileSystem()
    store = directory.path / STORE_DIRECTORY
    filesystem.make_directory(store)
    checkpoint = Checkpoint(bytes.fromhex(directory.node_id), FIRST_PLACE, 1)
    write_whole(filesystem, store / CHECKPOINT_FILE, encode_checkpoint(checkpoint))


def _is_here(record: object, member: str | None) -> bool:
    if not isinstance(record, QueueRecord) or not record.durable or record.exclusive:
        return False
    return member is None or bool(own_storage(record, member))


def _way_out(data_directory: Path) -> str:
    if _is_of_a_cluster(data_directory):
        # The other nodes must not take an empty copy for the one that they know.
        return "have the cluster forget this node, and start it with an empty data directory"
    return f"`warren store repair --without-messages {data_directory}` makes an empty one"


def _is_of_a_cluster(data_directory: Path) -> bool:
    return read_known_cluster(data_directory) is not None and not is_of_a_process(data_directory)
