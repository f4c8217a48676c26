"""A snapshot, and its file `snapshot.json`, which describes it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warren.persist.snapshots.pin_owner import Owner, decode_owner
from warren.persist.snapshots.pins import LEASE_FILE, UNFINISHED, locked, remove
from warren.spark_export.errors import SnapshotGone, StoreRefused
from warren.spark_export.snapshot.deliveries import Deliveries, Spans

if TYPE_CHECKING:
    from warren.spark_export.snapshot.unit import SnapshotFiles

log = logging.getLogger("warren.spark_export")

FORMAT = 1

LEASE_S_MAX = 10 * 366 * 86400
"""Ten years: use an export to keep messages for longer."""


@dataclass(frozen=True)
class PinnedQueue:
    """The part of a snapshot for one queue; positions are None if it has no rows.

    A queue with priorities has one `PinnedQueue` for each level in use, with consecutive ids, and
    positions of its own in each. `octets` are those of the records. `unacked` are ranges of
    positions, end exclusive, that were out for acknowledgement just before the snapshot, and a
    consumer may have had the messages before `redelivered_below`; None if unknown. `unreadable`
    counts places in its index that could not be read. `retained`: these messages were acknowledged,
    and are no longer in the queue.

    `cluster_id` is the same at all nodes of a cluster, unlike `queue_id`; None if only one node is
    read.
    """

    vhost: str
    name: str
    queue_id: int
    rows: int
    octets: int
    first_position: int | None
    last_position: int | None
    unacked: Spans | None
    unreadable: int
    cluster_id: int | None = None
    retained: bool = False
    redelivered_below: int | None = None

    @property
    def stream_id(self) -> int:
        """The id by which streams distinguish it from a deleted queue of the same name."""
        return self.queue_id if self.cluster_id is None else self.cluster_id

    @property
    def deliveries(self) -> Deliveries:
        return Deliveries(self.unacked, self.redelivered_below)


class PinnedStore(Protocol):
    """The store that is read: a snapshot of this machine, or snapshots of the nodes of a cluster.

    `name` is its name in a stream's offsets (`stores.Store.open`).
    """

    @property
    def name(self) -> str: ...

    @property
    def queues(self) -> tuple[PinnedQueue, ...]: ...

    @property
    def unasked(self) -> str | None:
        """Why nothing is known about deliveries: a node that runs could not be asked."""
        ...

    def files_of(self, queue: PinnedQueue) -> SnapshotFiles:
        """The files of one of its queues."""
        ...

    def unreadable_in(self, queues: Iterable[PinnedQueue]) -> int:
        """The number of unreadable places that may have had messages of these queues."""
        ...

    def extend(self, lease_s: float) -> object:
        """Keep it for `lease_s` seconds from now on. Raises `SnapshotGone`, OSError."""
        ...

    def release(self) -> None:
        """Remove it; no error if it is gone already. Raises OSError."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """A `PinnedStore` in a directory of this machine.

    `node_id` has 32 hex digits. `octets` is the size of all records, `log_octets` that of the files
    it holds; `copied`: these are copies and not links. `lost` counts messages whose record was not
    found: they are in the snapshot, and decoding reports them as missing. `unreadable` counts
    unreadable places that belong to no single queue: those of the journal and the checkpoint.
    Messages in these places, or in unreadable places of a queue's index, are not rows of any queue.

    `cursor` is the name of the cursor that keeps the snapshot; then `expires_us` does not count.
    Without a cursor, the snapshot is no longer needed when its `owner` process has ended.
    `unasked`: see `PinnedStore`; None also for snapshots of earlier versions.
    """

    id: str
    directory: Path
    created_us: int
    expires_us: int
    node_id: str
    queues: tuple[PinnedQueue, ...]
    octets: int
    log_octets: int
    copied: bool
    lost: int
    unreadable: int
    cursor: str | None = None
    owner: Owner | None = None
    unasked: str | None = None

    @property
    def name(self) -> str:
        return str(self.directory)

    def files_of(self, queue: PinnedQueue) -> SnapshotFiles:
        from warren.spark_export.snapshot.unit import LocalFiles

        return LocalFiles(self.directory)

    @property
    def rows(self) -> int:
        return sum(queue.rows for queue in self.queues)

    @property
    def damage(self) -> int:
        """The number of known damages; the records themselves have not been read."""
        return self.lost + self.unreadable_in(self.queues)

    def unreadable_in(self, queues: Iterable[PinnedQueue]) -> int:
        return self.unreadable + sum(queue.unreadable for queue in queues)

    def release(self) -> None:
        remove(self.directory)

    def extend(self, lease_s: float) -> Snapshot:
        """Keep the snapshot for longer; one of a cursor is kept anyway."""
        with locked(self.directory) as ours:
            if not ours:
                raise SnapshotGone.at(self.directory)
            if self.cursor is not None:
                return self
            extended = replace(
                # A snapshot that is extended no longer depends on its owner.
                self,
                expires_us=now_us() + int(lease_s * 1e6),
                owner=None,
            )
            try:
                write_lease(extended, self.directory)
            except FileNotFoundError:
                # Releasing a snapshot does not take the lock.
                raise SnapshotGone.at(self.directory) from None
        return extended

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def tell_unasked(store: PinnedStore) -> None:
    """Log why columns are null, if they are because a node that runs could not be asked."""
    if store.unasked is not None:
        log.warning(
            "state_unknown reason=%r: the columns state and redelivered are null", store.unasked
        )


def load_snapshot(directory: Path) -> Snapshot:
    """The snapshot in this directory; its lease and its other files are not checked.

    Raises `SnapshotGone`, `StoreRefused`, OSError.
    """
    try:
        fields = json.loads((directory / LEASE_FILE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotGone.at(directory) from None
    except ValueError:
        # The file was complete when it was renamed, so a power failure has cut it.
        raise SnapshotGone.cut(directory) from None
    return _decode(fields, directory)


def write_lease(snapshot: Snapshot, directory: Path) -> None:
    fields = {
        "format": FORMAT,
        "id": snapshot.id,
        "node_id": snapshot.node_id,
        "created_us": snapshot.created_us,
        "expires_us": snapshot.expires_us,
        "octets": snapshot.octets,
        "log_octets": snapshot.log_octets,
        "copied": snapshot.copied,
        "lost": snapshot.lost,
        "unreadable": snapshot.unreadable,
        "cursor": snapshot.cursor,
        "owner": snapshot.owner,
        "unasked": snapshot.unasked,
        "queues": [
            {
                "vhost": queue.vhost,
                "name": queue.name,
                "queue_id": f"{queue.queue_id:016x}",
                "rows": queue.rows,
                "octets": queue.octets,
                "first_position": queue.first_position,
                "last_position": queue.last_position,
                "unacked": queue.unacked,
                "unreadable": queue.unreadable,
                "retained": queue.retained,
                "redelivered_below": queue.redelivered_below,
            }
            for queue in snapshot.queues
        ],
    }
    unfinished = directory / f"{LEASE_FILE}{UNFINISHED}"
    unfinished.write_text(json.dumps(fields), "utf-8")
    os.rename(unfinished, directory / LEASE_FILE)


def _decode(fields: Any, directory: Path) -> Snapshot:
    try:
        if fields["format"] > FORMAT:
            raise StoreRefused(
                f"{directory} is a snapshot of format {fields['format']}, this version reads"
                f" {FORMAT}"
            )
        queues = tuple(decode_queue(queue) for queue in fields["queues"])
        return Snapshot(
            id=fields["id"],
            directory=directory,
            created_us=fields["created_us"],
            expires_us=fields["expires_us"],
            node_id=fields["node_id"],
            queues=queues,
            octets=fields["octets"],
            log_octets=fields["log_octets"],
            copied=fields["copied"],
            lost=fields["lost"],
            unreadable=fields["unreadable"],
            cursor=fields["cursor"],
            owner=decode_owner(fields.get("owner")),
            unasked=fields.get("unasked"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreRefused(f"{directory / LEASE_FILE} cannot be read: {error!r}") from None


def decode_queue(fields: Any) -> PinnedQueue:
    unacked = fields["unacked"]
    return PinnedQueue(
        vhost=fields["vhost"],
        name=fields["name"],
        queue_id=int(fields["queue_id"], 16),
        rows=fields["rows"],
        octets=fields["octets"],
        first_position=fields["first_position"],
        last_position=fields["last_position"],
        unacked=None if unacked is None else tuple((start, end) for start, end in unacked),
        unreadable=fields["unreadable"],
        cluster_id=fields.get("cluster_id"),
        retained=fields.get("retained", False),
        redelivered_below=fields.get("redelivered_below"),
    )


def now_us() -> int:
    return int(time.time() * 1e6)


def utc_text(us: int) -> str:
    """A time for people."""
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds")
