"""Mirrored queues of a simulated cluster."""

from __future__ import annotations

from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field


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
