"""Queues with mirrors that take each message id once: the next leader knows the ids."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import long
from warren.core.queues.deduplicating_queue import DeduplicatingQueue

SIZE = 1200
"""More than are read in one go."""

POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster = Cluster("a", "b", "c")
    mirror(cluster, request.param)
    return cluster


def mirror(cluster: Cluster, carrier: str) -> None:
    policy = {**POLICY, "ha-replication": carrier}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.settle()


def record(cluster: Cluster) -> QueueRecord:
    stored = cluster[cluster.alive[-1]].metadata.get(("queue", "/", "q"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def leader(cluster: Cluster) -> str:
    return record(cluster).leader


def queue_at(cluster: Cluster, node: str) -> DeduplicatingQueue:
    queue = cluster[node].queue("q")
    assert isinstance(queue, DeduplicatingQueue)
    return queue


def client_of(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    return client


def declare(cluster: Cluster) -> Client:
    client = client_of(cluster, "a")
    arguments = {"x-message-deduplication-window": long(SIZE)}
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    cluster.clock.advance(3)
    client.receives(commands.Queue.DeclareOk)
    return client


def publish(cluster: Cluster, client: Client, ids: range) -> None:
    for number in ids:
        client.publishes("q", b"%d" % number, message_id=f"id-{number}", delivery_mode=2)
    cluster.clock.advance(2)
    acked = 0
    while acked < len(ids):
        ack = client.receives(commands.Basic.Ack)
        acked += len(ids) if ack.multiple else 1
    cluster.clock.advance(1)


def consume(cluster: Cluster, client: Client, count: int) -> list[int]:
    found = []
    for _ in range(count):
        client.sends(commands.Basic.Get, queue="q")
        cluster.clock.advance(1)
        content = client.receives_content(commands.Basic.GetOk)
        client.acks(content.method.delivery_tag)
        found.append(int(content.body))
    cluster.clock.advance(1)
    return found


def test_ids_are_known_to_the_next_leader(cluster: Cluster) -> None:
    client = declare(cluster)
    publish(cluster, client, range(SIZE))
    assert consume(cluster, client, 3) == [0, 1, 2]
    assert leader(cluster) == "a"
    cluster.kill("a")
    cluster.clock.advance(10)
    node = leader(cluster)
    publish(cluster, client_of(cluster, node), range(SIZE))
    queue = queue_at(cluster, node)
    assert (len(queue), queue.ids, queue.duplicates) == (SIZE - 3, SIZE, SIZE)
    publish(cluster, client_of(cluster, node), range(SIZE, SIZE + 5))
    assert (len(queue), queue.ids) == (SIZE + 2, SIZE)


def test_a_mirror_that_is_made_later_is_told_the_ids(cluster: Cluster) -> None:
    cluster["a"].node.policies.clear("/", "ha")
    cluster.settle()
    client = declare(cluster)
    publish(cluster, client, range(20))
    assert consume(cluster, client, 20) == list(range(20))
    mirror(cluster, "gm")
    cluster.clock.advance(10)
    cluster.kill("a")
    cluster.clock.advance(10)
    node = leader(cluster)
    publish(cluster, client_of(cluster, node), range(25))
    queue = queue_at(cluster, node)
    assert (len(queue), queue.ids, queue.duplicates) == (5, 25, 20)


def test_another_node_publishes_to_it(cluster: Cluster) -> None:
    client = declare(cluster)
    publish(cluster, client, range(5))
    publish(cluster, client_of(cluster, "b"), range(7))
    cluster["a"].node.policies.clear("/", "ha")
    cluster.clock.advance(5)
    publish(cluster, client_of(cluster, "c"), range(9))
    queue = queue_at(cluster, "a")
    assert (len(queue), queue.ids, queue.duplicates) == (9, 9, 12)


def test_ids_go_along_when_the_lead_moves(cluster: Cluster) -> None:
    client = declare(cluster)
    publish(cluster, client, range(5))
    cluster["a"].node.policies.clear("/", "ha")
    cluster.clock.advance(5)
    policy = {"ha-mode": "nodes", "ha-params": ["b"], "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.clock.advance(30)
    assert leader(cluster) == "b"
    publish(cluster, client, range(7))
    queue = queue_at(cluster, "b")
    assert (len(queue), queue.ids, queue.duplicates) == (7, 7, 5)


def test_a_duplicate_of_what_a_dead_leader_took_waits_for_the_mirror_that_lacks_it() -> None:
    cluster = Cluster("a", "b", "c", delay=lambda: 0.02)
    mirror(cluster, "log")
    cluster.clock.advance(1)
    client = declare(cluster)
    publish(cluster, client, range(3))
    cluster.stall("a", "c")
    client.publishes("q", b"3", message_id="id-3", delivery_mode=2)
    cluster.clock.advance(0.5)
    assert not client.frames()
    cluster.kill("a")
    while leader(cluster) == "a":
        cluster.clock.advance(0.01)
    # It leads with the vote of the other one, which lacks the message.
    assert leader(cluster) == "b"
    cluster.stall("b", "c")
    cluster.clock.advance(1)
    again = client_of(cluster, "b")
    for _ in range(2):
        again.publishes("q", b"3", message_id="id-3", delivery_mode=2)
    cluster.clock.advance(1)
    queue = queue_at(cluster, "b")
    assert (len(queue), queue.ids, queue.duplicates) == (4, 4, 2)
    assert not again.frames()
    cluster.unstall("b", "c")
    cluster.clock.advance(3)
    assert again.receives(commands.Basic.Ack).delivery_tag
    cluster.kill("b")
    cluster.clock.advance(30)
    assert leader(cluster) == "c"
    queue = queue_at(cluster, "c")
    assert (len(queue), queue.ids) == (4, 4)
