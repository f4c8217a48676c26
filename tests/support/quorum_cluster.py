"""Quorum queues in a simulated cluster with disks, whose nodes are lost, forgotten and replaced."""

from __future__ import annotations

from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client, Content

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.core.scheduling.waiting import run

QUORUM = {"x-queue-type": Field("S", b"quorum")}


class QuorumCluster(Cluster):
    """Node a leads queue `q`. `forgotten` are nodes that will not come back."""

    disks: dict[str, Disk]
    forgotten: set[str]

    def record(self, queue: str = "q") -> QueueRecord:
        node = next(node for node in self.alive)
        stored = self[node].metadata.get(("queue", "/", queue))
        assert stored is not None and isinstance(stored.record, QueueRecord)
        return stored.record

    def client(self, node: str = "a") -> Client:
        client = self[node].connects()
        client.opens_channel(1)
        return client

    def publisher(self, node: str = "a") -> Client:
        client = self.client(node)
        client.selects_confirms()
        return client

    def loses(self, *nodes: str) -> None:
        for node in nodes:
            self.kill(node)
        for node in nodes:
            self.tidy_after(node)
        self.clock.advance(15)

    def forgets(self, node: str) -> None:
        """A node that is lost is forgotten at another one."""
        self.forgotten.add(node)
        members = self[next(node for node in self.alive)].mirroring.queue_members
        left = self.nodes.keys() - self.forgotten
        run(members.forget(node, left), lambda result: result())
        self.clock.advance(5)

    def begins_anew(self, node: str) -> None:
        """A node with the name of a forgotten one joins, with nothing on its disk."""
        self.forgotten.discard(node)
        del self.disks[node]
        self.comes_back(node)

    def counts(self, node: str) -> list[dict[int, int]]:
        """The delivery counts of the copy that a node has."""
        copies = self[node].mirroring.figures.copies_here()
        return [dict(level.backing.counts) for copy in copies for level in copy.mirror.levels]


def got(client: Client, queue: str = "q", *, no_ack: bool = False) -> Content | None:
    """A message, when members know that it may be handed out; nothing else is on its way."""
    client.frames()
    client.sends(commands.Basic.Get, queue=queue, no_ack=no_ack)
    client.broker.clock.advance(1)
    client._collect()
    if isinstance(client.inbox[0].method, commands.Basic.GetEmpty):
        client.receives(commands.Basic.GetEmpty)
        return None
    return client.receives_content(commands.Basic.GetOk)


def confirmed(client: Client) -> int:
    """Up to which publish of this client all is confirmed."""
    tags = [f.method.delivery_tag for f in client.frames() if f.method.name == "Basic.Ack"]
    return max(tags, default=0)


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    """Of all messages; the queue is empty afterwards."""
    found = []
    while (message := got(client, queue, no_ack=True)) is not None:
        found.append(bytes(message.body))
    return found


def declared(cluster: QuorumCluster, queue: str = "q", **more: Field) -> None:
    arguments = {**QUORUM, **{key.replace("_", "-"): value for key, value in more.items()}}
    cluster.client().declares(queue, durable=True, arguments=arguments)
    cluster.clock.advance(5)


def cluster_of(*nodes: str) -> QuorumCluster:
    disks: dict[str, Disk] = {}
    cluster = QuorumCluster(*nodes, new_backing=backings_on(disks))
    cluster.disks, cluster.forgotten = disks, set()
    return cluster
