"""A mirror's copy, as far as the leader knows it."""

from __future__ import annotations

from typing import NamedTuple

from warren.mirror.replication.copies.former_copy import Kept


class SyncProgress(NamedTuple):
    """How many messages a mirror was sent, of how many there are to send, and since when."""

    sent: int
    total: int
    began_at: float

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the pace so far; None before any message was sent."""
        if not self.sent:
            return None
        return round((now - self.began_at) * max(self.total - self.sent, 0) / self.sent, 1)


class KnownCopy:
    """A mirror and its copy, as the leader knows them."""

    def __init__(self, has_batch: int) -> None:
        self.has_batch = has_batch
        # The mirror has everything from these positions on; None before it was told to start.
        self.firsts: list[int] | None = None
        self.in_sync = False
        # Whether the leader has lost messages by damage that this copy need not have, as it was not
        # in sync then.
        self.may_lack = False
        # Whether the definition says that it is in sync, and whether it is being removed there.
        self.is_named = False
        self.is_leaving = False
        # The batch that tells the mirror to start.
        self.begins_with = 0
        # During a synchronisation: up to which position the mirror was sent everything, per level.
        self.sync: list[int] | None = None
        # The synchronisation goes on when the mirror has reported this batch; 0: it waits for none.
        self.awaits_batch = 0
        # The last slice that the mirror was sent, until it has the batch with the slice's marker.
        self.slice = b""
        self.slice_batch = 0
        self.slice_bytes = 0
        # How many batches other than those of slices there were before the last pause.
        self.used = 0
        self.sent = 0
        self.began_at = 0.0
        # What the mirror's node has in a former copy; and per level the range of today's positions
        # in which the former copy may have messages of the queue.
        self.has_kept: Kept | None = None
        self.kept: list[tuple[int, int]] = []
