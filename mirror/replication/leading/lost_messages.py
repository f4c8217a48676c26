"""What happens when the disk of a leader turns out to have lost messages of its queue by damage.

The leader passes over them. A mirror that was in sync then has them, and is to lead. If there is
none, another epoch begins before a mirror comes: mirrors learn of the holes with it
(`levels/holes.py`), where they would take the messages for consumed in the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warren.core.backing.backing_queue import LEVELS
from warren.core.ports import Clock
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.leading.led_queue import LedQueue
from warren.mirror.replication.levels.holes import Hole


class LostMessages:
    """The messages that the storage of one node has lost, for the queues that the node leads.
    `were_lost` is called once in a turn for each queue that has lost some."""

    def __init__(
        self,
        led: Mapping[int, LedQueue],
        formers: FormerCopies,
        clock: Clock,
        were_lost: Callable[[LedQueue], None],
    ) -> None:
        self._led = led
        self._formers = formers
        self._clock = clock
        self._were_lost = were_lost
        self._holes: dict[int, list[Hole]] = {}

    def add(self, level_id: int, position: int | None) -> None:
        """Note that the storage of a level has lost a message of its queue; at this position, if
        that is known."""
        if not self._holes:
            self._clock.call_soon(self._tell_leaders)
        level = level_id % LEVELS
        holes = self._holes.setdefault(level_id - level, [])
        if position is not None:
            holes.append(Hole(level, position, position + 1))

    def _tell_leaders(self) -> None:
        lost, self._holes = self._holes, {}
        for led in [led for led in self._led.values() if led.storage_id in lost]:
            if any(map(led.leader.is_in_sync, led.leader.mirrors)):
                # All nodes may die before one of these mirrors leads.
                self._formers.note_damage(led.storage_id)
            if led.leader.has_lost(lost[led.storage_id]):
                self._formers.note_steps(led.storage_id, led.leader.renumbering)
            self._were_lost(led)
