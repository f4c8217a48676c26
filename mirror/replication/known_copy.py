"""What the leader of a mirrored queue knows of the copy that a mirror has."""

from __future__ import annotations

from typing import NamedTuple

from warren.mirror.replication.former_copy import Kept


class SyncProgress(NamedTuple):
    """How many messages a mirror was sent, of how many there are to send, and since when."""

    sent: int
    total: int
    began_at: float

    def seconds_left(self, now: float) -> float | None:
        """An estimate by what was sent so far; None before anything was."""
        if not self.sent:
            return None
        return round((now - self.began_at) * max(self.total - self.sent, 0) / self.sent, 1)


class KnownCopy:
    """What the leader knows of one mirror."""

    def __init__(self, has_batch: int) -> None:
        self.has_batch = has_batch
        # It has everything from these positions on; None before it was told to start.
        self.firsts: list[int] | None = None
        self.in_sync = False
        # Whether the definition says so, and whether it is about to say so no more.
        self.is_named = False
        self.is_leaving = False
        # The batch that tells it to start.
        self.begins_with = 0
        # While it is sent the rest: per level, up to which position it was sent everything.
        self.sync: list[int] | None = None
        self.awaits_batch = 0
        # The last slice it was sent, until it has the batch with its marker.
        self.slice = b""
        self.slice_batch = 0
        self.slice_bytes = 0
        # Batches so far that were no slices.
        self.used = 0
        self.sent = 0
        self.began_at = 0.0
        # What it has from before; and what of that is still in the queue, per level: from which
        # position up to which.
        self.has_kept: Kept | None = None
        self.kept: list[tuple[int, int]] = []
