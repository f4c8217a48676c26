"""How detailed the histories of single things are: the more of them there are, the coarser.

A busy queue has a sample every 5 seconds for ten minutes, and every minute for an hour. When so
many things are busy that this would take more than `HISTORY_OCTETS_MAX`, all distances become
longer by the same factor, so that the histories of all of them together stay within it.
"""

from __future__ import annotations

from warren.mgmt.statistics.history import RETENTION_OF_ONE, room_for

HISTORY_OCTETS_MAX = 96 << 20
"""The samples of all queues, exchanges, channels, connections and virtual hosts together."""

ROOM = room_for(RETENTION_OF_ONE)
"""The octets one of them may take in full detail; about 8,500 may."""


class Detail:
    """`coarse` is the factor, 1 for full detail. `wall_offset_s` is what to add to times of the
    node's clock for the time of day, in which samples stand at whole distances."""

    def __init__(self, octets_max: int = HISTORY_OCTETS_MAX) -> None:
        self._octets_max = octets_max
        self.coarse = 1
        self.wall_offset_s = 0.0

    def settle(self, histories: int) -> bool:
        """Choose the factor for so many. Whether the histories there are must be cut to it."""
        before = self.coarse
        self.coarse = max(1, -(-histories * ROOM // self._octets_max))
        return self.coarse > before
