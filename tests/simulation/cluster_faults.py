"""What goes wrong in the history of a cluster: nodes, links, and the way to the definitions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import cluster_checks as checks

if TYPE_CHECKING:
    from collections import Counter

    from cluster import Cluster
    from cluster_client import Session
    from cluster_replacements import Replacements
    from cluster_unconfirmed import Unconfirmed

LEASE_S = 4.0
"""After so long the others tidy up after a node that has died."""

SILENCE_S = 2.5
"""Who hears nothing of a node for so long takes the link to it down."""

RESTARTS_S = (0.01, 0.2, 1.0, 5.0)
LATE_RESTARTS_S = (0.01, 0.2, 1.0, 5.0, 20.0)
"""After so long a node is back; all of them are when everything is healed."""


class Faults:
    """The faults of a `History`."""

    cluster: Cluster
    ledger: checks.Ledger
    random: Random
    seen: Counter[str]
    is_wide: bool
    live: list[Session]
    queues: list[str]
    sessions: list[Session]
    note: Callable[[str, object], None]
    after: Callable[[float, Callable[[], None]], None]
    pauses_unless: str | None
    replacements: Replacements
    unconfirmed: Unconfirmed
    lost: set[str]
    _blocked: set[frozenset[str]]
    _stopping: set[str]

    def _publish_plain(self, session: Session, queue: str) -> None:
        raise NotImplementedError

    def _hit(self, fault: str) -> None:
        if self.cluster.alive:
            self.note("fault", fault)
            self.seen[f"fault: {fault}"] += 1
            getattr(self, f"_{fault}")()
            self._look()

    def _look(self) -> None:
        """Rare states a fault has met."""
        for name in self.cluster.alive:
            for led in self.cluster[name].mirroring._led.values():
                if any(led.synchronisation.is_under_way(mirror) for mirror in led.leader.mirrors):
                    self.seen["fault during synchronisation"] += 1
                if led.leader._awaited._by_batch:
                    self.seen["fault while confirms are awaited"] += 1
            for queue in self.cluster[name].remote_queues._queues.values():
                if queue._waiting:
                    self.seen["fault while a leader is awaited"] += 1

    def _notice_s(self) -> Callable[[], float]:
        choice = self.random.choice((0.0, 0.0, 0.05, 1.0))
        return lambda: self.random.uniform(0.0, choice) if choice else 0.0

    def _arrives(self) -> Callable[[int], int]:
        return lambda count: self.random.randint(0, count)

    def _kill(self, name: str, back_after_s: float | None = None) -> None:
        if name in self.cluster.dead:
            return
        self._stopping.discard(name)
        node = self.cluster[name]
        if any(led.leader._awaited._by_batch for led in node.mirroring._led.values()):
            self.seen["leader died with unconfirmed publishes"] += 1
        for led in node.mirroring._led.values():
            if any(led.synchronisation.is_under_way(mirror) for mirror in led.leader.mirrors):
                self.seen["leader died during synchronisation"] += 1
        for session in self.sessions:
            if session.node == name and not session.is_over:
                session.poll()
                session.dies_with_node()
        self.unconfirmed.dies(name)
        self.ledger.node_died(name)
        self.cluster.restore_store(name)
        self.cluster.kill(name, self._arrives(), self._notice_s())
        self.after(LEASE_S, lambda: self._tidy(name))
        restarts_s = LATE_RESTARTS_S if self.is_wide else RESTARTS_S
        self.after(
            self.random.choice(restarts_s) if back_after_s is None else back_after_s,
            lambda: self._restart(name),
        )

    def _tidy(self, name: str) -> None:
        self.cluster.tidy_after(name)

    def _restart(self, name: str) -> None:
        if name not in self.cluster.dead or name in self.lost:
            return
        if any(name in self.cluster[other].links.up for other in self.cluster.alive):
            self.seen["restarted before it was missed"] += 1
        self.cluster.restart(name)
        for other in self.cluster.nodes:
            if other != name:
                self.after(
                    self.random.uniform(0.0, 0.3), lambda other=other: self._link(name, other)
                )

    def _link(self, one: str, other: str) -> None:
        """Try to connect, as links do until they are."""
        if self.cluster.dead & {one, other} or frozenset((one, other)) in self._blocked:
            if not self.cluster.dead & {one, other}:
                return
            self.after(0.1, lambda: self._link(one, other))
        elif self.cluster.may_connect(one, other):
            self.cluster.connect(one, other)
        elif not self.cluster.are_connected(one, other):
            self.after(0.05, lambda: self._link(one, other))

    def _node(self) -> str:
        return self.random.choice(self.cluster.alive)

    def _leader(self) -> str:
        """A node that leads something, if any does; any, if none is up."""
        leading = [n for n in self.cluster.alive if self.cluster[n].mirroring._led]
        return self.random.choice(leading or self.cluster.alive or sorted(self.cluster.nodes))

    def _crash(self) -> None:
        self._kill(self._node())

    def _crash_leader(self) -> None:
        self._kill(self._leader())

    def _crash_two(self) -> None:
        for name in self.random.sample(self.cluster.alive, min(2, len(self.cluster.alive))):
            gap_s = self.random.choice((0.0, 0.01, 0.15, 0.6))
            self.after(gap_s, lambda name=name: self._kill(name))

    def _crash_all(self) -> None:
        for name in self.cluster.alive:
            self._kill(name)

    def _crash_and_return(self) -> None:
        """A leader is back before anybody could take its place."""
        self._kill(self._leader(), 0.001)

    def _crash_twice(self) -> None:
        """The leader, and whoever takes its place."""
        self._kill(self._leader(), 5.0)
        self.after(self.random.uniform(0.1, 0.8), lambda: self._kill(self._leader()))

    def _cut(self, one: str, other: str, blocked_s: float) -> None:
        pair = frozenset((one, other))
        if not self.cluster.are_connected(one, other) or self.cluster.dead & pair:
            return
        self.cluster.cut(one, other, self._arrives(), self._notice_s())
        if blocked_s:
            self._blocked.add(pair)

        def restore() -> None:
            self._blocked.discard(pair)
            self._link(one, other)

        self.after(blocked_s or self.random.uniform(0.001, 0.08), restore)

    def _break_link(self) -> None:
        """It comes back within gm's suspicion time, or a little later."""
        if len(self.cluster.alive) > 1:
            one, other = self.random.sample(self.cluster.alive, 2)
            self._cut(one, other, 0.0)

    def _break_link_of_leader(self) -> None:
        leader = self._leader()
        for other in self.cluster.alive:
            if other != leader and self.random.random() < 0.6:
                self._cut(leader, other, 0.0)

    def _part(self) -> None:
        """Two nodes do not reach each other, and all others do."""
        if len(self.cluster.alive) > 1:
            one, other = self.random.sample(self.cluster.alive, 2)
            self._cut(one, other, self.random.choice((0.3, 2.0, 6.0)))

    def _flap(self) -> None:
        if len(self.cluster.alive) > 1:
            one, other = self.random.sample(self.cluster.alive, 2)
            for number in range(4):
                self.after(0.4 * number, lambda: self._cut(one, other, 0.2))

    def _isolate(self) -> None:
        """A node reaches the shared definitions, and no other node."""
        name = self._leader() if self.random.random() < 0.5 else self._node()
        seconds = self.random.choice((0.3, 2.0, 6.0))
        for other in self.cluster.nodes:
            if other != name:
                self._cut(name, other, seconds)

    def _isolate_from_store(self, name: str | None = None) -> None:
        """A node reaches the others, and not the shared definitions."""
        name = name or (self._leader() if self.random.random() < 0.5 else self._node())
        self.cluster.cut_store(name)
        self.after(self.random.choice((0.1, 1.0, 3.5)), lambda: self.cluster.restore_store(name))

    def _isolate_from_all(self) -> None:
        name = self._leader()
        self._isolate_from_store(name)
        for other in self.cluster.nodes:
            if other != name:
                self._cut(name, other, self.random.choice((0.3, 2.0, 4.0)))

    def _slow_store(self) -> None:
        for name in self.cluster.alive:
            self._isolate_from_store(name)

    def _crash_while_store_is_slow(self) -> None:
        self._slow_store()
        self._kill(self._leader())

    def _crash_while_synchronising(self) -> None:
        """A mirror is lost and comes back to a queue with messages; then its leader dies."""
        leader = self._leader()
        for other in self.cluster.alive:
            if other != leader:
                self._kill(other, 0.2)
                break
        self.after(self.random.uniform(0.3, 2.0), lambda: self._kill(leader))

    def _lose_whole_copies(self) -> None:
        """Everybody dies for long who has all of a queue; others have a part of it, if any do."""
        records = checks.queue_records(self.cluster).values()
        in_part = [r for r in records if set(r.mirrors) - set(r.in_sync)]
        if in_part:
            record = self.random.choice(in_part)
            for name in sorted({record.leader, *record.in_sync} & set(self.cluster.alive)):
                self._kill(name, LATE_RESTARTS_S[-1])

    # What was thought of last

    def _stop(self, name: str = "") -> None:
        """A node is stopped in order: it hands over what it leads, and is back later."""
        name = name or self._leader()
        if name in self.cluster.working and name not in self._stopping:
            self._stopping.add(name)
            self.unconfirmed.stops(name)
            self.seen["stopped in order"] += 1
            self.cluster[name].node.stop_following()
            self.cluster[name].mirroring.stop_leading()
            self.after(self.random.choice((0.05, 0.3, 1.0)), lambda: self._stopped(name))

    def _stopped(self, name: str) -> None:
        if name in self._stopping:
            self._stopping.discard(name)
            self._kill(name)

    def _one_way(self) -> None:
        """Nothing passes one way; who hears nothing for long takes the link down."""
        if len(self.cluster.alive) < 2:
            return
        one, other = self.random.sample(self.cluster.alive, 2)
        seconds = self.random.choice((0.3, 1.5, 6.0))
        self.cluster.stall(one, other)
        self.after(seconds, lambda: self.cluster.unstall(one, other))
        if seconds > SILENCE_S:
            self.after(SILENCE_S, lambda: self._cut(one, other, seconds - SILENCE_S))

    def _freeze(self) -> None:
        """A process stands still, longer than its lease or not."""
        name = self._leader()
        if name not in self.cluster.working or len(self.cluster.working) < 2:
            return
        seconds = self.random.choice((0.5, 2.0, 3.5, 8.0))
        self.cluster.freeze(name)
        self.after(seconds, lambda: self._thaw(name))
        if seconds > SILENCE_S:
            for other in self.cluster.nodes:
                if other != name:
                    self.after(
                        SILENCE_S, lambda other=other: self._cut(name, other, seconds - SILENCE_S)
                    )
        if seconds > LEASE_S:
            self.after(LEASE_S, lambda: self._lose_lease(name))

    def _thaw(self, name: str) -> None:
        """Whoever has no lease any more finds that out before anything else, and pauses."""
        if name in self.cluster.frozen:
            has_lease = name in self.cluster.present
            self.cluster.thaw(name)
            if not has_lease:
                self._pause(name, 0.2)

    def _isolate_from_store_for_long(self) -> None:
        """A node loses its lease; it pauses unless it may go on."""
        name = self._leader()
        if name not in self.cluster.working:
            return
        seconds = self.random.choice((5.0, 8.0))
        self.cluster.cut_store(name)

        def lose() -> None:
            if name in self.cluster.working and self.cluster.is_store_cut(name):
                self._lose_lease(name)
                self._pause(name, seconds - LEASE_S)

        self.after(LEASE_S, lose)
        self.after(seconds, lambda: self.cluster.restore_store(name))

    def _return_while_store_is_slow(self) -> None:
        """A leader is back at once, and those who have more than its disk cannot take its place."""
        leader = self._leader()
        for name in self.cluster.working:
            if name != leader:
                self.cluster.cut_store(name)
                self.after(3.9, lambda name=name: self.cluster.restore_store(name))
        self._kill(leader, 0.01)

    def _lose_lease(self, name: str) -> None:
        if name not in self.cluster.dead:
            self.seen["lost its lease"] += 1
            self.cluster.lease_ends(name)

    def _pause(self, name: str, seconds: float) -> None:
        """With pause_if_all_down it goes on if it reaches the node that was named."""
        reached = {name, *self.cluster[name].links.up}
        if self.pauses_unless in reached:
            self.seen["went on without a lease"] += 1
            self.after(seconds, lambda: self._has_lease_again(name))
        else:
            self.seen["paused"] += 1
            self._kill(name, seconds)

    def _has_lease_again(self, name: str) -> None:
        if name not in self.cluster.dead:
            self.cluster.has_lease_again(name)

    def _lose_node(self) -> None:
        self.replacements.begin(self._leader() if self.random.random() < 0.7 else self._node())

    def _lose_most(self) -> None:
        """Most nodes are lost, and the members that are left are not enough for elections."""
        for name in self.random.sample(self.cluster.alive, len(self.cluster.alive) // 2 + 1):
            self.replacements.begin(name)

    def _lose_leader_after_start(self) -> None:
        """All nodes die and come back, and one that leads is lost soon after that."""
        leader = self._leader()
        for name in self.cluster.alive:
            self._kill(name, self.random.uniform(1.0, 1.3))
        lost_after_s = self.random.uniform(1.3, 4.0)
        self.after(lost_after_s, lambda: self.replacements.begin(leader))

    def _fail_when_answered(self) -> None:
        """A leader dies, or stops, when it has just answered another node's publish that waits for
        no confirm."""
        leader = self._leader()
        records = checks.queue_records(self.cluster)
        led = [name for name in self.queues if name in records and records[name].leader == leader]
        for session in self.live:
            # A node with a mirror gets the publish as a mirror before it gets the answer.
            away = [name for name in led if session.node not in (leader, *records[name].mirrors)]
            if away:
                self._publish_plain(session, self.random.choice(away))
        fails = self._kill if self.random.random() < 0.7 else self._stop
        self.unconfirmed.when_answered(leader, lambda: fails(leader))

    def _end_faults(self) -> None:
        """Everything goes on that does not by itself."""
        for name in sorted(self._stopping):
            self._kill(name)
        self._stopping.clear()
        for name in sorted(self.cluster.frozen):
            self._thaw(name)
        for one in self.cluster.nodes:
            for other in self.cluster.nodes:
                self.cluster.unstall(one, other)
        for name in self.cluster.alive:
            self._has_lease_again(name)


FAULTS = (
    "crash",
    "crash_leader",
    "crash_leader",
    "crash_leader",
    "crash_two",
    "crash_all",
    "crash_and_return",
    "crash_twice",
    "crash_twice",
    "break_link",
    "break_link_of_leader",
    "break_link_of_leader",
    "part",
    "part",
    "flap",
    "isolate",
    "isolate",
    "isolate_from_store",
    "isolate_from_all",
    "slow_store",
    "crash_while_store_is_slow",
    "crash_while_synchronising",
)
LATEST_FAULTS = (
    "stop",
    "stop",
    "stop",
    "one_way",
    "one_way",
    "freeze",
    "freeze",
    "freeze",
    "isolate_from_store_for_long",
    "isolate_from_store_for_long",
    "return_while_store_is_slow",
    "return_while_store_is_slow",
    "break_link_of_leader",
)
REPLACEMENTS = ("lose_node", "lose_node", "lose_node", "lose_most")
UNCONFIRMED = ("fail_when_answered",)
LOST_AT_START = ("lose_leader_after_start",)
LATER_FAULTS = ("lose_whole_copies", "lose_whole_copies")
