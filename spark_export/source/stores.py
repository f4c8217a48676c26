"""The makers of snapshots: this process, from a data directory, or a node, over HTTP.

The readers of batches and streams are the same for both: they use a `Store`, which makes snapshots,
and `SnapshotFiles` (`unit.py`), from which tasks read.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from warren.persist.snapshots.pin_owner import Owner
from warren.spark_export.errors import SnapshotGone, StoreRefused
from warren.spark_export.node_urls import parse_node_url
from warren.spark_export.remote.remote_store import RemoteStore
from warren.spark_export.snapshot.cursor import take_cursor
from warren.spark_export.snapshot.options import ReadOptions
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import (
    create,
    load_snapshot,
    open_snapshot,
    snapshot_path,
)
from warren.spark_export.snapshot.snapshot_file import PinnedStore


class SnapshotPlace(Protocol):
    """The place of one snapshot; can be pickled."""

    def open(self) -> PinnedStore:
        """Open the snapshot. Raises `SnapshotGone`, `StoreRefused`, OSError."""
        ...


class StreamCursor(Protocol):
    """A cursor that this stream holds (`cursor.py`)."""

    def release_others(self, needed: Collection[str]) -> None:
        """Remove the cursor's snapshots, except those with these names. Raises OSError."""
        ...

    def why_gone(self, name: str) -> str | None:
        """Why one of the cursor's snapshots is gone; None if unknown. Raises OSError."""
        ...

    def close(self) -> None:
        """Release the cursor for other streams."""
        ...


class Store(Protocol):
    """Makes snapshots, and finds them again by their names in offsets."""

    snapshot_every_s: float
    """The least time between two snapshots of a stream."""

    def create(
        self,
        selector: QueueSelector,
        *,
        lease_s: float,
        needs_state: bool,
        cursor: str | None = None,
        owner: Owner | None = None,
    ) -> PinnedStore:
        """Make a snapshot, like `snapshot.create`.

        Raises `StoreRefused`, `QueueUnknown`, `OptionRefused`, OSError.
        """
        ...

    def place_of(self, snapshot: PinnedStore) -> SnapshotPlace:
        """The place of a snapshot, for opening it in another process and without a login."""
        ...

    def named(self, snapshot: str) -> PinnedStore:
        """The snapshot that a user names. Raises `OptionRefused`, `SnapshotGone`,
        `StoreRefused`."""
        ...

    def open(self, name: str) -> PinnedStore:
        """The snapshot of an offset. Raises `SnapshotGone`, `StoreRefused`, OSError."""
        ...

    def release(self, name: str) -> None:
        """Remove the snapshot of an offset; no error if it is gone. Raises OSError."""
        ...

    def take_cursor(self, name: str, octets_max: int | None) -> StreamCursor:
        """Take a cursor, like `cursor.take_cursor`. Raises `CursorInUse`, `StoreRefused`,
        OSError."""
        ...


def store_of(options: ReadOptions) -> Store:
    """The store that the options name. Raises `OptionRefused`."""
    if options.node_url is not None:
        return RemoteStore(
            *parse_node_url(options.node_url, options.ca_file, options.username, options.password)
        )
    directory = options.snapshot_directory
    return LocalStore(options.data_directory, None if directory is None else Path(directory))


@dataclass(frozen=True)
class LocalPlace:
    directory: Path

    def open(self) -> PinnedStore:
        return open_snapshot(self.directory)


class LocalStore:
    """A data directory of this machine; snapshots are kept in it or `elsewhere`."""

    snapshot_every_s = 0.5

    def __init__(self, data_directory: Path, elsewhere: Path | None) -> None:
        self._data_directory = data_directory
        self._elsewhere = elsewhere

    def create(
        self,
        selector: QueueSelector,
        *,
        lease_s: float,
        needs_state: bool,
        cursor: str | None = None,
        owner: Owner | None = None,
    ) -> PinnedStore:
        return create(
            self._data_directory,
            selector,
            lease_s=lease_s,
            directory=self._elsewhere,
            needs_state=needs_state,
            cursor=cursor,
            owner=owner,
        )

    def place_of(self, snapshot: PinnedStore) -> SnapshotPlace:
        return LocalPlace(Path(snapshot.name))

    def named(self, snapshot: str) -> PinnedStore:
        return open_snapshot(snapshot_path(self._data_directory, snapshot, self._elsewhere))

    def open(self, name: str) -> PinnedStore:
        return open_snapshot(Path(name))

    def release(self, name: str) -> None:
        # Only snapshots are removed, whatever the checkpoint says.
        with suppress(SnapshotGone, StoreRefused):
            load_snapshot(Path(name)).release()

    def take_cursor(self, name: str, octets_max: int | None) -> StreamCursor:
        return take_cursor(self._data_directory, name, octets_max, self._elsewhere)
