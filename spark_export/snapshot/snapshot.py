"""Snapshots of a store: made beside a running node, and read independently of it.

The steps (docs/storage-format.md section 8): first the index is read, then the log files with the
records of its entries are linked. A message that was there before the snapshot and is there after
it is in it, completely. Between the two steps, messages are removed, and files with them:

- a file that was rewritten is found under its higher generation;
- if the record of an entry is no longer found, neither in a file nor in the table of a rewritten
  file, the entry is looked up in the index again; if it has gone there too, the message was removed
  meanwhile and is left out; if it is still there, the message is damaged, in the snapshot as well,
  and decoding it reports that.

A snapshot is for reading within minutes or hours, on this machine. It is not synced; a snapshot
that a power failure has damaged is not opened again.

The store is not locked, no LMDB transaction is held, and nothing is written outside the directory
of the snapshot. That is `store/pins/<id>`, where the node looks after it
(`persist/snapshots/pins.py`). If the caller may not write there, a snapshot is made in the
directory that the caller names, or in one for temporary files, and the next snapshot made there
cleans up. Where no links can be made, files are copied.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.persist.snapshots.pin_owner import Owner
from warren.persist.snapshots.pins import NAME, PINS_DIRECTORY, UNFINISHED, is_unfinished
from warren.spark_export.errors import OptionRefused, SnapshotGone, StoreRefused
from warren.spark_export.snapshot.creation import Creation, read_node_id
from warren.spark_export.snapshot.plan import ChoosesQueues
from warren.spark_export.snapshot.snapshot_file import (
    PinnedQueue,
    Snapshot,
    load_snapshot,
    now_us,
    tell_unasked,
    utc_text,
)
from warren.spark_export.snapshot.unit import ENTRY, entries_path

__all__ = [
    "LEASE_S",
    "PinnedQueue",
    "Snapshot",
    "create",
    "list_snapshots",
    "load_snapshot",
    "open_snapshot",
    "pins_directory",
    "snapshot_path",
    "tell_unasked",
]

LEASE_S = 3600.0


def create(
    data_directory: Path,
    selector: ChoosesQueues,
    *,
    lease_s: float = LEASE_S,
    directory: Path | None = None,
    needs_state: bool = False,
    cursor: str | None = None,
    owner: Owner | None = None,
) -> Snapshot:
    """Make a snapshot of the selected durable queues; it is complete when this returns.

    It is made in the store, or below `directory` if one is given. A running node is asked which
    messages are out for acknowledgement, and which were delivered before; if it cannot be asked,
    that is unknown or, with `needs_state`, refused. With a `cursor` the snapshot is kept as long as
    the cursor exists (`cursor.py`), whatever its lease; with an `owner`, no longer than that
    process lives.

    Raises `StoreRefused`, `QueueUnknown`, `OptionRefused`, OSError.
    """
    return Creation(data_directory, selector, lease_s, directory, needs_state, cursor, owner).run()


def open_snapshot(directory: Path) -> Snapshot:
    """The snapshot in this directory. Raises `SnapshotGone`, `StoreRefused`, OSError."""
    snapshot = load_snapshot(directory)
    if snapshot.cursor is None and snapshot.expires_us <= now_us():
        raise SnapshotGone(
            f"the lease of snapshot {snapshot.id} ran out at {utc_text(snapshot.expires_us)}; take"
            " a new one, with a longer lease if need be"
        )
    for queue in snapshot.queues:
        if queue.rows:
            _check_whole(snapshot.directory, queue)
    return snapshot


def list_snapshots(data_directory: Path) -> list[Snapshot]:
    """The snapshots in the store, the oldest first, including those whose lease has run out.

    Raises `StoreRefused`, OSError.
    """
    read_node_id(data_directory)
    pins = pins_directory(data_directory)
    found = []
    for name in RealFileSystem().names(pins):
        if not is_unfinished(pins / name):
            with suppress(SnapshotGone, StoreRefused):
                found.append(load_snapshot(pins / name))
    return sorted(found, key=lambda snapshot: (snapshot.created_us, snapshot.id))


def snapshot_path(data_directory: Path, snapshot: str, elsewhere: Path | None = None) -> Path:
    """The directory of the snapshot with this id. Raises `OptionRefused` if it is not an id."""
    if not NAME.fullmatch(snapshot) or snapshot.endswith(UNFINISHED):
        raise OptionRefused(
            f"{snapshot!r} is no id of a snapshot, such as 20260131T120000Z-89abcdef"
        )
    return (elsewhere or pins_directory(data_directory)) / snapshot


def pins_directory(data_directory: Path) -> Path:
    return data_directory / STORE_DIRECTORY / PINS_DIRECTORY


def _check_whole(directory: Path, queue: PinnedQueue) -> None:
    """Raise `SnapshotGone` if the entries are gone, or were cut by a power failure."""
    try:
        size = entries_path(directory, queue.queue_id).stat().st_size
    except FileNotFoundError:
        raise SnapshotGone.at(directory) from None
    if size < queue.rows * ENTRY.itemsize:
        raise SnapshotGone.cut(directory)
