"""How detailed the histories of single objects are: the more objects, the coarser.

A busy queue has a sample every 5 seconds for ten minutes, and every minute for an hour. When so
many objects are busy that this would take more than `HISTORY_OCTETS_MAX`, all intervals become
longer by the same factor, so that all histories together stay within that limit.
"""

from __future__ import annotations

from warren.mgmt.statistics.history import RETENTION_OF_ONE, room_for

HISTORY_OCTETS_MAX = 96 << 20
"""Limit of all samples of queues, exchanges, channels, connections and virtual hosts together."""

ROOM = room_for(RETENTION_OF_ONE)
"""The most octets that one object's history takes in full detail; about 8,500 of them fit."""


class Detail:
    """How detailed histories are at the moment.

    `coarse` is the factor by which their intervals are longer, 1 for full detail.

    `wall_offset_s` plus a time of the node's clock is the time of day; samples stand at multiples
    of their interval in it.
    """

    def __init__(self, octets_max: int = HISTORY_OCTETS_MAX) -> None:
        self._octets_max = octets_max
        self.coarse = 1
        self.wall_offset_s = 0.0

    def settle(self, histories: int) -> bool:
        """Choose the factor for so many histories. True if existing ones must be cut to it."""
        before = self.coarse
        self.coarse = max(1, -(-histories * ROOM // self._octets_max))
        return self.coarse > before
