"""Several whole nodes in one process, on one clock: brokers, links and shared definitions.

    cluster = Cluster("a", "b", "c")
    client = cluster["a"].connects()

What goes between nodes, and between a node and the shared definitions, takes its time on the clock:
none at all unless `delay` says how much. Messages of one link stay in order; nothing else does.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from manual_clock import ManualClock
from shared_metadata import SharedHistory, SimulatedMetadataStore

sys.path.append(str(Path(__file__).parent.parent / "amqp"))

from pipe import Broker

from warren.core.memory_queue import MemoryQueue
from warren.core.placement import Placement
from warren.mirror.calls import Calls
from warren.mirror.mirroring import Mirroring
from warren.mirror.placement import ClusterPlacement
from warren.mirror.ports import EndReason, Frame, Identity, LinkUser, Part
from warren.mirror.post import Post
from warren.mirror.queue_host import QueueHost
from warren.mirror.remote_queues import RemoteQueues, origin_name


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


class ClusterNode(Broker):
    """A node of the cluster, with what a cluster adds to one."""

    def __init__(self, cluster: Cluster, name: str, **more: Any) -> None:
        self.post = Post()
        self.links = FakeLinks(cluster, name, self.post.user())
        self.post.open(self.links)
        self.calls = Calls(self.post)
        self.remote_queues: RemoteQueues
        self.mirroring: Mirroring
        super().__init__(
            clock=cluster.clock,
            name=name,
            metadata=cluster.history.open(name),
            new_placement=self._placement,
            new_backing_queue=lambda spec: self.mirroring.backing(spec) or MemoryQueue(),
            **more,
        )
        self.host = QueueHost(self.node, self.post, self.calls, self.mirroring)
        self.mirroring.attach(self.node, lambda spec: MemoryQueue())

    def _placement(self, _: Broker) -> Placement:
        self.remote_queues = RemoteQueues(
            self.post,
            self.calls,
            self.clock,
            lambda flow: self.alarms.set_flow(flow, "nodes"),
            origin_name(self.name, 1),
        )
        self.mirroring = Mirroring(
            self.name,
            self.post,
            self.calls,
            self.metadata,
            self.clock,
            self._random,
            self._running,
        )
        return ClusterPlacement(
            self.name,
            self.metadata,
            self.remote_queues,
            self._running,
            self._random,
            self.mirroring,
        )

    def _running(self) -> list[str]:
        return [self.name, *self.links.up]


class Cluster:
    """`delay()` is how many seconds the next message or definition takes; 0 is this turn."""

    def __init__(self, *names: str, delay: Callable[[], float] = lambda: 0.0, **more: Any) -> None:
        self.clock = ManualClock()
        self.history = SharedHistory(self._schedule)
        self._delay = delay
        self._on_way: dict[tuple[str, str], deque[Frame]] = {}
        self.nodes = {}
        self.dead: set[str] = set()
        for name in names:
            self.nodes[name] = ClusterNode(self, name, **more)
            self.clock.advance(10)
        for one in names:
            for other in names:
                if one < other:
                    self.connect(one, other)

    def __getitem__(self, name: str) -> ClusterNode:
        return self.nodes[name]

    def connect(self, one: str, other: str) -> None:
        for node, peer in ((one, other), (other, one)):
            self._on_way[node, peer] = deque()
            links = self.nodes[node].links
            identity = Identity(peer, "00", 1, "cluster")
            links.up[peer] = identity
            links.user.on_up(peer, identity)

    def cut(self, one: str, other: str, arrives: Callable[[int], int] = lambda count: 0) -> None:
        """The link breaks; of what is on its way, so many messages still arrive."""
        for node, peer in ((one, other), (other, one)):
            on_way = self._on_way.pop((node, peer))
            for _ in range(arrives(len(on_way))):
                self.nodes[peer].links.user.on_frames(node, [on_way.popleft()])
        for node, peer in ((one, other), (other, one)):
            links = self.nodes[node].links
            del links.up[peer]
            links.user.on_down(peer, EndReason.CONNECTION_LOST)

    def kill(self, name: str) -> None:
        """The node dies; nothing that it has on its way arrives, and it does nothing more."""
        store = self.nodes[name].metadata
        assert isinstance(store, SimulatedMetadataStore)
        store.break_off()
        store.close()
        for other in list(self.nodes[name].links.up):
            self.cut(name, other)
        self.dead.add(name)

    def settle(self) -> None:
        self.clock.settle()

    def carry(self, node: str, peer: str, frame: Frame) -> None:
        on_way = self._on_way[node, peer]
        on_way.append(frame)
        self._after_delay(lambda: self._arrive(node, peer, on_way))

    def _arrive(self, node: str, peer: str, on_way: deque[Frame]) -> None:
        if self._on_way.get((node, peer)) is on_way and on_way:
            self.nodes[peer].links.user.on_frames(node, [on_way.popleft()])

    def _schedule(self, _line: str, step: Callable[[], None]) -> None:
        self._after_delay(step)

    def _after_delay(self, step: Callable[[], None]) -> None:
        delay_s = self._delay()
        if delay_s:
            self.clock.call_later(delay_s, step)
        else:
            self.clock.call_soon(step)


def random_delays(seed: int, longest_s: float = 0.05) -> Callable[[], float]:
    random = Random(seed)
    return lambda: random.uniform(0.0001, longest_s)
