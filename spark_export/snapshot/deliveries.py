"""What a snapshot knows about deliveries: which messages are unacknowledged, and which a consumer
may have had before.

A node knows both while it runs, and is asked. In the store of a stopped node nothing is
unacknowledged, and messages are redelivered as they will be when the node starts again: after a
stop in order those that were delivered once, which the file `clean` says; after a crash all.

The file is removed when the node starts. If it has started while the snapshot was being made, it
is unknown which messages are redelivered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from warren.persist.disk.filesystem import FileSystem, read_whole
from warren.persist.recovery.recovery import CHECKPOINT_FILE, CLEAN_FILE, STORE_DIRECTORY
from warren.spark_export.errors import StoreRefused
from warren.spark_export.snapshot.node_state import NodeAnswer, Span, ask, is_running

Spans: TypeAlias = tuple[Span, ...]
"""Ranges of positions, ascending, ends excluded."""


class Deliveries(NamedTuple):
    """What is known about the deliveries of a queue, or of one level of it; None if unknown.

    `unacked`: the positions that are out for acknowledgement. `redelivered_below`: a consumer may
    have had the messages before this position.
    """

    unacked: Spans | None = None
    redelivered_below: int | None = None


UNKNOWN = Deliveries()


class KnownDeliveries:
    """Finds out what is known, for the queues of a snapshot.

    It is made before the index is read: a message that is acknowledged in between is in neither.
    `unasked` is the reason why a running node could not be asked; None if it was, or is stopped.
    """

    def __init__(
        self, filesystem: FileSystem, data_directory: Path, queue_ids: Collection[int], needed: bool
    ) -> None:
        """Raises `StoreRefused` if a node that runs cannot be asked, and that is `needed`."""
        self._filesystem = filesystem
        self._data_directory = data_directory
        self._answer = NodeAnswer({}, frozenset(queue_ids))
        self._stop = self._read_stop()
        self.running = is_running(data_directory) is not False
        self.unasked: str | None = None
        if self.running:
            try:
                self._answer = ask(data_directory, queue_ids)
            except StoreRefused as refusal:
                if needed:
                    raise
                self.unasked = str(refusal)

    def of_running(self, level: int, queue_id: int) -> Deliveries:
        """What the node said of a level of a queue."""
        if queue_id in self._answer.elsewhere:
            return UNKNOWN
        unacked, below = self._answer.levels.get(level, ((), 0))
        return Deliveries(tuple(unacked), below)

    def is_stopped_since(self) -> bool:
        """Whether nothing has been published or delivered since then by a node that did not run."""
        # Each start of a node writes another checkpoint before that.
        return self._stop == self._read_stop()

    def _read_stop(self) -> tuple[bytes | None, ...]:
        store = self._data_directory / STORE_DIRECTORY
        return tuple(
            read_whole(self._filesystem, store / name) for name in (CHECKPOINT_FILE, CLEAN_FILE)
        )


def of_stopped(
    level: int, delivered_below: Mapping[int, int] | None, end: int, *, marked: bool
) -> Deliveries:
    """Return what is known about a level of a queue after its node has stopped.

    `delivered_below` are the positions from which nothing was delivered, by level; None after a
    crash. `end` is behind all positions. Messages of a queue that is not `marked` never come as
    redelivered.
    """
    if not marked:
        return Deliveries((), 0)
    return Deliveries((), end if delivered_below is None else delivered_below.get(level, 0))
