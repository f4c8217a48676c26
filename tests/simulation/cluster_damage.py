"""All nodes of a history die, and the disk of one has lost messages that another copy has: its node
finds damage when it starts, or the disk has an older state than it had, and nothing is damaged. Or
only a leader goes on, and finds damage while its mirrors are away.

Nothing else goes wrong meanwhile, so the whole copies are those that the definitions name. A queue
is left alone if its policy lets copies confirm what is not on disk, or fewer copies than a majority
confirm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import cluster_checks as checks

from warren.core.backing.backing_queue import LEVELS
from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.definition.confirm_rule import ALL
from warren.mirror.replication.definition.promotion import DAMAGED_LEADER_BACK
from warren.mirror.replication.leading.led_queue import LedQueue
from warren.mirror.replication.levels.holes import COUNT_MAX
from warren.mirror.replication.levels.renumbering import NO_LIMIT
from warren.mirror.replication.mirroring import Mirroring

if TYPE_CHECKING:
    from cluster_history import History

SOON_S = (0.2, 3.0)
"""After that a node comes back, and a leader waits for its mirrors for longer."""

LATE_S = (12.0, 30.0)
"""A leader with a damaged disk does not wait that long for its mirrors."""

WHOLE_WITHIN_S = 60.0

DROPPED_AFTER_S = 30.0
"""A leader has no mirrors any more when their nodes have been away for so long."""


class Damage:
    """Damages disks of a history in peace."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster

    def strike(self) -> None:
        """All nodes die, the disk of one loses messages, and all come back."""
        history = self._history
        self._fill_queues()
        # A node that has come just now may have no queue, and no disk.
        victim = history.random.choice([n for n in self._cluster.alive if n in history._disks])
        records = [record for record in self._records() if self._is_elsewhere(record, victim)]
        is_damaged = history.random.random() < 0.5
        # A leader that has found damage may have gone on when its mirrors come.
        others_after_s = LATE_S if is_damaged and history.random.random() < 0.5 else SOON_S
        for name in list(self._cluster.alive):
            after_s = SOON_S if name == victim else others_after_s
            history._kill(name, history.random.uniform(*after_s))
        for record in records:
            if is_damaged:
                self._lose_some(record, victim)
            else:
                self._lose_last(record, victim)
        if is_damaged:
            self._cluster.damaged.add(victim)
        history._rest(WHOLE_WITHIN_S)
        self._cluster.damaged.discard(victim)
        for record in self._records():
            if record.promoted == DAMAGED_LEADER_BACK:
                history.seen["damaged leader led on"] += 1
                # What it lacked is in `lost+found`, also if it was confirmed.
                history.ledger.led_out_of_sync.add(self._name_of(record))
        history.check_rest()

    def strike_while_mirrors_are_away(self) -> None:
        """Only one node goes on, and finds that messages of queues which it leads are damaged."""
        history = self._history
        self._fill_queues()
        records = [
            record for record in self._records() if self._is_elsewhere(record, record.leader)
        ]
        if not records:
            return
        leader = history.random.choice(records).leader
        mirroring = self._cluster[leader].mirroring
        # What comes later is nowhere else.
        ends = {
            record.queue_id: [level.next_position for level in led.leader.levels]
            for record in records
            if record.leader == leader and (led := mirroring._led.get(record.queue_id))
        }
        for name in list(self._cluster.alive):
            if name != leader:
                history._kill(name, DROPPED_AFTER_S + 10.0)
        history._rest(DROPPED_AFTER_S)
        if history.random.random() < 0.5:
            history._kill(leader, history.random.uniform(*SOON_S))
            for record in records:
                if record.queue_id in ends:
                    history.ledger.led_out_of_sync.add(self._name_of(record))
                    self._lose_some(record, leader, ends[record.queue_id])
            self._cluster.damaged.add(leader)
        else:
            for led in mirroring._led.values():
                # A queue with priorities counts its messages itself.
                is_one = len(led.leader.levels) == 1
                if led.queue.queue_id in ends and is_one and not led.leader.fenced:
                    self._find_damage(mirroring, led, ends[led.queue.queue_id])
        history._rest(5.0)
        self._cluster.damaged.discard(leader)
        history._rest(WHOLE_WITHIN_S)
        history.check_rest()

    def _find_damage(self, mirroring: Mirroring, led: LedQueue, ends: list[int]) -> None:
        """The leader passes over some of the messages, as it does when it reads damaged ones."""
        history = self._history
        history.ledger.led_out_of_sync.add(led.queue.name)
        for level, end in zip(led.leader.levels, ends, strict=True):
            for position in level.inner.list_positions(0, end, COUNT_MAX).positions:
                (message,) = level.inner.peek(position, 1, 0).messages
                # No mirror has transient messages: its node was restarted.
                if message.envelope.persistent and history.random.random() < 0.3:
                    (message,) = level.inner.take([position])
                    level.inner.ack([message])
                    mirroring.has_lost(led.storage_id + level.level, position)
                    history.seen["damaged while mirrors were away"] += 1

    def _fill_queues(self) -> None:
        """Have messages in the queues that no client is about to get."""
        history = self._history
        for session in history.live:
            session.vanishes()
        publisher = history._connect(history._node())
        for queue in history.queues:
            for _ in range(10):
                history._publish(publisher, queue)
        history._rest(2.0)

    def _records(self) -> Iterator[QueueRecord]:
        records = checks.queue_records(self._cluster)
        return (records[name] for name in self._history.queues if name in records)

    def _is_elsewhere(self, record: QueueRecord, victim: str) -> bool:
        """Whether other nodes have all that the victim has, by the definition of the queue."""
        key = ("queue", "/", self._name_of(record))
        is_flushed = self._cluster[record.leader].mirroring._wanted_of(key).is_flushed
        others = {record.leader, *record.in_sync} - {victim}
        if not (record.durable and is_flushed):
            return False
        if record.members:
            return len(others) > len(record.members) // 2
        return record.acks == ALL and bool(others)

    def _name_of(self, record: QueueRecord) -> str:
        records = checks.queue_records(self._cluster)
        return next(name for name, one in records.items() if one.queue_id == record.queue_id)

    def _levels_of(self, record: QueueRecord, victim: str) -> list[int]:
        """The ids under which the disk knows the levels of a queue."""
        storage_id = record.storage_id(victim)
        known = self._history._disks[victim].queues
        return [level for level in known if level - level % LEVELS == storage_id]

    def _lose_some(self, record: QueueRecord, victim: str, ends: Sequence[int] = ()) -> None:
        """The disk loses some of the messages before the ends of their levels, or any."""
        history = self._history
        for level in self._levels_of(record, victim):
            kept, end = history._disks[victim].queues[level], NO_LIMIT
            if ends:
                end = ends[level % LEVELS]
            for position in sorted(kept):
                if position < end and history.random.random() < 0.3:
                    del kept[position]
                    self._lost("damaged", record, victim)

    def _lose_last(self, record: QueueRecord, victim: str) -> None:
        history, disk = self._history, self._history._disks[victim]
        for level in self._levels_of(record, victim):
            kept = disk.queues[level]
            count = history.random.randrange(1, 12)
            for position in sorted(kept)[-count:]:
                del kept[position]
                disk.ends[level] = min(disk.ends[level], position)
                self._lost("lost at the end", record, victim)

    def _lost(self, how: str, record: QueueRecord, victim: str) -> None:
        self._history.seen[f"{how} on disk"] += 1
        if record.leader == victim:
            self._history.seen[f"{how} on the disk of a leader"] += 1
