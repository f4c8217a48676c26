"""The level that each kind of backing queue needs at its leader, and at a mirror."""

from __future__ import annotations

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.backing.due_queue import DueQueue
from warren.core.backing.stream_log import StreamLog
from warren.core.queues.quorum_level import QuorumLevel
from warren.mirror.replication.levels.due_levels import DueLeaderLevel, DueMirrorLevel
from warren.mirror.replication.levels.leader_level import InstructionLog, LeaderLevel
from warren.mirror.replication.levels.mirror_level import MirrorLevel
from warren.mirror.replication.levels.quorum_levels import QuorumLeaderLevel, QuorumMirrorLevel
from warren.mirror.replication.levels.stream_levels import StreamLeaderLevel, StreamMirrorLevel


def leader_level(inner: MirroredLevel, level: int, journal: InstructionLog) -> LeaderLevel:
    """The level of this kind of queue at its leader."""
    kind = LeaderLevel
    if isinstance(inner, QuorumLevel):
        kind = QuorumLeaderLevel
    elif isinstance(inner, DueQueue):
        kind = DueLeaderLevel
    elif isinstance(inner, StreamLog):
        kind = StreamLeaderLevel
    return kind(inner, level, journal)


def mirror_level(backing: MirroredLevel) -> MirrorLevel:
    """The level of this kind of queue at a mirror."""
    if isinstance(backing, QuorumLevel):
        return QuorumMirrorLevel(backing)
    if isinstance(backing, DueQueue):
        return DueMirrorLevel(backing)
    if isinstance(backing, StreamLog):
        return StreamMirrorLevel(backing)
    return MirrorLevel(backing)
