"""Mirrored queues of a simulated cluster."""

from __future__ import annotations

from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field


def ha_cluster() -> Cluster:
    """Three nodes, where every queue whose name begins with `ha` is mirrored to all."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    return cluster


def record(cluster: Cluster, queue: str, node: str = "b") -> QueueRecord:
    stored = cluster[node].metadata.get(("queue", "/", queue))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def declare_mirrored(
    cluster: Cluster, client: Client, queue: str, arguments: dict[str, Field] | None = None
) -> None:
    """Declare a queue at the node of the client, and wait for its mirrors."""
    client.sends(commands.Queue.Declare, queue=queue, durable=True, arguments=arguments or {})
    cluster.clock.advance(3)
    client.receives(commands.Queue.DeclareOk)


def mirrored(cluster: Cluster, queue: str, node: str = "a") -> None:
    """Declare a queue and wait for its mirrors."""
    client = cluster[node].connects()
    client.opens_channel(1)
    declare_mirrored(cluster, client, queue)
    assert len(record(cluster, queue).mirrors) == 2, record(cluster, queue)


def mirrored_later(cluster: Cluster, **definition: str) -> Client:
    """Have a queue at a with a message that its mirrors lack, and a client there."""
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("later", durable=True)
    a.publishes("later", b"only here", delivery_mode=2)
    policy = {"ha-mode": "all", **definition}
    cluster["a"].node.policies.set("/", "l", "^later", policy, 0, "queues")
    cluster.clock.advance(5)
    return a


def hand_over(cluster: Cluster, queue: str, target: str) -> None:
    mirroring = cluster[record(cluster, queue).leader].mirroring
    (led,) = [led for led in mirroring._led.values() if led.queue.name == queue]
    mirroring.hand_overs.begin(led, target)
