"""Several whole nodes in one process, on one clock: brokers, links and shared definitions.

    cluster = Cluster("a", "b", "c")
    client = cluster["a"].connects()

What goes between nodes, and between a node and the shared definitions, takes its time on the clock:
none at all unless `delay` says how much. Messages of one link stay in order; nothing else does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from manual_clock import ManualClock, ManualTimer
from pipe import Broker
from shared_metadata import Line, SharedHistory, SimulatedMetadataStore

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.queues.placement import Placement
from warren.mirror.links.ports import EndReason, Frame, Identity, LinkUser, Part
from warren.mirror.members import leftovers
from warren.mirror.members.abreast import Abreast
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.origin import origin_name
from warren.mirror.messages.post import Post
from warren.mirror.remote.placement import ClusterPlacement
from warren.mirror.remote.queue_host import QueueHost
from warren.mirror.remote.remote_queue import RemoteQueue
from warren.mirror.remote.remote_queues import RemoteQueues
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.mirroring import Mirroring
from warren.persist.disk.group_commit import PendingCommit

NewBacking = Callable[["ClusterNode", BackingSpec], BackingQueue]


class NodeTimer:
    """A call at a time. It can be cancelled while its node stands still, also when it is due."""

    on_clock: ManualTimer

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None
        self.on_clock.cancel()

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class NodeClock:
    """The clock of one node: that of all, until the node is dead, but for the time of day."""

    def __init__(self, clock: ManualClock, ahead_s: float = 0.0) -> None:
        self._clock = clock
        self.ahead_s = ahead_s
        self.is_dead = False
        # What was to run since the process stands still.
        self._held: list[Callable[[], None]] | None = None

    def now(self) -> float:
        return self._clock.now()

    def wall_time(self) -> float:
        return self._clock.wall_time() + self.ahead_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> NodeTimer:
        timer = NodeTimer(callback)
        timer.on_clock = self._clock.call_later(delay_s, lambda: self._run(timer.fire))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self._clock.call_soon(lambda: self._run(callback))

    def settle(self) -> None:
        self._clock.settle()

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def freeze(self) -> None:
        """The process stands still."""
        self._held = []

    def thaw(self) -> None:
        """It goes on, and does first what it has missed."""
        held, self._held = self._held, None
        for callback in held or ():
            self.call_soon(callback)

    def _run(self, callback: Callable[[], None]) -> None:
        if self.is_dead:
            return
        if self._held is not None:
            self._held.append(callback)
        else:
            callback()


class FakeLinks:
    """`NodeLinks` of one node: what is sent arrives when the cluster lets it."""

    def __init__(self, cluster: Cluster, node: str, user: LinkUser) -> None:
        self._cluster = cluster
        self.node = node
        self.user = user
        self.up: dict[str, Identity] = {}
        self.sent: dict[str, int] = {}

    def connect(self, node: str, host: str, port: int) -> None:
        """All nodes of a cluster are connected by it."""

    def forget(self, node: str) -> None:
        """All nodes of a cluster are connected by it."""

    def send(self, node: str, kind: int, *parts: Part) -> bool:
        if node not in self.up:
            return False
        self.sent[node] = self.sent.get(node, 0) + 1
        self._cluster.carry(self.node, node, (kind, b"".join(parts)))
        return True

    def backlog_bytes(self, node: str) -> int:
        return 0

    def peers(self) -> dict[str, Identity]:
        return dict(self.up)

    def is_up(self, node: str) -> bool:
        return node in self.up


StoredCards = dict[int, bytes]
"""What the disk of one node has of cards."""


class FakeCardFiles:
    """`CardFiles` of one life of a node: what is not on disk yet when it ends never will be."""

    def __init__(self, stored: StoredCards, clock: NodeClock, sync_s: Callable[[], float]) -> None:
        self._stored = stored
        self._clock = clock
        self._sync_s = sync_s

    def read(self) -> dict[int, bytes]:
        return dict(self._stored)

    def write(self, storage_id: int, card: bytes) -> PendingCommit:
        commit = PendingCommit()

        def sync() -> None:
            self._stored[storage_id] = card
            commit.complete(_raise)

        self._after_sync(sync)
        return commit

    def remove(self, storage_id: int) -> None:
        self._after_sync(lambda: self._stored.pop(storage_id, None))

    def _after_sync(self, step: Callable[[], None]) -> None:
        sync_s = self._sync_s()
        if sync_s:
            self._clock.call_later(sync_s, step)
        else:
            self._clock.call_soon(step)


class ClusterNode(Broker):
    """A node of the cluster, with what a cluster adds to one."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        store: SimulatedMetadataStore,
        incarnation: int,
        **more: Any,
    ) -> None:
        self.incarnation = incarnation
        self.started_at = cluster.clock.now()
        self.cluster = cluster
        self.post = Post()
        self.links = FakeLinks(cluster, name, self.post.user())
        self.post.open(self.links)
        self.calls = Calls(self.post)
        self.remote_queues: RemoteQueues
        self.mirroring: Mirroring
        clock = NodeClock(cluster.clock, cluster.ahead_s())
        self.abreast = Abreast(store, self.calls, clock, lambda: self.links.up)
        super().__init__(
            clock=clock,
            name=name,
            metadata=store,
            random_seed=f"{name} {incarnation} {cluster.seed}",
            new_placement=self._placement,
            new_backing_queue=lambda spec: self.mirroring.backing(spec) or self._new_backing(spec),
            **more,
        )
        is_damaged = name in cluster.damaged
        self.mirroring.find_former_copies(self.node, self._new_backing, is_damaged=is_damaged)
        self.mirroring.attach(self.node, self._new_backing)
        # Whoever waits for a queue is answered when it is known what a mirror here had of it.
        self.host = QueueHost(self.node, self.post, self.calls, self.mirroring, incarnation << 40)

    def lets_go(self) -> None:
        super().lets_go()
        for sessions in self.host._sessions.values():
            for session in sessions.values():
                session.let_go()
        for vhost in self.node.vhosts.values():
            for queue in vhost.queues.values():
                if isinstance(queue, RemoteQueue):
                    queue._publishes._unanswered.clear()

    def _new_backing(self, spec: BackingSpec) -> BackingQueue:
        return self.cluster.new_backing(self, spec)

    def _placement(self, _: Broker) -> Placement:
        self.remote_queues = RemoteQueues(
            self.post,
            self.calls,
            self.clock,
            lambda flow: self.alarms.set_flow(flow, "nodes"),
            origin_name(self.name, self.incarnation),
        )
        nodes = Nodes(
            self.name,
            self._running,
            self._alive,
            members=self._members,
            machine_of=self.cluster.machine_of,
            silent=self.abreast.silent,
        )
        self.mirroring = Mirroring(
            nodes,
            self.post,
            self.calls,
            self.metadata,
            self.clock,
            self._random,
            FakeCardFiles(
                self.cluster.cards.setdefault(self.name, StoredCards()),
                self.clock,
                lambda: self.cluster.card_sync_s,
            ),
        )
        return ClusterPlacement(
            nodes, self.metadata, self.remote_queues, self._random, self.mirroring
        )

    def _members(self) -> list[str]:
        return [name for name in self.cluster.nodes if name not in self.cluster.forgotten]

    def _running(self) -> list[str]:
        return [self.name, *self.links.up]

    def _alive(self) -> set[str]:
        """The nodes that have a presence, or go on without: as `alive` of `warren/cluster.py`."""
        going_on = self._running() if self.cluster.goes_on_without_lease else ()
        return {*self.cluster.seen_present[self.name], *going_on}


class Cluster:
    """`delay()` is how many seconds the next message or definition takes; 0 is this turn.

    `new_backing` makes the backing queues of all nodes; what it keeps for a node that was killed
    is its disk. `ahead_s()` is how far the time of day of the next node that starts is ahead, and
    `card_sync_s` how long it takes until a card is on disk.
    """

    def __init__(
        self,
        *names: str,
        seed: int = 0,
        delay: Callable[[], float] = lambda: 0.0,
        new_backing: NewBacking = lambda node, spec: MemoryQueue(),
        ahead_s: Callable[[], float] = lambda: 0.0,
        card_sync_s: float = 0.0,
        machine_of: Callable[[str], str] = str,
        **more: Any,
    ) -> None:
        self.seed = seed
        self.machine_of = machine_of
        self.card_sync_s = card_sync_s
        self.ahead_s = ahead_s
        self.clock = ManualClock()
        self.history = SharedHistory(self._schedule)
        self.new_backing = new_backing
        self._delay = delay
        self._more = more
        self._on_way: dict[tuple[str, str], deque[Frame]] = {}
        self._held_back: dict[str, list[Callable[[], None]]] = {}
        # Of links on which nothing passes one way: what has not arrived.
        self._stalled: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self.frozen: set[str] = set()
        # Whether nodes go on that have lost their lease, so that one that can be reached is up.
        self.goes_on_without_lease = False
        # Who is up by the leases there are: as it is, and as each node knows it.
        self.present: set[str] = set()
        self.present_since: dict[str, float] = {}
        self.seen_present: dict[str, set[str]] = {}
        self._presence_lines: dict[str, Line] = {}
        self.nodes: dict[str, ClusterNode] = {}
        # Those before them, of the same names.
        self._former: list[ClusterNode] = []
        self.cards: dict[str, StoredCards] = {}
        self.dead: set[str] = set()
        # The nodes whose disks are found damaged when they start.
        self.damaged: set[str] = set()
        # The nodes that are no members any more, until another one has the name.
        self.forgotten: set[str] = set()
        self.incarnations: Counter[str] = Counter()
        for name in names:
            self._start(name, self.history.open(name))
            self.clock.advance(10)
        for one in names:
            for other in names:
                if one < other:
                    self.connect(one, other)

    def __getitem__(self, name: str) -> ClusterNode:
        return self.nodes[name]

    def _start(self, name: str, store: SimulatedMetadataStore) -> None:
        self.forgotten.discard(name)
        self._set_present(name, True)
        self.seen_present[name] = set(self.present)
        self._presence_lines[name] = Line(f"{name}/presence", self._schedule)
        self.incarnations[name] += 1
        incarnation = self.incarnations[name]
        if name in self.nodes:
            self._former.append(self.nodes[name])
        self.nodes[name] = ClusterNode(self, name, store, incarnation, **self._more)

    def lets_go(self) -> None:
        """Nothing will happen here any more: let the collector have all of this."""
        for node in (*self.nodes.values(), *self._former):
            node.lets_go()

    @property
    def alive(self) -> list[str]:
        return [name for name in self.nodes if name not in self.dead]

    @property
    def working(self) -> list[str]:
        """Those alive that do not stand still."""
        return [name for name in self.alive if name not in self.frozen]

    # Links

    def are_connected(self, one: str, other: str) -> bool:
        return (one, other) in self._on_way

    def may_connect(self, one: str, other: str) -> bool:
        """Whether both live, and have noticed the end of the connection there was."""
        return (
            not self.dead & {one, other}
            and other not in self.nodes[one].links.up
            and one not in self.nodes[other].links.up
        )

    def connect(self, one: str, other: str) -> None:
        for node, peer in ((one, other), (other, one)):
            self._on_way[node, peer] = deque()
            identity = Identity(peer, "00", self.nodes[peer].incarnation, "cluster")
            self.nodes[node].links.up[peer] = identity
        for node, peer in ((one, other), (other, one)):
            links = self.nodes[node].links
            links.user.on_up(peer, links.up[peer])

    def cut(
        self,
        one: str,
        other: str,
        arrives: Callable[[int], int] = lambda count: 0,
        notice_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """The link breaks; of what is on its way, so many messages still arrive.

        Each side notices it after `notice_s()`; what it sends until then is lost.
        """
        for node, peer in ((one, other), (other, one)):
            on_way = self._on_way.pop((node, peer))
            for _ in range(arrives(len(on_way))):
                if peer not in self.dead and (node, peer) not in self._stalled:
                    self.nodes[peer].links.user.on_frames(node, [on_way.popleft()])
        for node, peer in ((one, other), (other, one)):
            links, delay_s = self.nodes[node].links, notice_s()
            if delay_s:
                self.nodes[node].clock.call_later(
                    delay_s, lambda links=links, peer=peer: _notice(links, peer)
                )
            elif node in self.frozen:
                self.nodes[node].clock.call_soon(
                    lambda links=links, peer=peer: _notice(links, peer)
                )
            elif node not in self.dead:
                _notice(links, peer)

    def stall(self, one: str, other: str) -> None:
        """Nothing passes from one node to the other, and nothing is lost either."""
        self._stalled.setdefault((one, other), [])

    def unstall(self, one: str, other: str) -> None:
        for step in self._stalled.pop((one, other), ()):
            self._after_delay(step)

    # Nodes

    def freeze(self, name: str) -> None:
        """The process of the node stands still, and its sockets take what comes."""
        self.frozen.add(name)
        self.nodes[name].clock.freeze()  # type: ignore[attr-defined]
        self.cut_store(name)
        for other in self.nodes:
            if other != name:
                self.stall(other, name)

    def thaw(self, name: str) -> None:
        if name in self.frozen:
            self.frozen.discard(name)
            self.nodes[name].clock.thaw()  # type: ignore[attr-defined]
            for other in self.nodes:
                self.unstall(other, name)
            self.restore_store(name)

    def kill(
        self,
        name: str,
        arrives: Callable[[int], int] = lambda count: 0,
        notice_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """The node dies, and does nothing more; of what it has on its way, so much arrives."""
        store = self.nodes[name].metadata
        assert isinstance(store, SimulatedMetadataStore)
        store.break_off()
        store.close()
        self.nodes[name].clock.is_dead = True  # type: ignore[attr-defined]
        self._presence_lines.pop(name).break_off()
        self.dead.add(name)
        self.frozen.discard(name)
        for other in self.nodes:
            self._stalled.pop((other, name), None)
            self._stalled.pop((name, other), None)
        for other in list(self.nodes):
            if self.are_connected(name, other):
                self.cut(name, other, arrives, notice_s)

    def restart(self, name: str) -> None:
        """A dead node comes back, once it has tidied up after itself; it has no links yet."""
        assert name in self.dead
        store = self.history.open(name)
        commit = store.transact(leftovers.of_node(store, name))
        commit.then(lambda: self._come_back(name, store))

    def _come_back(self, name: str, store: SimulatedMetadataStore) -> None:
        self._start(name, store)
        self.dead.discard(name)

    def comes_back(self, name: str) -> None:
        """A dead node is started again, and reaches all others that are up."""
        self.restart(name)
        self.settle()
        for other in self.alive:
            if other != name:
                self.connect(*sorted((name, other)))

    def lacks_messages(self, name: str, storage_id: int) -> bool:
        """Whether the node knows that a storage of its disk lacks messages; not if it is gone."""
        node = self.nodes.get(name)
        return node is not None and node.mirroring._formers.is_damaged(storage_id)

    def tidy_after(self, name: str) -> None:
        """The lease of a dead node has run out: the first node deletes what does not outlive it."""
        if name in self.dead:
            self.lease_ends(name)

    def has_lease_again(self, name: str) -> None:
        self._set_present(name, True)

    def lease_ends(self, name: str) -> None:
        self._set_present(name, False)
        others = [other for other in self.alive if other != name]
        if others:
            store = self.nodes[min(others)].metadata
            writes = leftovers.of_node(store, name)
            if writes:
                store.transact(writes)

    def _set_present(self, name: str, is_present: bool) -> None:
        if is_present and name not in self.present:
            self.present_since[name] = self.clock.now()
        (self.present.add if is_present else self.present.discard)(name)
        for node, line in self._presence_lines.items():
            seen = self.seen_present[node]
            change = seen.add if is_present else seen.discard
            line.send(lambda change=change: change(name))

    # Definitions

    def cut_store(self, name: str) -> None:
        """Nothing passes between the node and the shared definitions; nothing is lost either."""
        self._held_back.setdefault(name, [])

    def is_store_cut(self, name: str) -> bool:
        return name in self._held_back

    def restore_store(self, name: str) -> None:
        for step in self._held_back.pop(name, ()):
            self._after_delay(lambda step=step: self._pass(name, step))

    def _schedule(self, line: str, step: Callable[[], None]) -> None:
        node = line.partition("/")[0]
        self._after_delay(lambda: self._pass(node, step))

    def _pass(self, node: str, step: Callable[[], None]) -> None:
        held_back = self._held_back.get(node)
        if held_back is None:
            step()
        else:
            held_back.append(step)

    def settle(self) -> None:
        self.clock.settle()

    def carry(self, node: str, peer: str, frame: Frame) -> None:
        on_way = self._on_way.get((node, peer))
        if on_way is None:
            return
        on_way.append(frame)
        self._after_delay(lambda: self._arrive(node, peer, on_way))

    def _arrive(self, node: str, peer: str, on_way: deque[Frame]) -> None:
        stalled = self._stalled.get((node, peer))
        if stalled is not None:
            stalled.append(lambda: self._arrive(node, peer, on_way))
        elif self._on_way.get((node, peer)) is on_way and on_way:
            self.nodes[peer].links.user.on_frames(node, [on_way.popleft()])

    def _after_delay(self, step: Callable[[], None]) -> None:
        delay_s = self._delay()
        if delay_s:
            self.clock.call_later(delay_s, step)
        else:
            self.clock.call_soon(step)


def _raise(error: BaseException) -> None:
    raise error


def _notice(links: FakeLinks, peer: str) -> None:
    if links.up.pop(peer, None) is not None:
        links.user.on_down(peer, EndReason.CONNECTION_LOST)


def random_delays(seed: int, longest_s: float = 0.05) -> Callable[[], float]:
    random = Random(seed).random
    width_s = longest_s - 0.0001
    return lambda: 0.0001 + width_s * random()
