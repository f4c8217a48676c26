"""Errors of reading stores and of publishing messages."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Self

from warren.persist.snapshots.pins import read_early_release


class SparkExportError(Exception):
    """The base of these errors; the text says what is wrong and what to do."""


class OptionRefused(SparkExportError):
    """An option does not exist, or cannot have this value."""


class StoreRefused(SparkExportError):
    """There is no store, or a later version wrote it, or the user may not read it."""


class NodeSilent(StoreRefused):
    """A node does not answer."""


class ExportRunning(StoreRefused):
    """Another process writes this export."""


class QueueUnknown(SparkExportError):
    """The store has no definition of a queue that was named."""


class SnapshotGone(SparkExportError):
    """A snapshot was released, or its lease has run out."""

    @classmethod
    def at(cls, directory: Path) -> Self:
        early = read_early_release(directory)
        if early is not None:
            return cls(
                f"snapshot {directory.name} was released before its time: all snapshots together"
                f" kept {early.octets} bytes on the disk, snapshot_limit of the node was"
                f" {early.octets_max}, and it was the oldest; take a new one (call load again),"
                " release those not needed (warren export snapshot list), or raise that limit"
            )
        if not os.path.isdir(directory.parent):
            return cls(
                f"{platform.node()} sees no directory {directory.parent}, where snapshot"
                f" {directory.name} was made: read through the node instead (load"
                " warren://node:15672), or set snapshotDirectory to a directory that the driver and"
                " all executors see"
            )
        return cls(f"there is no snapshot at {directory}: it was released, or its lease ran out")

    @classmethod
    def cut(cls, directory: Path) -> Self:
        return cls(f"snapshot {directory} did not survive a power failure; take a new one")


class CursorInUse(SparkExportError):
    """Another stream reads with this cursor, or the cursor is of another node."""


class DataLost(SparkExportError):
    """Messages that should have been read are gone (`failOnDataLoss`)."""


class TableRefused(SparkExportError):
    """A table of a lakehouse cannot be reached, or cannot take these rows."""


class BatchRefused(TableRefused):
    """Another batch of the table excludes this one."""


class RecordDamaged(SparkExportError):
    """A record is not as it was written (mode FAILFAST)."""


class SparkRefused(SparkExportError):
    """Spark cannot be started."""


class PublishFailed(SparkExportError):
    """A message was returned, refused or never confirmed."""
