"""What must hold of a simulated cluster (invariants_and_test_ideas.md sections 2 and 4).

`Ledger` follows the definitions of queues and the deaths of nodes, and knows what may be lost.
The functions look at a cluster that is quiet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from queue_ledger import Loss, QueueLedger

from warren.core.backing.priority_queue import PriorityQueue
from warren.core.definitions.records import QueueRecord
from warren.core.exchanges.delay import delay_queue_name
from warren.core.messages.message import Message
from warren.core.queues.quorum_level import QuorumLevel
from warren.mirror.replication.definition.confirm_rule import ALL as CONFIRMED_BY_ALL
from warren.mirror.replication.definition.former_nodes import has_only_former_copies
from warren.mirror.replication.definition.promotion import Promotion, promotion
from warren.mirror.replication.elections.election import can_be_elected
from warren.mirror.replication.elections.new_queues import is_new
from warren.mirror.replication.leading.hand_over import PATIENCE_S
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import MirrorLevel

if TYPE_CHECKING:
    from cluster import Cluster, ClusterNode
    from cluster_client import Publish

KNOWN_S = 4.0
"""After so long every node that is up knows of a definition."""

SYNC_S = 0.2
"""The slowest disk has synced after so long what it was given."""

NEWS_S = 1.0
"""After so long they know who is up."""

LATE_S = 15.0
"""So much later may a node that is cut off from the definitions hear of one."""

NOT_IN_SYNC = Promotion.LEADER_DOWN_NOT_IN_SYNC

ALL, UNCONFIRMED, TRANSIENT = "all", "unconfirmed", "transient"
"""What may be lost. Transient messages may be where unconfirmed ones may."""

DEAD = "dead"
"""Where the dead letters of all queues go that have any."""

DELAYED = "later"
DELAY_QUEUE = delay_queue_name(DELAYED)
"""The exchange of delayed messages, and the queue in which they wait."""


class Ledger:
    """The accounts of all queues of a cluster."""

    def __init__(self, cluster: Cluster, is_durable: bool, seen: Counter[str]) -> None:
        self._is_durable = is_durable
        self.queues: dict[str, QueueLedger] = {}
        # When copies were named first, by the ids of their stores; and those that were named no
        # more: a leader that stops may name them again, for what they have on disk.
        self._named_at: dict[int, float] = {}
        self._left: set[int] = set()
        self.deletable: set[str] = set()
        self._past_losses: dict[str, list[Loss]] = {}
        self.may_promote_out_of_sync: set[str] = set()
        self.led_out_of_sync: set[str] = set()
        # How many disks were lost so far, and of which node that is about to die.
        self._disks_lost = 0
        self._dies_with_disk = ""
        # While nothing fails: how many copies policies have wanted of a queue, and since when.
        self.is_quiet = False
        self.wanted: dict[str, list[tuple[float, int]]] = {}
        # When queues were bound to the exchange of delayed messages the last time.
        self._bound_at: dict[str, float] = {}
        self._cluster = cluster
        self._seen = seen
        self._revision = cluster.history.revision

    def follow(self) -> None:
        """Take note of what has been decided since the last time."""
        for changes in self._cluster.history.revisions[self._revision :]:
            for change in changes:
                if change.key[0] == "queue":
                    record = change.stored.record if change.stored is not None else None
                    assert record is None or isinstance(record, QueueRecord)
                    self._changed(change.key[2], record)
                elif change.key[0] == "binding" and change.key[2] == DELAYED:
                    self._bound_at[change.key[4]] = self._cluster.clock.now()
        self._revision = self._cluster.history.revision
        for queue in self.queues.values():
            leader = queue.record.leader
            if not (queue.holders or queue.record.mirrors or leader in self._cluster.dead):
                # It is back, with what its disk has.
                if queue.last_holder != leader:
                    self._lose(queue, ALL, f"{leader} is back, {queue.last_holder} had more")
                queue.holders = {leader}

    def node_died(self, node: str) -> None:
        self.follow()
        for queue in self.queues.values():
            if node in queue.holders:
                queue.holders.discard(node)
                queue.last_holder = node
                if node != self._dies_with_disk and self._all_have_mirrors(queue):
                    queue.former[node] = self._cluster.clock.now()
                if not queue.holders:
                    self._seen["last whole copy died"] += 1
                    what = TRANSIENT if self._is_durable else ALL
                    self._lose(queue, what, "the last whole copy died")
                    # If it leads again, it lacks what others synced sooner.
                    now = self._cluster.clock.now()
                    lost = Loss(now, UNCONFIRMED, "its disk had not synced it", now - SYNC_S)
                    queue.losses.append(lost)

    def node_lost(self, node: str) -> None:
        """The node is to die, and its disk with it. What a mirror has not that leads, or led, out
        of sync may be found nowhere else."""
        self.follow()
        self._disks_lost += 1
        self._dies_with_disk = node
        for queue in self.queues.values():
            queue.former.pop(node, None)
            is_nowhere_else = not queue.holders - {node} and not self._is_on_former_copies(
                queue.record
            )
            if queue.name in self.led_out_of_sync:
                self._lose(queue, ALL, f"the disk of {node} is lost")
            elif is_nowhere_else:
                self._lose_but_former(queue, f"the disk of {node} is lost")

    def _all_have_mirrors(self, queue: QueueLedger) -> bool:
        """Whether all nodes are to have mirrors of a durable queue, as far as any node knows, and
        all mirrors in sync have what was confirmed."""
        key = ("queue", "/", queue.name)
        alive = [self._cluster[name].mirroring for name in self._cluster.alive]
        is_kept = self._is_durable and queue.record.durable and not queue.record.acks
        return is_kept and all([mirroring._wanted_of(key).mode == "all" for mirroring in alive])

    def has_former(self, name: str) -> bool:
        """Whether a node that is left has a copy which was whole, though there may be none now."""
        queue = self.queues[name]
        return bool(queue.former) and self._all_have_mirrors(queue)

    def _lose_but_former(self, queue: QueueLedger, why: str) -> None:
        """Note that what no former copy has may be lost, and whatever is not on disk."""
        now = self._cluster.clock.now()
        since = max(queue.former.values()) - KNOWN_S if self.has_former(queue.name) else 0.0
        queue.losses += [Loss(now, TRANSIENT, why), Loss(now, ALL, why, since)]

    def _is_on_former_copies(self, record: QueueRecord) -> bool:
        """Whether all that was confirmed is on disks of members that are left, though no mirror is
        in sync."""
        return bool(record.members) and not record.in_sync and self._disks_lost < record.acks

    def _changed(self, name: str, record: QueueRecord | None) -> None:
        before = self.queues.get(name)
        if record is None:
            gone = self.queues.pop(name, None)
            if gone is not None:
                assert gone.record.exclusive or not gone.record.durable or name in self.deletable, (
                    f"E1: nobody has deleted {name}: {gone.record}"
                )
                # Until all nodes know of it, messages go to the queue that is gone.
                known_at = self._cluster.clock.now() + KNOWN_S
                gone.losses.append(Loss(known_at, ALL, "the queue was deleted"))
                self._past_losses[name] = gone.losses
            return
        alive = set(self._cluster.alive)
        for storage_id in record.stores.values():
            self._named_at.setdefault(storage_id, self._cluster.clock.now())
        self._check(name, record)
        if before is None or before.record.queue_id != record.queue_id:
            self.queues[name] = queue = QueueLedger(name, record)
            queue.losses = self._past_losses.pop(name, [])
            queue.declared_at = queue.bare_until = self._cluster.clock.now()
            queue.holders = {record.leader} & alive
            return
        queue, earlier, before.record = before, before.record, record
        if not (earlier.mirrors and record.mirrors):
            queue.bare_until = self._cluster.clock.now()
        if record.leader != earlier.leader:
            queue.changed_hands_at.append(self._cluster.clock.now())
        if record.members != earlier.members:
            queue.members_changed_at = self._cluster.clock.now()
        if self.is_quiet and record.epoch == earlier.epoch:
            if record.members:
                self._check_members_stay(queue, earlier, record)
            else:
                self._check_not_fewer(name, earlier, record)
        if record.epoch != earlier.epoch:
            assert record.epoch == earlier.epoch + 1, (name, earlier, record)
            queue.moved_at.append(self._cluster.clock.now())
            self._led_anew(queue, earlier, record)
        if record.epoch == earlier.epoch:
            self._check_stay_in_sync(name, earlier, record)
        named = {record.leader, *record.in_sync}
        came = set(record.in_sync) - set(earlier.in_sync)
        there = {mirror for mirror in came if self._has_copy(mirror, record)}
        gone = set(earlier.mirrors) - {record.leader, *record.mirrors}
        self._left.update([earlier.storage_id(mirror) for mirror in gone])
        # Of these, the leader gives back what they lack before they are in sync.
        back = set(record.mirrors) - {*earlier.mirrors, *record.in_sync}
        self._left.difference_update([record.storage_id(mirror) for mirror in back])
        queue.holders = (queue.holders & named) | there
        if queue.holders & set(record.in_sync):
            queue.former.clear()
        if not record.epoch != earlier.epoch and len(record.in_sync) > len(earlier.in_sync):
            self._seen["mirror in sync"] += 1

    def _led_anew(self, queue: QueueLedger, earlier: QueueRecord, record: QueueRecord) -> None:
        seen, leader = self._seen, record.leader
        lacks_votes = record.carrier and promotion(record.promoted) is NOT_IN_SYNC
        if lacks_votes and leader in earlier.in_sync:
            # Others may have had more, and it is found when their nodes are back.
            seen["led without the votes it needs"] += 1
            self.led_out_of_sync.add(queue.name)
            assert queue.name in self.may_promote_out_of_sync or earlier.leader_is_forgotten, (
                f"M11: {leader} leads {queue.name} without votes: {earlier} -> {record}"
            )
            is_found = self._is_durable and not earlier.leader_is_forgotten
            what = TRANSIENT if is_found else ALL
            self._lose(queue, what, f"{leader} led without the votes it needs")
            queue.marked_until = self._cluster.clock.now()
            # Mirrors that stay in sync have what it has.
            stay = {mirror for mirror in record.in_sync if self._has_copy(mirror, record)}
            queue.holders = {leader} | stay
            return
        if leader in queue.holders:
            order = earlier.in_sync.index(leader) if leader in earlier.in_sync else -1
            seen["led anew by itself" if order < 0 else f"in-sync candidate {order} promoted"] += 1
            if (
                order >= 0
                and record.acks != CONFIRMED_BY_ALL
                and set(earlier.in_sync) - queue.holders
            ):
                # These may have voted, and only they may have known what was handed out: all of it
                # may come as redelivered.
                seen["elected with votes from disk"] += 1
                queue.marked_until = self._cluster.clock.now()
            return
        if leader == earlier.leader:
            # It was away, and has what its disk has.
            seen["leader came back and went on alone"] += 1
            there = {one for one in queue.holders & self._up() if not self._has_just_come(one)}
            # The leader of a quorum queue has all that was confirmed on its disk.
            assert record.members or not there or not _may_lead(earlier, there), (
                f"MS26: {leader} leads {queue.name} alone, {queue.holders} have all:"
                f" {earlier} -> {record}"
            )
            what = TRANSIENT if self._is_durable else ALL
            if queue.last_holder != leader:
                more = UNCONFIRMED if self._is_durable else ALL
                self._lose(queue, more, f"{leader} came back, {queue.last_holder} had more")
            elif queue.holders:
                self._lose(queue, what, f"{leader} came back, and {queue.holders} were cut off")
        elif leader in earlier.in_sync:
            # It was away, too, and has what its disk has: all that is persistent.
            seen["a mirror led from its disk"] += 1
            before = earlier.leader
            is_damaged = self._cluster.lacks_messages(before, earlier.storage_id(before))
            is_away = before not in self._up() or self._has_just_come(before)
            assert is_damaged or is_away, (
                f"MS26: {leader} leads {queue.name} from its disk: {earlier} -> {record}"
            )
            what = TRANSIENT if self._is_durable else ALL
            self._lose(queue, what, f"{leader} led from its disk")
        elif is_new(earlier):
            # Nothing was confirmed, so nothing is lost by it.
            seen["a new quorum queue led by another member"] += 1
            assert earlier.leader not in self._up() or self._has_just_come(earlier.leader), (
                f"MS26: {leader} leads {queue.name}, which is new: {earlier} -> {record}"
            )
        elif has_only_former_copies(earlier):
            seen["led with a former copy"] += 1
            if not self._is_on_former_copies(earlier):
                self.led_out_of_sync.add(queue.name)
            if self._is_on_former_copies(earlier):
                self._lose(queue, TRANSIENT, f"{leader} led with a former copy")
            else:
                self._lose_but_former(queue, f"{leader} led with a former copy")
            queue.marked_until = self._cluster.clock.now()
        else:
            seen["promoted out of sync"] += 1
            self.led_out_of_sync.add(queue.name)
            assert queue.name in self.may_promote_out_of_sync, (
                f"M11: {leader} leads {queue.name} out of sync: {earlier} -> {record}"
            )
            assert not earlier.down, f"MS12: {leader} leads {queue.name}: {earlier} -> {record}"
            assert not queue.holders & self._up(), (
                f"M9: {leader} leads {queue.name} out of sync, {queue.holders} have all:"
                f" {earlier} -> {record}"
            )
            # What is on a disk is found when its node is back.
            what = TRANSIENT if self._is_durable else ALL
            self._lose(queue, what, f"{leader} was promoted out of sync")
        queue.holders = {leader}

    def _has_copy(self, mirror: str, record: QueueRecord) -> bool:
        """Whether it still has the copy of which the definition speaks: it may have been started
        anew since it reported that it has all."""
        storage_id = record.storage_id(mirror)
        if storage_id in self._left or mirror not in self._cluster.alive:
            return False
        return self._cluster[mirror].started_at <= self._named_at[storage_id]

    def _up(self) -> set[str]:
        """The nodes that live, and are up for the cluster: others may count a node as dead that
        has lost its lease, and it is to pause."""
        return set(self._cluster.alive) & self._cluster.present

    def _has_just_come(self, node: str) -> bool:
        """Started, or with a lease again: others need not have heard that it is up."""
        came_at = max(self._cluster[node].started_at, self._cluster.present_since[node])
        return self._cluster.clock.now() - came_at < NEWS_S

    def _check_stay_in_sync(self, name: str, earlier: QueueRecord, record: QueueRecord) -> None:
        """M2: a mirror that was in sync is, until it goes or has another copy."""
        for mirror in set(earlier.in_sync) & set(record.mirrors) - set(record.in_sync):
            assert earlier.stores[mirror] != record.stores[mirror], (
                f"M2: {mirror} is not in sync any more: {name} {earlier} -> {record}"
            )

    def _check_not_fewer(self, name: str, earlier: QueueRecord, record: QueueRecord) -> None:
        """M12: while nothing fails there are never fewer in sync than there were, or than some
        policy of late wants."""
        since = self._cluster.clock.now() - KNOWN_S
        history = self.wanted.get(name, [(0.0, 0)])
        late = [count for at, count in history if at >= since]
        before = [count for at, count in history if at < since][-1:]
        wanted = min(late + before)
        assert len(record.in_sync) >= min(len(earlier.in_sync), wanted - 1), (
            f"M12: {name} is to have {wanted} copies: {earlier} -> {record}"
        )

    def _check_members_stay(
        self, queue: QueueLedger, earlier: QueueRecord, record: QueueRecord
    ) -> None:
        """M12: while nothing fails, who is a member of a quorum queue and has all keeps it."""
        if queue.members_changed_at >= self._cluster.clock.now() - KNOWN_S:
            return
        gone = set(earlier.in_sync) - set(record.in_sync)
        assert not gone & set(record.members), f"M12: {queue.name}: {earlier} -> {record}"

    def may_be_cancelled(self, name: str, subscribed_at: float) -> bool:
        """Whether a consumer may be told that its subscription has ended, without asking for it:
        the queue was deleted, or its only node was lost, as far as the client's node knows."""
        queue = self.queues.get(name)
        now = self._cluster.clock.now()
        return (
            queue is None
            or queue.declared_at >= subscribed_at - KNOWN_S
            or not queue.record.mirrors
            or queue.bare_until >= now - LATE_S
        )

    def _check(self, name: str, record: QueueRecord) -> None:
        """M3, M13."""
        assert set(record.in_sync) <= set(record.mirrors), f"M3: {name} {record}"
        assert record.leader not in record.mirrors, f"M3: {name} {record}"
        assert len(set(record.mirrors)) == len(record.mirrors), f"M3: {name} {record}"
        assert not (record.exclusive and record.mirrors), f"M13: {name} {record}"

    def _lose(self, queue: QueueLedger, what: str, why: str) -> None:
        queue.losses.append(Loss(self._cluster.clock.now(), what, why))

    def may_be_lost(self, publish: Publish) -> str:
        """Why it need not be there; empty when it must."""
        queue = self.queues.get(publish.queue)
        if queue is None:
            return "its queue is gone"
        for at, what, why, since in queue.losses:
            if since <= publish.published_at <= at and (
                what == ALL
                or not (publish.is_kept and queue.record.durable)
                or (what == UNCONFIRMED and publish.confirmed_at is None)
            ):
                return why
        if publish.due_at is not None:
            return publish.excused or self._may_be_lost_delayed(publish)
        return publish.excused

    def _may_be_lost_delayed(self, publish: Publish) -> str:
        """Why it need not have come out of its delay, or not have found its queue then."""
        waits = self.queues.get(DELAY_QUEUE)
        for at, what, why, since in waits.losses if waits is not None else ():
            if since <= publish.published_at <= at and (what == ALL or not publish.persistent):
                return f"while it was delayed: {why}"
        bound_at = self._bound_at.get(publish.queue)
        if bound_at is None or publish.published_at <= bound_at + KNOWN_S:
            return "its queue was bound too late"
        if self.declared_since(publish.queue, publish.published_at):
            return "its queue was declared later"
        return ""

    def may_come_twice(self, publish: Publish) -> bool:
        """Whether it was delayed, and a node led the delay queue meanwhile that need not know what
        has left; then it may come as new, too. A leader before it takes and sends messages until
        it hears that there is another."""
        return publish.due_at is not None and self._led_since(
            DELAY_QUEUE, publish.published_at - KNOWN_S
        )

    def may_be_there_twice(self, publish: Publish) -> bool:
        """Whether it was delayed, and sent to its queue twice: the first leader did not answer, or
        its link broke, and a leader without mirrors does not know what it has had from whom."""
        return publish.due_at is not None and (
            self.may_come_twice(publish)
            or self._led_since(publish.queue, publish.published_at)
            or self.queues[publish.queue].bare_until >= publish.published_at
        )

    def _led_since(self, queue: str, at: float) -> bool:
        """Whether another node has led the queue since then, or another life of its node."""
        ledger = self.queues.get(queue)
        started_at = at if ledger is None else self._cluster[ledger.record.leader].started_at
        return started_at >= at or self.moved_since(queue, at)

    def declared_since(self, queue: str, at: float) -> bool:
        """Whether it is another one of that name, or none."""
        ledger = self.queues.get(queue)
        return ledger is None or ledger.declared_at >= at

    def changed_hands_since(self, queue: str, at: float) -> bool:
        """Whether another node has got the lead since then."""
        ledger = self.queues.get(queue)
        return ledger is not None and any(moved > at for moved in ledger.changed_hands_at)

    def moved_since(self, queue: str, at: float) -> bool:
        """Whether the queue was led anew since then."""
        ledger = self.queues.get(queue)
        return ledger is None or any(moved >= at for moved in ledger.moved_at)

    def moves_around(self, queue: str, at: float) -> bool:
        """Whether the queue was being handed over then, as far as whoever used it can know."""
        ledger = self.queues.get(queue)
        return ledger is None or any(
            at - KNOWN_S <= moved <= at + PATIENCE_S + KNOWN_S for moved in ledger.moved_at
        )


def record_of(cluster: Cluster, queue: str) -> QueueRecord | None:
    for change in cluster.history.definitions():
        if change.key == ("queue", "/", queue):
            assert change.stored is not None and isinstance(change.stored.record, QueueRecord)
            return change.stored.record
    return None


def queue_records(cluster: Cluster) -> dict[str, QueueRecord]:
    return {
        change.key[2]: change.stored.record
        for change in cluster.history.definitions()
        if change.key[0] == "queue" and isinstance(change.stored.record, QueueRecord)
    }


def check_expired(cluster: Cluster, late_s: float) -> None:
    """E12: whoever leads drops what has expired, whoever led when it was published."""
    for name in cluster.working:
        mirroring = cluster[name].mirroring
        for queue in cluster[name].node.local_queues:
            backing = queue.backing
            if queue.settings.message_ttl_ms is None or isinstance(backing, PriorityQueue):
                continue
            led = mirroring.led(queue.queue_id)
            if queue.is_held or (led is not None and led.leader.fenced):
                continue
            for message in backing.peek(0, 1, 1).messages:
                assert message.expires_at is not None
                assert cluster[name].clock.now() <= message.expires_at + late_s, (
                    f"E12: {queue.name} at {name} begins with {message}, which has expired"
                )


def check_one_leader(cluster: Cluster) -> None:
    """M4: no two nodes lead a queue in the same epoch."""
    leaders: dict[tuple[int, int], str] = {}
    for name in cluster.alive:
        for queue_id, led in cluster[name].mirroring._led.items():
            if not led.leader.fenced:
                other = leaders.setdefault((queue_id, led.leader.epoch), name)
                assert other == name, f"M4: {other} and {name} lead {queue_id}"


def levels_of(node: ClusterNode, queue_id: int) -> list[LeaderLevel]:
    backing = node.node.local_queues[queue_id].backing
    levels = backing.levels if isinstance(backing, PriorityQueue) else [backing]
    return levels  # type: ignore[return-value]


def check_mirrors(cluster: Cluster) -> Iterable[str]:
    """M1: the copies in sync are what the leader has. Yields the nodes whose copy was compared."""
    for name, record in queue_records(cluster).items():
        leader = cluster[record.leader]
        for mirror in record.in_sync:
            copy = cluster[mirror].mirroring.copies.by_queue.get(record.queue_id)
            assert copy is not None, f"M1: {mirror} has no copy of {name}: {record}"
            pairs = zip(levels_of(leader, record.queue_id), copy.mirror.levels, strict=True)
            for number, (ours, theirs) in enumerate(pairs):
                if record.members:
                    _check_members(name, ours, mirror, theirs)
                    continue
                ready = [
                    (m.position, bytes(m.body)) for m in ours.peek(0, 1 << 30, 1 << 30).messages
                ]
                their_ready = [
                    (m.position - theirs.delta, bytes(m.body))
                    for m in theirs.backing.peek(0, 1 << 30, 1 << 30).messages
                ]
                assert ready == their_ready, (
                    f"M1: {name} level {number} at {record.leader}: {ready[:30]},"
                    f" at {mirror}: {their_ready[:30]}"
                )
                assert sorted(ours.pending) == sorted(theirs.pending), (
                    f"M1: pending of {name} at {record.leader}: {sorted(ours.pending)[:30]},"
                    f" at {mirror}: {sorted(theirs.pending)[:30]}"
                )
            yield mirror


def _check_members(name: str, ours: LeaderLevel, mirror: str, theirs: MirrorLevel) -> None:
    """M1 of a quorum queue: what was returned is ready at its leader, and pending at others."""
    own, their = ours.inner, theirs.backing
    assert isinstance(own, QuorumLevel) and isinstance(their, QuorumLevel)
    there = [*_ready(own), *ours.pending.values()]
    others = [*_ready(their), *theirs.pending.values()]
    found = sorted([(m.position, bytes(m.body)) for m in there])
    mirrored = sorted([(m.position - theirs.delta, bytes(m.body)) for m in others])
    assert found == mirrored, (
        f"M1: {name} at its leader: {found[:30]}, at {mirror}: {mirrored[:30]}"
    )
    counts = {at: own.counts.get(at, 0) for at, _ in found}
    their_counts = {at: their.counts.get(at + theirs.delta, 0) for at, _ in found}
    assert counts == their_counts, f"M1: returns of {name}: {counts}, at {mirror}: {their_counts}"


def _ready(level: QuorumLevel) -> list[Message]:
    found, start = [], 0
    while start < level.next_position:
        peeked = level.peek(start, 1 << 30, 1 << 30)
        found += peeked.messages
        start = peeked.next_position
    return found


def check_nothing_left(cluster: Cluster) -> None:
    """E13: nobody waits for anything, and nobody keeps what nobody wants."""
    records = {record.queue_id: record for record in queue_records(cluster).values()}
    for name in cluster.alive:
        node = cluster[name]
        remote = node.remote_queues
        assert not remote._owed, f"E13: {name} owes {remote._owed} octets"
        assert not remote._flow
        for queue in remote._queues.values():
            assert not queue._publishes, f"E13: {name} keeps publishes of {queue.name}"
            assert not queue._waiting, f"E13: {name} waits for the leader of {queue.name}"
            assert not queue._told, f"E13: {name} keeps consumers of {queue.name}"
        for queue_id, led in node.mirroring._led.items():
            leader = led.leader
            assert queue_id in records and records[queue_id].leader == name, f"E13: {name}"
            awaited = leader._awaited
            assert not awaited._by_batch and not awaited._of_store, f"E13: {name} awaits confirms"
            assert not leader.fenced, f"E13: {name} leads {led.queue.name}, and is fenced"
            assert not led._unsent, f"E13: {name} has unsent batches of {led.queue.name}"
            assert set(leader.mirrors) == set(records[queue_id].mirrors), (
                f"E13: {name} leads {led.queue.name} with {list(leader.mirrors)},"
                f" {records[queue_id]}"
            )
        for queue_id, copy in node.mirroring.copies.by_queue.items():
            record = records.get(queue_id)
            assert record is not None and name in record.mirrors, (
                f"E13: {name} has a copy of {copy.key[2]}, {record}"
            )
            assert not copy.mirror._slices and not copy.mirror._waiting
        for queue_id in node.mirroring.from_afar.origins:
            assert queue_id in records, f"E13: {name} keeps origins of a queue that is gone"
        assert not node.host._awaited, f"E13: {name} waits for queues"
        assert not node.host._held, f"E13: {name} holds publishes back"
        assert not any(node.calls._open.values()), f"E13: {name} has open questions"
        for sessions in node.host._sessions.values():
            for session in sessions.values():
                unacked = {number: m.body for number, m in session._unacked.items()}
                kept = (unacked, session._consumers, session._open)
                assert not any(kept), f"E13: {name} keeps {kept} of {session.queue.name}"
                assert not session.queue.deleted
    groups = {
        int(change.key[1]) for change in cluster.history.definitions() if change.key[0] == "group"
    }
    for queue_id in groups:
        assert queue_id in records, f"E13: a group of a queue that is gone: {queue_id}"


def _may_lead(record: QueueRecord, mirrors: set[str]) -> bool:
    """Whether so many mirrors in sync are enough to have one of them lead."""
    return not record.carrier or can_be_elected(record, len(mirrors & set(record.in_sync)))
