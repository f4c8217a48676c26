"""Delayed messages in a cluster: copies of the delay queue, failover, copies made later."""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import cast

import pytest
from cluster import Cluster, ClusterNode, random_delays
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import Table, long, longstr
from warren.core.vhosts.delay_queue import DelayQueue
from warren.mirror.replication.leading.flush_times import WAIT_S

QUEUE = "amq.delayed.dx"
COUNT = 20


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster = Cluster("a", "b", "c")
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": request.param}
    # The name of the exchange is what policies for its queue go by.
    cluster["a"].node.policies.set("/", "ha", "^(dx|to)$", policy, 0, "queues")
    cluster.settle()
    return cluster


def record(cluster: Cluster, queue: str = QUEUE, node: str = "b") -> QueueRecord:
    stored = cluster[node].metadata.get(("queue", "/", queue))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def client_of(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def prepare(cluster: Cluster, node: str = "a", *, durable: bool = True) -> Client:
    """A client at the node where the delayed exchange was declared, with a queue bound to it."""
    client = client_of(cluster, node)
    arguments: Table = {"x-delayed-type": longstr("direct")}
    client.sends(
        commands.Exchange.Declare,
        exchange="dx",
        exchange_type="x-delayed-message",
        durable=durable,
        arguments=arguments,
    )
    cluster.clock.advance(3)
    client.receives(commands.Exchange.DeclareOk)
    client.sends(commands.Queue.Declare, queue="to", durable=True)
    cluster.clock.advance(3)
    client.receives(commands.Queue.DeclareOk)
    client.sends(commands.Queue.Bind, queue="to", exchange="dx", routing_key="k")
    cluster.clock.advance(1)
    client.receives(commands.Queue.BindOk)
    return client


def delay(client: Client, number: int, ms: int) -> None:
    client.publishes(
        "k", b"%d" % number, exchange="dx", headers={"x-delay": long(ms)}, delivery_mode=2
    )


def arrived(client: Client) -> list[int]:
    found = []
    while (content := client.gets("to", no_ack=True)) is not None:
        found.append(int(content.body))
    return found


def backlog(node: ClusterNode) -> int:
    """What the node has of the delay queue as a copy."""
    copies = [c for c in node.mirroring.copies.by_queue.values() if c.key == ("queue", "/", QUEUE)]
    (copy,) = copies
    return copy.mirror.levels[0].backing.length


def test_mirrors_have_what_waits_and_let_go_of_what_is_sent(cluster: Cluster) -> None:
    client = prepare(cluster)
    assert sorted(record(cluster).in_sync) == ["b", "c"]
    for number in range(COUNT):
        # The later, the sooner: they leave in another order than they came.
        delay(client, number, 60_000 - 2000 * number)
    cluster.clock.advance(1)
    assert [backlog(cluster[name]) for name in "bc"] == [COUNT] * 2
    cluster.clock.advance(30)
    sent = len(arrived(client))
    assert 0 < sent < COUNT
    assert [backlog(cluster[name]) for name in "bc"] == [COUNT - sent] * 2
    cluster.clock.advance(40)
    assert [backlog(cluster[name]) for name in "bc"] == [0, 0]


def test_confirms_wait_for_the_mirrors(cluster: Cluster) -> None:
    client = prepare(cluster)
    client.selects_confirms()
    delay(client, 1, 1000)
    client.sends(commands.Basic.Qos, prefetch_count=1)
    client.receives(commands.Basic.QosOk)
    cluster.clock.advance(0.2)
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


@pytest.mark.parametrize("node", ["a", "b"])
def test_the_next_leader_sends_what_waits_on_time_and_in_order(cluster: Cluster, node: str) -> None:
    prepare(cluster)
    client = client_of(cluster, "b" if node == "b" else "a")
    client.selects_confirms()
    for number in range(COUNT):
        delay(client, number, 60_000 - 2000 * number)
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == COUNT
    cluster.kill("a")
    cluster.clock.advance(10)
    leader = record(cluster).leader
    assert leader in "bc"
    other = client_of(cluster, leader)
    assert arrived(other) == []
    cluster.clock.advance(100)
    assert arrived(other) == list(range(COUNT))[::-1]
    assert len(cluster[leader].queue(QUEUE)) == 0


def test_messages_that_are_sent_while_the_leader_dies_arrive(cluster: Cluster) -> None:
    client = prepare(cluster)
    client.selects_confirms()
    for number in range(COUNT):
        delay(client, number, 5000)
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == COUNT
    cluster.clock.advance(3.995)
    cluster.kill("a")
    cluster.clock.advance(30)
    other = client_of(cluster, record(cluster).leader)
    assert set(arrived(other)) == set(range(COUNT))


def test_a_copy_that_is_made_later_has_all_of_it(cluster: Cluster) -> None:
    cluster["a"].node.policies.clear("/", "ha")
    cluster.settle()
    client = prepare(cluster)
    assert not record(cluster).mirrors
    for number in range(COUNT):
        delay(client, number, 60_000 - 2000 * number)
    cluster.clock.advance(1)
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^(dx|to)$", policy, 0, "queues")
    cluster.clock.advance(10)
    assert sorted(record(cluster).in_sync) == ["b", "c"]
    assert [backlog(cluster[name]) for name in "bc"] == [COUNT] * 2
    cluster.kill("a")
    cluster.clock.advance(100)
    other = client_of(cluster, record(cluster).leader)
    assert arrived(other) == list(range(COUNT))[::-1]


def test_a_publish_at_another_node_is_delayed_at_the_leader(cluster: Cluster) -> None:
    prepare(cluster)
    client = client_of(cluster, "c")
    delay(client, 1, 5000)
    cluster.clock.advance(1)
    assert len(cluster["a"].queue(QUEUE)) == 1
    assert arrived(client) == []
    cluster.clock.advance(5)
    assert arrived(client) == [1]
    client.sends(commands.Basic.Get, queue=QUEUE)
    client.receives_close(403)


def test_what_is_cancelled_or_sent_now_is_so_at_mirrors_too(cluster: Cluster) -> None:
    client = prepare(cluster)
    for number in range(4):
        delay(client, number, 60_000)
    cluster.clock.advance(1)
    queue = cast(DelayQueue, cluster["a"].queue(QUEUE))
    first, second, *_ = [
        message.position for message in queue.look_at(islice(queue.due_order(), 10))
    ]
    assert queue.cancel([first]) == 1
    # Mirrors hear of it when the turn is over: the operator is answered then.
    cluster.settle()
    assert [backlog(cluster[name]) for name in "bc"] == [3, 3]
    assert queue.send_now([second, first]) == 1
    cluster.clock.advance(1)
    assert arrived(client) == [1]
    assert [backlog(cluster[name]) for name in "bc"] == [2, 2]
    cluster.clock.advance(WAIT_S)
    cluster.kill("a")
    cluster.clock.advance(100)
    assert arrived(client_of(cluster, record(cluster).leader)) == [2, 3]


def test_another_node_takes_over_in_order(cluster: Cluster) -> None:
    """As when leaders are spread anew, or a node goes to maintenance."""
    client = prepare(cluster)
    for number in range(COUNT):
        delay(client, number, 60_000 - 2000 * number)
    cluster.clock.advance(1)
    mirroring = cluster["a"].mirroring
    (led,) = [led for led in mirroring._led.values() if led.queue.name == QUEUE]
    mirroring.hand_overs.begin(led, "b")
    cluster.clock.advance(10)
    assert record(cluster).leader == "b"
    cluster.clock.advance(60)
    assert arrived(client) == list(range(COUNT))[::-1]


def test_the_queue_goes_everywhere_with_its_exchange(cluster: Cluster) -> None:
    client = prepare(cluster)
    delay(client, 1, 60_000)
    client.sends(commands.Exchange.Delete, exchange="dx")
    cluster.clock.advance(3)
    client.receives(commands.Exchange.DeleteOk)
    for name in "abc":
        assert QUEUE not in cluster[name].vhost.queues
    for name in "bc":
        assert not [c for c in cluster[name].mirroring.copies.by_queue.values() if QUEUE in c.key]


def test_a_transient_exchange_has_another_queue_when_the_node_of_its_queue_is_gone(
    cluster: Cluster,
) -> None:
    cluster["a"].node.policies.clear("/", "ha")
    cluster.settle()
    prepare(cluster, durable=False)
    queue_id = record(cluster).queue_id
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(30)
    assert "dx" in cluster["b"].vhost.exchanges
    assert record(cluster).queue_id != queue_id
    assert record(cluster).leader in "bc"
    other = client_of(cluster, "b")
    other.sends(commands.Queue.Declare, queue="other")
    cluster.clock.advance(1)
    other.receives(commands.Queue.DeclareOk)
    other.sends(commands.Queue.Bind, queue="other", exchange="dx", routing_key="k")
    cluster.clock.advance(1)
    other.receives(commands.Queue.BindOk)
    delay(other, 1, 5000)
    cluster.clock.advance(6)
    assert other.counts("other") == (1, 0)


class Publisher:
    """A client that publishes numbers with delays, and knows which of them were confirmed."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.client = client_of(cluster, node)
        self.client.selects_confirms()
        self.node = node
        self.sent: list[int] = []
        self.confirmed: set[int] = set()

    def publishes(self, number: int, ms: int) -> None:
        self.sent.append(number)
        delay(self.client, number, ms)

    def hear(self) -> None:
        for frame in self.client.frames():
            ack = frame.method
            if isinstance(ack, commands.Basic.Ack):
                upto = self.sent[: ack.delivery_tag]
                self.confirmed.update(upto if ack.multiple else upto[-1:])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_whatever_was_confirmed_arrives_when_leaders_come_and_go(carrier: str, seed: int) -> None:
    random = Random(seed)
    cluster = Cluster("a", "b", "c", delay=random_delays(seed, 0.02))
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": carrier}
    cluster["a"].node.policies.set("/", "ha", "^(dx|to)$", policy, 0, "queues")
    cluster.clock.advance(1)
    prepare(cluster)
    publishers = {name: Publisher(cluster, name) for name in "abc"}
    all_publishers = list(publishers.values())
    published = 0
    for _ in range(6):
        for _ in range(random.randint(5, 40)):
            name = random.choice(sorted(set(cluster.alive)))
            publishers[name].publishes(published, random.randint(1, 20_000))
            published += 1
            if random.random() < 0.3:
                cluster.clock.advance(random.uniform(0, 0.5))
        cluster.clock.advance(random.uniform(0, 3))
        victim = random.choice([record(cluster, node=cluster.alive[0]).leader, *"abc"])
        publishers[victim].hear()
        cluster.kill(victim)
        cluster.clock.advance(random.uniform(5, 10))
        cluster.comes_back(victim)
        cluster.clock.advance(20)
        publishers[victim] = Publisher(cluster, victim)
        all_publishers.append(publishers[victim])
        for queue in (QUEUE, "to"):
            assert len(record(cluster, queue).in_sync) == 2, "no copy is whole again"
    cluster.clock.advance(60)
    confirmed: set[int] = set()
    for publisher in all_publishers:
        if publisher in publishers.values():
            publisher.hear()
        confirmed |= publisher.confirmed
    assert len(confirmed) > published // 2
    consumer = client_of(cluster, record(cluster, "to").leader)
    consumer.sends(commands.Basic.Consume, queue="to", consumer_tag="c", no_ack=True)
    cluster.clock.advance(5)
    consumer.receives(commands.Basic.ConsumeOk)
    found = [int(body) for body in consumer.receives_bodies()]
    assert not confirmed - set(found), "confirmed messages are lost"
    assert len(cluster[record(cluster).leader].queue(QUEUE)) == 0
