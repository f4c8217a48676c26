"""Finds the mirrors that hold a queue up, and are to be dropped from its definition.

Such a mirror does not reach the leader, or is too far behind, or is a member of a quorum queue that
died. A mirror that was dropped begins anew when it is back, with what its disk has.
"""

from __future__ import annotations

from collections.abc import Collection

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock
from warren.mirror.replication.definition.queue_members import is_needed
from warren.mirror.replication.leading.leader import Leader

UNREACHED_S = 5.0
"""The time for which confirms wait for a mirror that the leader cannot reach but others can."""

KEPT_TICKS = 3
"""The ticks that a member which is up may take to join again with the copy that it had."""


class LaggingMirrors:
    """`running` are the nodes that this node reaches. Each question is asked once a tick."""

    def __init__(self, leader: Leader, clock: Clock) -> None:
        self._leader = leader
        self._clock = clock
        # Mirrors that this node cannot reach, and the time since which it knows.
        self._unreached: dict[str, float] = {}
        # Members that died and stayed named, and for how many ticks their nodes have been up.
        self._kept_ticks: dict[str, int] = {}

    def unreached(self, running: Collection[str]) -> list[str]:
        """The mirrors that have not reached the leader for `UNREACHED_S`. In a ring, a mirror is
        alive while its neighbours reach it; but it reports to the leader itself, which would wait
        for it."""
        now = self._clock.now()
        unreached = [mirror for mirror in self._leader.mirrors if mirror not in running]
        self._unreached = {mirror: self._unreached.get(mirror, now) for mirror in unreached}
        return [mirror for mirror, since in self._unreached.items() if now >= since + UNREACHED_S]

    def far_behind(self, octets_max: int) -> list[str]:
        """The mirrors that lack more than so many octets of batches, as far as they reported."""
        leader = self._leader
        return [mirror for mirror in leader.mirrors if leader.lag_bytes(mirror) > octets_max]

    def dead_members(
        self, record: QueueRecord, alive: Collection[str], running: Collection[str]
    ) -> list[str]:
        """The members of a quorum queue that died, stayed named because they were needed, and are
        needed no longer.

        Also those whose nodes have been up for a while: then their copies are others, or do not
        fit, and have to begin anew.
        """
        ticks = self._kept_ticks
        self._kept_ticks = {
            mirror: ticks.get(mirror, 0) + 1 if mirror in running else 0
            for mirror in self._leader.mirrors
            if mirror not in alive
        }
        return [
            mirror
            for mirror, count in self._kept_ticks.items()
            if not is_needed(record, mirror) or count >= KEPT_TICKS
        ]
