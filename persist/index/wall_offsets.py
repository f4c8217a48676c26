"""When the entries of one queue expire, by the clock on the wall and by the clock of the node.

Entries have times on the wall, as the next start of the node needs them. The node itself goes by a
clock that nothing sets. The offset between the two changes when the clock on the wall is set, or
the machine sleeps: what is written from then on has the new offset, so that it expires in time
after a restart, too. What was written before keeps the offset it was written with while the node
runs. What is paged out always has the offset of the start: no restart will read it.
"""

from __future__ import annotations

from bisect import bisect_right

from warren.persist.index.index_context import IndexContext
from warren.persist.layout.format import TRANSIENT

CHANGES_MAX = 64
"""Changes of the clock that are known, the last ones. Messages written before these expire by the
clock on the wall, as after a restart."""


class WallOffsets:
    """The offsets of one queue, by the positions from which on they hold; mostly there is one."""

    __slots__ = ("_context", "_offsets_s", "_positions")

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._positions: tuple[int, ...] = ()
        self._offsets_s: tuple[float, ...] = ()

    def begin(self, position: int) -> float:
        """The offset for entries that are written now, from this position on."""
        offset_s = self._context.offset_s()
        latest_s = self._offsets_s[-1] if self._offsets_s else self._context.epoch_s
        if offset_s != latest_s:
            self._positions = (*self._positions[1 - CHANGES_MAX :], position)
            self._offsets_s = (*self._offsets_s[1 - CHANGES_MAX :], offset_s)
        return offset_s

    def node_time(self, position: int, place: int, wall_us: int) -> float | None:
        """When an entry expires; None for never."""
        if not wall_us:
            return None
        if not self._positions or place >= TRANSIENT:
            return wall_us / 1e6 - self._context.epoch_s
        at = bisect_right(self._positions, position)
        offset_s = self._offsets_s[at - 1] if at else self._context.epoch_s
        return wall_us / 1e6 - offset_s
