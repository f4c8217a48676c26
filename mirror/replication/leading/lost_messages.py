"""Messages that turn out to be damaged while this node leads their queues.

Mirrors in sync have them, so one of these is to lead (`LedQueue.has_lost_messages`). Its card says
that the leader lacks messages, in case all nodes die before that. Mirrors that come later may have
them, too: the positions are noted as holes of the leader, also on its card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from warren.core.backing.backing_queue import LEVELS
from warren.core.ports import Clock
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.leading.led_queue import LedQueue
from warren.mirror.replication.levels.holes import Hole, not_too_many


class LostMessages:
    """What the storages of one node have lost. `led` are the queues it leads, by their ids;
    `search_again` is called with a queue of which copies have to be searched once more."""

    def __init__(
        self,
        clock: Clock,
        led: Mapping[int, LedQueue],
        formers: FormerCopies,
        search_again: Callable[[LedQueue], None],
    ) -> None:
        self._clock = clock
        self._led = led
        self._formers = formers
        self._search_again = search_again
        # What storages have lost since the last look, by their ids.
        self._lost: dict[int, list[Hole]] = {}

    def add(self, level_id: int, position: int | None) -> None:
        """Note that the storage of a level has lost a message of its queue, which was damaged; at
        this position, if that is known."""
        level = level_id % LEVELS
        if not self._lost:
            self._clock.call_soon(self.look)
        holes = self._lost.setdefault(level_id - level, [])
        if position is not None:
            holes.append(Hole(level, position, position + 1))

    def look(self) -> None:
        """Have mirrors in sync lead the queues of which messages were lost: they have these. So may
        mirrors that come later."""
        lost, self._lost = self._lost, {}
        for led in [led for led in self._led.values() if led.storage_id in lost]:
            self._note(led, lost[led.storage_id])

    def _note(self, led: LedQueue, holes: Sequence[Hole]) -> None:
        leader = led.leader
        if any(map(leader.is_in_sync, leader.mirrors)):
            led.has_lost_messages = True
            self._formers.note_damage(led.storage_id)
        if not holes:
            return
        leader.holes = not_too_many([*leader.holes, *holes])
        if leader.renumbering.note_holes(leader.epoch, holes):
            self._formers.note_steps(led.storage_id, leader.renumbering)
            self._search_again(led)
