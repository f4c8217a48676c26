"""Figures of mirrored queues for operators: the nodes that have copies, and their progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from warren.core.definitions.records import GroupRecord, QueueRecord
from warren.core.ports import Key
from warren.core.queues.queue import Queue
from warren.mirror.gm.ring_view import ShownMember, shown_ring, shown_star
from warren.mirror.replication.copies.copy_here import CopyHere
from warren.mirror.replication.definition.promotion import Promotion
from warren.mirror.replication.definition.replicas import WantedMirrors
from warren.mirror.replication.elections.leaderless import damaged_leader_waits_for, waits_for
from warren.mirror.replication.leading.known_copy import SyncProgress
from warren.mirror.replication.leading.led_queue import LedQueue


class Lag(NamedTuple):
    """The batches that a mirror has not reported yet, and their octets."""

    batches: int
    octets: int


class MirrorState(NamedTuple):
    """The mirrors of a queue, as far as this node knows.

    `progress` says how far synchronisations are, `lag` how far a mirror is behind. Only the leader
    knows them; at other nodes they are empty.
    """

    leader: str
    mirrors: Sequence[str]
    in_sync: Sequence[str]
    promoted: str
    promoted_at: float
    progress: Mapping[str, SyncProgress]
    lag: Mapping[str, Lag]


class MirrorFigures:
    """`led` and `copies` are the queues that this node leads, and has mirrors of, by their ids."""

    def __init__(
        self,
        node: str,
        promotions: Counter[Promotion],
        led: Mapping[int, LedQueue],
        copies: Mapping[int, CopyHere],
        record_of: Callable[[Key, int], QueueRecord | None],
        group_record: Callable[[int], GroupRecord | None],
        wanted_of: Callable[[Key], WantedMirrors],
    ) -> None:
        # How often this node was given the lead of a queue, and why.
        self.promotions = promotions
        self._node = node
        self._led = led
        self._copies = copies
        self._record_of = record_of
        self._group_record = group_record
        self._wanted_of = wanted_of

    def _record(self, queue: Queue) -> QueueRecord | None:
        return self._record_of(queue.key, queue.queue_id)

    def state(self, queue: Queue) -> MirrorState | None:
        """The figures of the mirrors of a queue, as this node knows them; None if it has none."""
        record = self._record(queue)
        led = self._led.get(queue.queue_id)
        if record is None or (led is None and not record.mirrors and not record.epoch):
            return None
        progress: dict[str, SyncProgress] = {}
        lag: dict[str, Lag] = {}
        if led is not None:
            for mirror in led.leader.mirrors:
                lag[mirror] = Lag(led.leader.lag(mirror), led.leader.lag_bytes(mirror))
                under_way = led.synchronisation.progress(mirror)
                if under_way is not None:
                    progress[mirror] = under_way
        return MirrorState(
            record.leader,
            record.mirrors,
            record.in_sync,
            record.promoted,
            record.promoted_at,
            progress,
            lag,
        )

    def waits_for(self, queue: Queue) -> str:
        """The reason why no node leads a queue, or why its leader does not serve it; empty if it is
        not known."""
        record, led = self._record(queue), self._led.get(queue.queue_id)
        if record is None:
            return ""
        if led is not None:
            mirrors = led.returned.awaited_without_limit(record) if led.returned else ()
            return damaged_leader_waits_for(record, mirrors) if mirrors else ""
        return waits_for(record, self._wanted_of(queue.key).promote_on_failure)

    def ring(self, queue: Queue) -> list[ShownMember]:
        """The members in the ring of a mirrored queue. Only its leader knows which of them are
        being synchronised or were asked to join."""
        record = self._record(queue)
        if record is None:
            return []
        led = self._led.get(queue.queue_id)
        group = self._group_record(queue.queue_id)
        mirrors = led.leader.mirrors if led is not None else ()
        syncing = [
            mirror
            for mirror in mirrors
            if led is not None and led.synchronisation.is_under_way(mirror)
        ]
        asked = led.wanted_mirrors if led is not None else ()
        if record.carrier:
            return shown_star(record, syncing=syncing, asked=asked)
        return shown_ring(record, group, syncing=syncing, asked=asked)

    # Queues and copies of this node

    def led_queues(self) -> list[Queue]:
        """The queues with mirrors that this node leads."""
        return [led.queue for led in self._led.values()]

    def lacks_mirrors(self, queue: Queue) -> bool:
        """Whether a classic queue of this node should have mirrors, and none is in sync."""
        led, record = self._led.get(queue.queue_id), self._record(queue)
        if led is None or record is None or record.in_sync or record.members:
            return False
        return led.wanted.mode is not None and led.wanted.copies_max != 1

    def copies_here(self) -> list[CopyHere]:
        """The mirrors of this node."""
        return list(self._copies.values())

    def is_in_sync_here(self, copy: CopyHere) -> bool:
        """Whether the mirror of this node is in sync."""
        record = self._record_of(copy.key, copy.queue_id)
        return record is not None and self._node in record.in_sync
