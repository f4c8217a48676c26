"""What must hold of the messages that the queues of a simulated cluster retain.

Every confirmed persistent message is in its queue or retained at the leader, until its queue is
purged or deleted, and it is retained once. All copies in sync have the same at the same positions.
Not so where a node led that had not been sent everything yet, or was not in sync. Where one came
back that leads, and had retained nothing, or had died before it had noted how it came to lead, it
does not know what others have retained before: that may be retained again (`docs/replay.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING

import cluster_checks as checks

from warren.core.definitions.records import QueueRecord
from warren.core.queues.retention import Retention

if TYPE_CHECKING:
    from cluster import Cluster
    from cluster_client import Publish

EVERYWHERE = 1 << 62


class RetainedLedger:
    """`queues` are the names of those that retain messages; `gaps` of those whose leader may lack
    some; `bare` of those whose leader came back, and does not know what it had retained."""

    def __init__(self, cluster: Cluster) -> None:
        self.queues: set[str] = set()
        self.gaps: set[str] = set()
        self.bare: set[str] = set()
        self._cluster = cluster
        # Id and leader, and which nodes have all that the leader has retained.
        self._led: dict[str, tuple[int, str]] = {}
        self._started_at: dict[str, float] = {}
        self._whole: dict[str, set[str]] = {}

    def follow(self) -> None:
        """Take note of who leads, and who has been sent everything."""
        records = checks.queue_records(self._cluster) if self.queues else {}
        for name in self.queues & records.keys():
            record = records[name]
            led = (record.queue_id, record.leader)
            before = self._led.get(name)
            if before is None or before[0] != record.queue_id:
                self.gaps.discard(name)
                self.bare.discard(name)
            elif before != led and record.leader not in self._whole[name]:
                self.gaps.add(name)
            started_at = self._cluster[record.leader].started_at
            came_back = before == led and started_at != self._started_at[name]
            if came_back and not self._knows_what_it_had(record):
                self.bare.add(name)
            self._led[name], self._started_at[name] = led, started_at
            self._whole[name] = {record.leader, *self._sent_everything(record.queue_id)}

    def _knows_what_it_had(self, record: QueueRecord) -> bool:
        """Whether the leader, which is back, has retained something, and noted how it leads."""
        known = self._cluster[record.leader].mirroring._leadership.renumbering_of(record.queue_id)
        return bool(self._retained(record.leader, record.queue_id)) and (
            known is None or not record.epoch or bool(known[1].steps)
        )

    def _sent_everything(self, queue_id: int) -> Iterator[str]:
        for node in self._cluster.alive:
            sync = self._cluster[node].mirroring._retained_sync._syncs.get(queue_id)
            if sync is not None and sync.is_over:
                yield node

    def check_copies(self) -> Iterable[str]:
        """The copies in sync have retained what the leader has, at the same positions."""
        for name, record in checks.queue_records(self._cluster).items():
            if name not in self.queues or name in self.gaps:
                continue
            ours = self._retained(record.leader, record.queue_id)
            for mirror in record.in_sync:
                theirs = self._retained(mirror, record.queue_id)
                assert ours == theirs, (
                    f"retained of {name} at {record.leader} and not at {mirror}:"
                    f" {sorted(ours.items() - theirs.items())[:5]}, or the other way round:"
                    f" {sorted(theirs.items() - ours.items())[:5]}"
                )
                yield mirror

    def of_leader(self, queue: str) -> set[int]:
        """The numbers of the messages that the leader of a queue has retained."""
        record = checks.record_of(self._cluster, queue)
        if record is None:
            return set()
        return {int(body) for body in self._retained(record.leader, record.queue_id).values()}

    def check_all(
        self, publishes: Iterable[Publish], ledger: checks.Ledger, gone: Set[int] = frozenset()
    ) -> int:
        """What was confirmed is in its queue or retained, but for those that an operator has moved
        or deleted. Returns how many are retained."""
        found = self._found()
        lost = [
            publish
            for publish in publishes
            if publish.queue in found.keys() - self.gaps - ledger.led_out_of_sync
            and publish.is_kept
            and publish.confirmed_at is not None
            and publish.number not in gone
            and not found[publish.queue][publish.number]
            and not ledger.may_be_lost(publish)
        ]
        assert not lost, f"{len(lost)} are not retained, such as {lost[:3]}"
        return sum(map(len, found.values()))

    def twice(self, publishes: Iterable[Publish], ledger: checks.Ledger) -> list[Publish]:
        """Messages that are retained more than once, or retained and in their queue."""
        found = self._found()
        known = found.keys() - self.gaps - self.bare - ledger.led_out_of_sync
        return [
            one
            for one in publishes
            if one.queue in known
            and found[one.queue][one.number] > 1
            and not ledger.may_be_there_twice(one)
        ]

    def _found(self) -> dict[str, Counter[int]]:
        """How often messages are retained or in the queue, by queue and number."""
        found: dict[str, Counter[int]] = {}
        for name, record in checks.queue_records(self._cluster).items():
            if name in self.queues:
                leader = self._cluster[record.leader]
                bodies = [*self._retained(record.leader, record.queue_id).values()]
                backing = leader.node.local_queues[record.queue_id].backing
                for level in getattr(backing, "levels", [backing]):
                    there = level.peek(0, EVERYWHERE, EVERYWHERE).messages
                    bodies += [bytes(message.body) for message in there]
                bodies += [
                    bytes(message.body) for message in leader.node.unacked_of(leader.queue(name))
                ]
                found[name] = Counter(map(int, bodies))
        return found

    def _retained(self, node: str, queue_id: int) -> dict[int, bytes]:
        """By position."""
        retention = self._cluster[node].mirroring.retained.of(queue_id)
        return {} if retention is None else _all_of(retention)


def _all_of(retention: Retention) -> dict[int, bytes]:
    peeked = retention.log.peek(0, EVERYWHERE, EVERYWHERE)
    return {message.position: bytes(message.body) for message in peeked.messages}
