"""Mirrored queues on whole nodes: what clients see of leaders, mirrors and failures."""

from __future__ import annotations

import gc
from random import Random

import pytest
from cluster import Cluster, ClusterNode
from mirrored import declare_mirrored, mirrored, record
from pamqp import commands
from pipe import Client, publish_frames

from warren.amqp.properties import AmqpContentCodec
from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.core.queues.consumers import Consumer
from warren.core.scheduling.waiting import run
from warren.mirror.replication.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.hand_over import PATIENCE_S
from warren.mirror.replication.leader import BATCH_BYTES_MAX
from warren.mirror.replication.replicas import SyncLimits, Wanted


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    return cluster


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


def test_a_new_queue_has_mirrors_in_sync_at_every_node(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    assert sorted(record(cluster, "ha").mirrors) == ["b", "c"]
    assert sorted(record(cluster, "ha").in_sync) == ["b", "c"]


def test_confirms_come_when_every_mirror_has_the_message(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    for number in range(3):
        client.publishes("ha", b"%d" % number)
    assert client.receives(commands.Basic.Ack).delivery_tag == 3
    for node in "bc":
        (copy,) = cluster[node].mirroring.copies.by_queue.values()
        assert copy.mirror.levels[0].backing.length == 3


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_message_that_fills_a_batch_is_confirmed(cluster: Cluster, node: str) -> None:
    """Though nobody does anything with the queue after that."""
    mirrored(cluster, "ha")
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.publishes("ha", bytes(2 * BATCH_BYTES_MAX))
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


@pytest.mark.parametrize("lost", ["", "bc"])
def test_many_publishes_that_come_at_once_are_confirmed(cluster: Cluster, lost: str) -> None:
    """A leader without mirrors may confirm the first of them before it has taken the last."""
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    for name in lost:
        cluster.kill(name)
    cluster.clock.advance(30)
    count = 3 * BATCH_BYTES_MAX // 4000
    client.sends_octets(publish_frames(1, "", "ha", bytes(4000)) * count)
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == count


def test_messages_pass_through_a_mirrored_queue(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    b, c = cluster["b"].connects(), cluster["c"].connects()
    for client in (b, c):
        client.opens_channel(1)
    c.consumes("ha")
    b.selects_confirms()
    for number in range(5):
        b.publishes("ha", b"%d" % number, delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 5
    assert c.receives_bodies() == [b"%d" % number for number in range(5)]
    c.acks(3, multiple=True)
    cluster.settle()
    for node in "bc":
        (copy,) = cluster[node].mirroring.copies.by_queue.values()
        assert copy.mirror.levels[0].backing.length == 0
        assert len(copy.mirror.levels[0].pending) == 2


def test_a_mirror_takes_the_lead_when_the_leader_dies(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    b, c = cluster["b"].connects(), cluster["c"].connects()
    for client in (b, c):
        client.opens_channel(1)
    b.selects_confirms()
    for number in range(4):
        b.publishes("ha", b"%d" % number, delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 4
    c.consumes("ha")
    assert c.receives_bodies() == [b"0", b"1", b"2", b"3"]
    c.acks(1)
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader in ("b", "c")
    assert record(cluster, "ha").epoch == 1
    deliveries = c.receives_deliveries()
    assert [delivery.body for delivery in deliveries] == [b"1", b"2", b"3"]
    assert all(delivery.method.redelivered for delivery in deliveries)
    # Verdicts on what the old leader had handed over are passed over.
    c.acks(4, multiple=True)
    assert c.receives_bodies() == []
    c.acks(7, multiple=True)
    assert b.counts("ha") == (0, 1)
    b.publishes("ha", b"after", delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 5
    assert c.receives_bodies() == [b"after"]


def test_publishes_under_way_when_the_leader_dies_arrive_once(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.selects_confirms()
    b.publishes("ha", b"0", delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 1
    b.publishes("ha", b"1", delivery_mode=2)
    cluster.kill("a")
    b.publishes("ha", b"2", delivery_mode=2)
    cluster.clock.advance(5)
    b.publishes("ha", b"3", delivery_mode=2)
    cluster.clock.advance(1)
    acks = [f.method for f in b.frames()]
    assert acks[-1].delivery_tag == 4
    bodies = []
    while (got := b.gets("ha", no_ack=True)) is not None:
        bodies.append(got.body)
    assert bodies == [b"0", b"1", b"2", b"3"]


def test_a_mirror_that_dies_is_waited_for_no_longer(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.selects_confirms()
    cluster.kill("c")
    a.publishes("ha", b"1", delivery_mode=2)
    cluster.clock.advance(5)
    assert a.receives(commands.Basic.Ack).delivery_tag == 1
    assert record(cluster, "ha").mirrors == ["b"]


def test_a_policy_makes_mirrors_of_a_queue_with_messages_and_sync_fills_them(
    cluster: Cluster,
) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("later", durable=True)
    for number in range(1000):
        a.publishes("later", b"%d" % number, delivery_mode=2)
    assert a.gets("later") is not None
    policies = cluster["b"].node.policies
    policies.set("/", "later", "^later", {"ha-mode": "exactly", "ha-params": 2}, 0, "queues")
    cluster.clock.advance(5)
    assert len(record(cluster, "later").mirrors) == 1
    assert record(cluster, "later").in_sync == []
    cluster["a"].mirroring.synchronise(cluster["a"].queue("later"))
    a.publishes("later", b"during", delivery_mode=2)
    cluster.clock.advance(5)
    assert record(cluster, "later").in_sync == record(cluster, "later").mirrors
    (mirror,) = record(cluster, "later").mirrors
    (copy,) = cluster[mirror].mirroring.copies.by_queue.values()
    assert copy.mirror.levels[0].backing.length == 1000
    assert len(copy.mirror.levels[0].pending) == 1
    policies.clear("/", "later")
    cluster.clock.advance(5)
    assert record(cluster, "later").mirrors == []
    assert not cluster[mirror].mirroring.copies.by_queue
    assert a.counts("later")[0] == 1000


@pytest.mark.parametrize(("size", "slices"), [(10, 10), (1, 1), (4096, 1)])
def test_a_policy_says_how_much_a_mirror_is_sent_at_a_time_at_most(
    cluster: Cluster, size: int, slices: int
) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("later", durable=True)
    for number in range(100):
        a.publishes("later", b"%d" % number, delivery_mode=2)
    definition = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-batch-size": size}
    cluster["b"].node.policies.set("/", "later", "^later", definition, 0, "queues")
    cluster.clock.advance(5)
    cluster["a"].mirroring.synchronise(cluster["a"].queue("later"))
    cluster.clock.advance(5)
    assert record(cluster, "later").in_sync == ["b"]
    (led,) = cluster["a"].mirroring._led.values()
    assert led.leader._slices == slices


def test_a_mirror_that_dies_is_replaced_where_there_are_to_be_so_many(cluster: Cluster) -> None:
    definition = {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "two", "^two", definition, 0, "queues")
    a = cluster["a"].connects()
    a.opens_channel(1)
    declare_mirrored(cluster, a, "two")
    a.selects_confirms()
    a.publishes("two", b"kept", delivery_mode=2)
    cluster.clock.advance(1)
    assert a.receives(commands.Basic.Ack).delivery_tag == 1
    (mirror,) = record(cluster, "two", "a").mirrors
    (other,) = {"b", "c"} - {mirror}
    cluster.kill(mirror)
    cluster.clock.advance(15)
    assert record(cluster, "two", "a").mirrors == record(cluster, "two", "a").in_sync == [other]
    # Who comes back is not wanted any more, and who has taken its place stays.
    cluster.comes_back(mirror)
    cluster.clock.advance(15)
    assert record(cluster, "two", "a").mirrors == [other]
    assert not cluster[mirror].mirroring.copies.by_queue
    cluster.kill("a")
    cluster.clock.advance(15)
    assert record(cluster, "two", other).leader == other
    client = cluster[other].connects()
    client.opens_channel(1)
    assert client.gets("two").body == b"kept"
    # And has a mirror again.
    cluster.clock.advance(5)
    assert record(cluster, "two", other).in_sync == [mirror]


def test_the_configuration_says_it_where_no_policy_does() -> None:
    limits = SyncLimits(50, 1000)
    for definition in ({}, {"ha-sync-batch-size": 1}):
        wanted = Wanted.of(definition, limits)
        assert (wanted.sync_batch, wanted.catch_up_rate) == limits
    assert Wanted.of({"ha-sync-batch-size": 20}, limits).sync_batch == 20
    assert Wanted.of({"log-catchup-rate": 0}, limits).catch_up_rate == 0


def test_automatic_sync_needs_nobody(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("auto")
    for number in range(10):
        a.publishes("auto", b"%d" % number)
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "auto", "^auto", definition, 0, "queues")
    cluster.clock.advance(5)
    assert sorted(record(cluster, "auto").in_sync) == ["b", "c"]


def test_a_deleted_queue_leaves_no_copy(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.sends(commands.Queue.Delete, queue="ha")
    a.receives(commands.Queue.DeleteOk)
    cluster.clock.advance(2)
    for node in "abc":
        assert not cluster[node].mirroring.copies.by_queue
        assert not cluster[node].mirroring._led
        assert not list(cluster[node].metadata.records(("group",)))


def test_exclusive_queues_are_never_mirrored(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("ha-mine", exclusive=True)
    cluster.clock.advance(3)
    assert record(cluster, "ha-mine").mirrors == []


def test_priority_queues_are_mirrored_level_by_level(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    arguments = {"x-max-priority": Field("b", 3)}
    a.sends(commands.Queue.Declare, queue="ha", arguments=arguments)
    cluster.clock.advance(3)
    a.receives(commands.Queue.DeclareOk)
    for priority in (0, 3, 1):
        a.publishes("ha", b"%d" % priority, priority=priority)
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(5)
    bodies = []
    while (got := b.gets("ha", no_ack=True)) is not None:
        bodies.append(got.body)
    assert bodies == [b"3", b"1", b"0"]


def test_consumers_that_ask_for_it_are_cancelled_at_failover(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    c = cluster["c"].connects()
    c.opens_channel(1)
    c.consumes("ha", arguments={"x-cancel-on-ha-failover": Field("t", True)})
    cluster.kill("a")
    cluster.clock.advance(5)
    assert c.receives(commands.Basic.Cancel).consumer_tag == "c"


def test_a_leader_that_stops_in_order_hands_over(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.selects_confirms()
    b.publishes("ha", b"kept", delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 1
    cluster["a"].mirroring.stop_leading()
    cluster.kill("a")
    cluster.clock.advance(3)
    assert record(cluster, "ha").leader != "a"
    got = b.gets("ha")
    assert got is not None and got.body == b"kept"


def test_a_leader_that_stops_without_a_mirror_in_sync_is_waited_for(cluster: Cluster) -> None:
    mirrored_later(cluster)
    assert record(cluster, "later").in_sync == []
    cluster["a"].mirroring.stop_leading()
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(5)
    assert record(cluster, "later").leader == "a"
    assert record(cluster, "later").down


def test_a_leader_that_stops_is_not_waited_for_where_its_policy_says_so(cluster: Cluster) -> None:
    mirrored_later(cluster, **{"ha-promote-on-shutdown": "always"})
    cluster["a"].mirroring.stop_leading()
    cluster.settle()
    assert not record(cluster, "later").down
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(3)
    assert record(cluster, "later").leader in ("b", "c")
    assert "not in sync" in record(cluster, "later").promoted


def test_with_always_a_mirror_that_lacks_messages_takes_the_lead_of_a_dead_leader(
    cluster: Cluster,
) -> None:
    a, b = mirrored_later(cluster), cluster["b"].connects()
    b.opens_channel(1)
    a.publishes("later", b"everywhere", delivery_mode=2)
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(5)
    assert record(cluster, "later").leader == "a", "it may only be cut off"
    cluster.tidy_after("a")
    cluster.clock.advance(2)
    assert record(cluster, "later").leader in ("b", "c")
    assert "not in sync" in record(cluster, "later").promoted
    got = b.gets("later")
    assert got is not None and got.body == b"everywhere"


def test_with_when_synced_nobody_takes_the_lead_over_an_unsynchronised_queue(
    cluster: Cluster,
) -> None:
    mirrored_later(cluster, **{"ha-promote-on-failure": "when-synced"})
    cluster.kill("a")
    cluster.clock.advance(5)
    assert record(cluster, "later").leader == "a"


def test_the_lead_moves_to_a_listed_node_when_that_is_in_sync(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
        client.selects_confirms()
    a.declares("move", durable=True)
    for number in range(5):
        a.publishes("move", b"%d" % number, delivery_mode=2)
    assert a.receives(commands.Basic.Ack).delivery_tag == 5
    a.consumes("move")
    assert a.receives_bodies() == [b"%d" % number for number in range(5)]
    definition = {"ha-mode": "nodes", "ha-params": ["b", "c"], "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "m", "^move", definition, 0, "queues")
    for number in range(5, 10):
        a.publishes("move", b"%d" % number, delivery_mode=2)
        b.publishes("move", b"%d" % (number + 10), delivery_mode=2)
        cluster.clock.advance(0.002)
    cluster.clock.advance(5)
    assert record(cluster, "move").leader == "b"
    assert sorted(record(cluster, "move").mirrors) == ["c"]
    a_frames = a.frames()
    acked = [f.method for f in a_frames if f.kind == 1 and isinstance(f.method, commands.Basic.Ack)]
    assert acked[-1].delivery_tag == 10
    assert not [f for f in a_frames if f.kind == 1 and isinstance(f.method, commands.Basic.Nack)]
    a.vanishes()
    assert b.frames()
    bodies = set()
    while (got := b.gets("move", no_ack=True)) is not None:
        bodies.add(got.body)
    assert bodies == {b"%d" % number for number in (*range(10), *range(15, 20))}


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_told_that_a_queue_is_gone_while_it_moves(seed: int) -> None:
    random = Random(seed)
    slow = random.choice((0.0, 0.02, 0.2))
    delay = (0.0, 0.001, 0.01, slow)
    cluster = Cluster("a", "b", "c", seed=seed, delay=lambda: random.choice(delay))
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    clients = {node: cluster[node].connects() for node in "abc"}
    for client in clients.values():
        for channel in (1, 2, 3):
            client.sends(commands.Channel.Open, channel)
    cluster.clock.advance(2)
    clients["a"].sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(5)
    number = 0

    def asks(client: Client, channel: int) -> None:
        nonlocal number
        number += 1
        match random.randrange(5):
            case 0:
                client.sends(commands.Basic.Get, channel, queue="ha", no_ack=True)
            case 1:
                client.sends(commands.Queue.Purge, channel, queue="ha")
            case 2:
                passive = random.random() < 0.5
                client.sends(
                    commands.Queue.Declare,
                    channel,
                    queue="ha",
                    durable=True,
                    passive=passive,
                    arguments={},
                )
            case 3:
                client.sends(commands.Basic.Consume, channel, queue="ha", consumer_tag=f"{number}")
            case _:
                client.publishes("ha", b"x", channel)

    for _ in range(60):
        led = record(cluster, "ha")
        knows_that_it_leads = bool(cluster[led.leader].mirroring._led)
        if random.random() < 0.25 and led.in_sync and knows_that_it_leads:
            hand_over(cluster, "ha", random.choice(sorted(led.in_sync)))
        for client in clients.values():
            for channel in (1, 2, 3):
                if random.random() < 0.3:
                    asks(client, channel)
        cluster.clock.advance(random.choice((0, 0.001, 0.005, 0.03, 0.3)))
        for client in clients.values():
            methods = [frame.method for frame in client.frames() if frame.kind == 1]
            assert not [one for one in methods if isinstance(one, commands.Channel.Close)]


def test_queues_are_spread_over_the_nodes(cluster: Cluster) -> None:
    for number in range(6):
        mirrored(cluster, f"ha{number}")
    run(cluster["b"].mirroring.hand_overs.rebalance(), lambda result: result())
    cluster.clock.advance(5)
    leaders = [record(cluster, f"ha{number}").leader for number in range(6)]
    assert sorted(leaders) == ["a", "a", "b", "b", "c", "c"]
    assert all(len(record(cluster, f"ha{number}").in_sync) == 2 for number in range(6))


def test_only_the_queues_that_are_named_are_spread(cluster: Cluster) -> None:
    for number in range(6):
        mirrored(cluster, f"{'ha' if number < 4 else 'ha.stay'}{number}")
    led: list[dict[str, int]] = []
    hand_overs = cluster["a"].mirroring.hand_overs
    run(hand_overs.rebalance("^/$", "^ha[0-9]"), lambda result: led.append(result()))
    cluster.clock.advance(5)
    leaders = [record(cluster, f"ha{number}").leader for number in range(4)]
    assert sorted(leaders) == ["b", "b", "c", "c"]
    assert led == [{"b": 2, "c": 2}]
    assert [record(cluster, f"ha.stay{number}").leader for number in (4, 5)] == ["a", "a"]
    run(hand_overs.rebalance("other"), lambda result: led.append(result()))
    cluster.clock.advance(1)
    assert led[-1] == {}


def test_a_queue_is_declared_when_its_mirrors_are_there(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    a.receives(commands.Queue.DeclareOk)
    assert sorted(record(cluster, "ha").mirrors) == ["b", "c"]


def test_a_queue_is_declared_when_slow_nodes_have_their_mirrors(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    cluster.cut_store("b")
    a.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(0.3)
    a.receives_nothing()
    cluster.restore_store("b")
    cluster.settle()
    a.receives(commands.Queue.DeclareOk)
    assert sorted(record(cluster, "ha").mirrors) == ["b", "c"]


def test_a_queue_is_declared_without_nodes_that_take_too_long(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    cluster.cut_store("b")
    declare_mirrored(cluster, a, "ha")
    assert record(cluster, "ha", "a").mirrors == ["c"]
    cluster.restore_store("b")
    cluster.clock.advance(3)
    assert sorted(record(cluster, "ha").mirrors) == ["b", "c"]


def test_what_the_next_leader_drops_at_once_its_mirrors_drop_too(cluster: Cluster) -> None:
    """What was out for acknowledgement is ready again there, and then it is too much."""
    client = cluster["a"].connects()
    client.opens_channel(1)
    limit = {"x-max-length": Field("I", 3)}
    declare_mirrored(cluster, client, "ha", limit)
    client.publishes("ha", b"out")
    client.gets("ha")
    for number in range(3):
        client.publishes("ha", b"%d" % number)
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(5)
    leader = record(cluster, "ha").leader
    (mirror,) = {"b", "c"} - {leader}
    (copy,) = cluster[mirror].mirroring.copies.by_queue.values()
    assert copy.mirror.levels[0].backing.length == 3
    cluster.kill(leader)
    cluster.clock.advance(15)
    survivor = cluster[mirror].connects()
    survivor.opens_channel(1)
    bodies = [survivor.gets("ha", no_ack=True).body for _ in range(3)]
    assert bodies == [b"0", b"1", b"2"]


def test_who_subscribes_while_there_is_no_leader_is_served_by_the_next_one(
    cluster: Cluster,
) -> None:
    mirrored(cluster, "ha")
    b, c = cluster["b"].connects(), cluster["c"].connects()
    for client in (b, c):
        client.opens_channel(1)
        client.sets_prefetch(1)
    b.publishes("ha", b"before")
    b.publishes("ha", b"before too")
    cluster.settle()
    cluster.kill("a")
    for client in (b, c):
        client.sends(commands.Basic.Consume, queue="ha", consumer_tag="late")
    cluster.clock.advance(5)
    for client in (b, c):
        assert client.receives(commands.Basic.ConsumeOk).consumer_tag == "late"
    assert sorted(b.receives_bodies() + c.receives_bodies()) == [b"before", b"before too"]
    assert b.counts("ha") == (0, 2)


def is_led_by(cluster: Cluster, node: str) -> bool:
    """Whether the node leads its one queue, and may confirm."""
    return [led.leader.fenced for led in cluster[node].mirroring._led.values()] == [False]


def test_a_leader_that_was_away_waits_for_a_mirror_that_cannot_reach_the_definitions(
    cluster: Cluster,
) -> None:
    mirrored(cluster, "ha")
    c = cluster["c"].connects()
    c.opens_channel(1)
    c.selects_confirms()
    c.publishes("ha", b"not on the disk of a")
    assert c.receives(commands.Basic.Ack).delivery_tag == 1
    for mirror in "bc":
        cluster.cut_store(mirror)
    cluster.kill("a")
    cluster.comes_back("a")
    cluster.clock.advance(30)
    assert record(cluster, "ha", "a").leader == "a" and not is_led_by(cluster, "a")
    for mirror in "bc":
        cluster.restore_store(mirror)
    cluster.clock.advance(3)
    assert record(cluster, "ha", "a").leader in ("b", "c")
    got = c.gets("ha")
    assert got is not None and got.body == b"not on the disk of a"


def test_when_no_mirror_has_a_copy_left_the_leader_goes_on_at_once(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    for node in "abc":
        cluster.kill(node)
    for node in "cba":
        cluster.comes_back(node)
    cluster.clock.advance(0.1)
    assert is_led_by(cluster, "a")


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
@pytest.mark.parametrize("apart_s", [0.0, 20.0])
def test_a_cluster_that_was_killed_comes_back_whatever_node_is_first(
    cluster: Cluster, order: str, apart_s: float
) -> None:
    """MS26; where the leader is not up for so long that nobody waits for it, the first leads."""
    mirrored(cluster, "ha")
    for node in "abc":
        cluster.kill(node)
    if apart_s:
        for node in "abc":
            cluster.tidy_after(node)
    for node in order:
        cluster.comes_back(node)
        cluster.clock.advance(apart_s)
    cluster.clock.advance(10)
    leader = order[0] if apart_s > LEADER_MAY_COME_S else "a"
    assert is_led_by(cluster, leader)
    assert {leader, *record(cluster, "ha").in_sync} == {"a", "b", "c"}


def test_a_bid_for_the_lead_of_a_queue_that_is_gone_is_not_for_another_of_its_name(
    cluster: Cluster,
) -> None:
    mirrored(cluster, "ha")
    client = cluster["b"].connects()
    client.opens_channel(1)
    cluster.kill("a")
    while (first := record(cluster, "ha").leader) == "a":
        cluster.clock.advance(0.01)
    (second,) = {"b", "c"} - {first}
    # The second bids for the place of a when a second has passed.
    client.sends(commands.Queue.Delete, queue="ha")
    cluster.settle()
    client = cluster[first].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(0.9)
    assert record(cluster, "ha").in_sync == [second]
    cluster.clock.advance(3)
    assert record(cluster, "ha").leader == first


def test_what_waits_for_a_mirror_is_confirmed_when_the_queue_shall_have_none(
    cluster: Cluster,
) -> None:
    mirrored(cluster, "ha")
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.selects_confirms()
    cluster["a"].node.policies.clear("/", "ha")
    a.publishes("ha", b"1")
    cluster.clock.advance(3)
    assert not record(cluster, "ha").mirrors and not cluster["a"].mirroring._led
    assert a.receives(commands.Basic.Ack).delivery_tag == 1


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_what_the_old_leader_may_have_delivered_is_redelivered_by_the_next_one(
    no_ack: bool, waits: bool
) -> None:
    delay_s = [0.0]
    cluster = Cluster("a", "b", "c", delay=lambda: delay_s[0])
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    mirrored(cluster, "ha")
    a, b, c = (cluster[node].connects() for node in "abc")
    for client in (a, b, c):
        client.opens_channel(1)
    a.consumes("ha")
    delay_s[0] = 0.1
    b.publishes("ha", b"delivered")
    cluster.clock.advance(0.15)
    (delivery,) = a.receives_deliveries()
    assert not delivery.method.redelivered
    # Neither the mirrors nor the node of the publisher hear of it.
    cluster.kill("a")
    delay_s[0] = 0.0
    b.publishes("ha", b"new")
    subscribe = {"queue": "ha", "consumer_tag": "c", "no_ack": no_ack}
    if not waits:
        c.sends(commands.Basic.Consume, **subscribe)
    cluster.clock.advance(5)
    if waits:
        c.sends(commands.Basic.Consume, **subscribe)
    c.receives(commands.Basic.ConsumeOk)
    found = [(d.body, d.method.redelivered) for d in c.receives_deliveries()]
    assert found == [(b"delivered", True), (b"new", False)]


def test_what_a_leader_never_got_is_not_redelivered_when_its_link_is_back(
    cluster: Cluster,
) -> None:
    mirrored(cluster, "ha")
    b, c = cluster["b"].connects(), cluster["c"].connects()
    for client in (b, c):
        client.opens_channel(1)
    c.consumes("ha")
    # Sent, and lost on the way: the link is cut before the turn is over.
    cluster._delay = lambda: 0.1
    b.publishes("ha", b"sent")
    cluster.clock.advance(0.05)
    cluster.cut("a", "b")
    cluster._delay = lambda: 0.0
    cluster.connect("a", "b")
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader == "a"
    assert [(d.body, d.method.redelivered) for d in c.receives_deliveries()] == [(b"sent", False)]


@pytest.mark.parametrize("other", ["b", "c", "d", "e"])
@pytest.mark.parametrize("lasts_s", [1.0, 60.0])
def test_confirms_come_though_the_leader_and_a_mirror_do_not_reach_each_other(
    other: str, lasts_s: float
) -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    a = cluster["a"].connects()
    a.opens_channel(1)
    declare_mirrored(cluster, a, "ha")
    a.selects_confirms()
    cluster.cut("a", other)
    for number in range(5):
        a.publishes("ha", b"%d" % number)
    cluster.clock.advance(lasts_s)
    if lasts_s < 10:
        cluster.connect("a", other)
        cluster.clock.advance(5)
    leader = record(cluster, "ha").leader
    if leader == "a":
        assert a.receives(commands.Basic.Ack).delivery_tag == 5
    else:
        # Its neighbour in the ring could not reach it.
        assert {type(frame.method) for frame in a.frames()} == {commands.Basic.Nack}


@pytest.mark.parametrize("other", ["b", "c", "d", "e"])
@pytest.mark.parametrize("after_s", [0.02, 0.03, 0.04, 0.05, 0.06, 0.07])
def test_a_synchronisation_outlives_the_link_between_leader_and_mirror(
    other: str, after_s: float
) -> None:
    delay_s = [0.0]
    cluster = Cluster("a", "b", "c", "d", "e", delay=lambda: delay_s[0])
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("ha", durable=True)
    for number in range(3000):
        a.publishes("ha", b"%d" % number)
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.clock.advance(10)
    assert len(record(cluster, "ha").mirrors) == 4 and not record(cluster, "ha").in_sync
    delay_s[0] = 0.01
    (led,) = cluster["a"].mirroring._led.values()
    cluster["a"].mirroring.synchronise(led.queue)
    cluster.clock.advance(after_s)
    cluster.cut("a", other)
    cluster.clock.advance(0.05)
    cluster.connect("a", other)
    # A neighbour in the ring may have to be asked again to have a mirror.
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["b"].node.policies.set("/", "ha", "^ha", definition, 0, "queues")
    cluster.clock.advance(60)
    assert len(record(cluster, "ha").in_sync) == 4, record(cluster, "ha")


def test_a_refusal_outlives_the_link_to_the_leader() -> None:
    delay_s = [0.0]
    cluster = Cluster("a", "b", "c", delay=lambda: delay_s[0])
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    arguments = {"x-max-length": Field("I", 1), "x-overflow": Field("S", b"reject-publish")}
    declare_mirrored(cluster, a, "ha", arguments)
    b.selects_confirms()
    b.publishes("ha", b"kept")
    assert b.receives(commands.Basic.Ack).delivery_tag == 1
    for lost in range(3):
        delay_s[0] = 0.1
        b.publishes("ha", b"refused")
        cluster.clock.advance(0.15)
        cluster.cut("a", "b")
        delay_s[0] = 0.0
        cluster.connect("a", "b")
        cluster.clock.advance(5)
        assert record(cluster, "ha").leader == "a"
        assert b.receives(commands.Basic.Nack).delivery_tag == 2 + lost
        # And it is not kept for ever.
        cluster.settle()
        assert not any(map(list, cluster["a"].mirroring.from_afar.refusals.values()))
    assert b.counts("ha") == (1, 0)


def test_a_mirror_that_is_in_sync_does_not_begin_anew_before_that_is_known() -> None:
    cluster = Cluster("a", "b")
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("ha", durable=True)
    a.publishes("ha", b"1")
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.clock.advance(5)
    (led,) = cluster["a"].mirroring._led.values()
    cluster.cut_store("a")
    for _ in range(20):
        cluster["a"].mirroring.synchronise(led.queue)
        cluster.clock.advance(0.1)
    assert led.leader.is_in_sync("b")
    (copy,) = cluster["b"].mirroring.copies.by_queue.values()
    assert copy.mirror.levels[0].backing.length == 1
    began = led.leader._slices
    cluster["a"].mirroring.synchronise(led.queue)
    cluster.clock.advance(1)
    assert led.leader._slices == began
    cluster.restore_store("a")
    cluster.clock.advance(1)
    assert record(cluster, "ha").in_sync == ["b"]


@pytest.mark.parametrize("publisher", ["b", "c"])
@pytest.mark.parametrize("handed_over", [False, True])
def test_a_refusal_outlives_the_leader(publisher: str, handed_over: bool) -> None:
    delay_s = [0.0]
    cluster = Cluster("a", "b", "c", delay=lambda: delay_s[0])
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    a, client = cluster["a"].connects(), cluster[publisher].connects()
    a.opens_channel(1)
    client.opens_channel(1)
    arguments = {"x-max-length": Field("I", 1), "x-overflow": Field("S", b"reject-publish")}
    declare_mirrored(cluster, a, "ha", arguments)
    client.selects_confirms()
    delay_s[0] = 0.1
    for body in (b"kept", b"refused", b"refused too"):
        client.publishes("ha", body)
    # The mirrors have the first; of the others nothing is told before it is confirmed.
    cluster.clock.advance(0.25)
    if handed_over:
        hand_over(cluster, "ha", "b")
    else:
        cluster.kill("a")
    delay_s[0] = 0.0
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader != "a"
    answers = [(type(frame.method), frame.method.delivery_tag) for frame in client.frames()]
    assert [tag for answer, tag in answers if answer is commands.Basic.Ack] == [1]
    got = client.gets("ha", no_ack=True)
    assert got is not None and got.body == b"kept"
    # And it is not kept for ever.
    cluster.settle()
    for node in "bc" if not handed_over else "abc":
        mirroring = cluster[node].mirroring
        copies = [copy.mirror.refusals for copy in mirroring.copies.by_queue.values()]
        assert not any(map(list, (*mirroring.from_afar.refusals.values(), *copies))), node


def test_a_new_leader_that_hears_last_of_it_says_what_it_had_as_a_mirror() -> None:
    delay_s = [0.0]
    cluster = Cluster("a", "b", "c", delay=lambda: delay_s[0])
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    mirrored(cluster, "ha")
    clients = {node: cluster[node].connects() for node in "bc"}
    for client in clients.values():
        client.opens_channel(1)
        client.selects_confirms()
    delay_s[0] = 0.1
    for client in clients.values():
        client.publishes("ha", b"in the mirrors")
    cluster.clock.advance(0.25)
    cluster.kill("a")

    def leader() -> str:
        (found,) = [
            definition.stored.record.leader
            for definition in cluster.history.definitions()
            if definition.stored is not None and isinstance(definition.stored.record, QueueRecord)
        ]
        return found

    while leader() == "a":
        cluster.clock.advance(0.01)
    new, other = ("b", "c") if leader() == "b" else ("c", "b")
    cluster.cut_store(new)
    cluster.clock.advance(2)
    assert record(cluster, "ha", other).leader == new
    assert record(cluster, "ha", new).leader == "a"
    cluster.restore_store(new)
    cluster.clock.advance(5)
    for client in clients.values():
        assert [type(frame.method) for frame in client.frames()] == [commands.Basic.Ack]


def test_a_leader_that_stopped_in_order_is_waited_for_though_it_stays_away(
    cluster: Cluster,
) -> None:
    # Its policy would have anybody lead after a failure.
    mirrored_later(cluster)
    cluster["a"].mirroring.stop_leading()
    cluster.settle()
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(20)
    assert record(cluster, "later").leader == "a"


def test_what_was_published_to_a_former_leader_is_not_taken_by_it_when_it_leads_again() -> None:
    # With this seed, a asks c to be let into the group again, and not b, which it cannot hear.
    cluster = Cluster("a", "b", "c", seed=1)
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^ha", definition, 0, "queues")
    cluster.settle()
    mirrored(cluster, "ha")
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.selects_confirms()
    cluster.stall("b", "a")
    b.publishes("ha", b"once")
    for target in ("c", "a"):
        hand_over(cluster, "ha", target)
        cluster.clock.advance(5)
        assert record(cluster, "ha").leader == target
    cluster.unstall("b", "a")
    cluster.clock.advance(5)
    assert b.receives(commands.Basic.Ack).delivery_tag == 1
    assert b.counts("ha") == (1, 0)


def test_a_hand_over_has_all_its_time_whatever_became_of_the_one_before(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    queue = cluster["a"].queue("ha")
    hand_over(cluster, "ha", "nobody")
    cluster.settle()
    assert not queue.is_held
    cluster.clock.advance(PATIENCE_S - 1)
    cluster.cut_store("b")
    hand_over(cluster, "ha", "b")
    cluster.clock.advance(2)
    assert queue.is_held


def is_of_an_earlier_version(node: ClusterNode) -> None:
    """It takes over in any ballot, whether or not the leader that asked for it has gone on."""
    del node.calls._methods["mirror.take_over_in"]


def test_a_mirror_that_did_more_than_the_new_leader_begins_anew(cluster: Cluster) -> None:
    """A leader that gave up a hand-over went on, and the other took its place all the same."""
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.publishes("ha", b"acknowledged")
    client.consumes("ha")
    (delivery,) = client.receives_deliveries()
    cluster.settle()
    between, target = ring_after(cluster, "a")
    is_of_an_earlier_version(cluster[target])
    cluster.cut_store(target)
    hand_over(cluster, "ha", target)
    cluster.clock.advance(PATIENCE_S + 1)
    # Only one of the mirrors hears of it before the other leads.
    cluster.stall(between, target)
    client.acks(delivery.method.delivery_tag)
    cluster.settle()
    cluster.restore_store(target)
    cluster.settle()
    cluster.unstall(between, target)
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader == target
    queue = cluster[target].queue("ha")
    for node in record(cluster, "ha").in_sync:
        (copy,) = cluster[node].mirroring.copies.by_queue.values()
        (level,) = copy.mirror.levels
        assert (level.backing.length, len(level.pending)) == (len(queue), queue.unacked), node


def test_mirrors_keep_messages_where_the_policy_wants_them() -> None:
    """M14."""
    modes: dict[str, list[str]] = {}

    class Queue(MemoryQueue):
        __slots__ = ("node",)

        def set_mode(self, mode: str) -> None:
            modes.setdefault(self.node, []).append(mode)

    def new_backing(node: ClusterNode, spec: BackingSpec) -> Queue:
        queue = Queue()
        queue.node = node.name
        return queue

    cluster = Cluster("a", "b", "c", new_backing=new_backing)
    policies = cluster["a"].node.policies
    policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    mirrored(cluster, "ha")
    modes.clear()
    policies.set("/", "ha", "^ha", {"ha-mode": "all", "queue-mode": "lazy"}, 0, "queues")
    cluster.settle()
    assert {node: of_node[-1] for node, of_node in modes.items()} == dict.fromkeys("abc", "lazy")
    policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    assert {node: of_node[-1] for node, of_node in modes.items()} == dict.fromkeys("abc", "default")


def ring_after(cluster: Cluster, node: str) -> list[str]:
    """The other members of the only group of a node, in the order in which messages pass."""
    (led,) = cluster[node].mirroring._led.values()
    ring = [member.node for member in led.member.member.record.members]
    return ring[ring.index(node) + 1 :] + ring[: ring.index(node)]


def test_a_mirror_is_not_asked_for_more_than_it_has_by_a_leader_that_is_back_at_once(
    cluster: Cluster,
) -> None:
    """It may not have got yet what others have: the group says when it has."""
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.publishes("ha", b"both have it")
    cluster.settle()
    between, last = ring_after(cluster, "a")
    cluster.stall(between, last)
    client.publishes("ha", b"not here yet")
    cluster.settle()
    cluster.kill("a")
    cluster.restart("a")
    cluster.settle()
    cluster.connect(*sorted(("a", last)))
    cluster.clock.advance(0.5)
    assert record(cluster, "ha").epoch == 0
    cluster.unstall(between, last)
    cluster.connect(*sorted(("a", between)))
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader in (between, last)
    other = cluster["a"].connects()
    other.opens_channel(1)
    assert other.counts("ha") == (2, 0)


def test_a_mirror_that_is_to_begin_anew_leads_when_nobody_else_is_left(cluster: Cluster) -> None:
    """The definition still says that it is in sync: nobody else may have what was confirmed."""
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.publishes("ha", b"confirmed")
    assert client.receives(commands.Basic.Ack).delivery_tag == 1
    between, target = ring_after(cluster, "a")
    is_of_an_earlier_version(cluster[target])
    cluster.cut_store(target)
    hand_over(cluster, "ha", target)
    cluster.clock.advance(PATIENCE_S + 1)
    cluster.stall(between, target)
    client.publishes("ha", b"more than the next leader has")
    cluster.settle()
    cluster.stall(target, between)
    cluster.restore_store(target)
    cluster.clock.advance(0.5)
    assert record(cluster, "ha").leader == target
    assert between in record(cluster, "ha").in_sync
    # It cannot say that the mirror begins anew.
    cluster.cut_store(target)
    cluster.unstall(target, between)
    cluster.unstall(between, target)
    cluster.clock.advance(1)
    for node in ("a", target):
        cluster.kill(node)
        cluster.tidy_after(node)
    cluster.clock.advance(15)
    assert record(cluster, "ha", between).leader == between
    other = cluster[between].connects()
    other.opens_channel(1)
    assert other.counts("ha")[0] >= 1


def test_a_mirror_is_in_sync_when_it_has_begun(cluster: Cluster) -> None:
    """All that is older was gone before it was told to start."""
    a = mirrored_later(cluster)
    before = record(cluster, "later")
    assert not before.in_sync
    for mirror in "bc":
        (copy,) = cluster[mirror].mirroring.copies.by_queue.values()
        assert copy.mirror.started
    a.sends(commands.Basic.Get, queue="later")
    cluster.settle()
    got = a.receives_content(commands.Basic.GetOk)
    (led,) = cluster["a"].mirroring._led.values()
    for mirror in "bc":
        cluster.stall("a", mirror)
        led.leader.start(mirror, synchronise=False)
    a.acks(got.method.delivery_tag)
    cluster.clock.advance(1.5)
    assert not record(cluster, "later").in_sync
    for mirror in "bc":
        cluster.unstall("a", mirror)
    cluster.clock.advance(1.5)
    assert sorted(record(cluster, "later").in_sync) == ["b", "c"]


def test_a_leader_that_hears_of_its_successor_hands_nothing_out(cluster: Cluster) -> None:
    """The definition does not reach it, but what the next one tells the mirrors does."""
    mirrored(cluster, "ha")
    clients = {name: cluster[name].connects() for name in "ab"}
    for client in clients.values():
        client.opens_channel(1)
    clients["a"].publishes("ha", b"one")
    clients["a"].publishes("ha", b"two")
    cluster.settle()
    cluster.cut_store("a")
    hand_over(cluster, "ha", "b")
    cluster.settle()
    assert record(cluster, "ha").leader == "b"
    clients["a"].sends(commands.Basic.Get, queue="ha")
    cluster.clock.advance(PATIENCE_S + 1)
    assert cluster["a"].queue("ha").is_held
    assert not clients["a"].frames()
    cluster.restore_store("a")
    cluster.clock.advance(1)
    assert clients["a"].receives_content(commands.Basic.GetOk).body == b"one"


def test_a_question_is_not_passed_on_to_the_next_leader_by_the_one_before(cluster: Cluster) -> None:
    """Whoever asked it has asked the next leader itself, and has gone on since."""
    mirrored(cluster, "ha")
    a, c = cluster["a"].connects(), cluster["c"].connects()
    for client in (a, c):
        client.opens_channel(1)
    a.publishes("ha", b"old")
    cluster.settle()
    for node in "ac":
        cluster.cut_store(node)
    hand_over(cluster, "ha", "b")
    cluster.clock.advance(1)
    assert record(cluster, "ha").leader == "b" and cluster["a"].queue("ha").is_held
    c.sends(commands.Queue.Purge, queue="ha")
    cluster.clock.advance(1)
    cluster.cut("a", "c")
    cluster.restore_store("c")
    cluster.clock.advance(5)
    assert c.receives(commands.Queue.PurgeOk).message_count == 1
    c.publishes("ha", b"new")
    cluster.settle()
    cluster.restore_store("a")
    cluster.clock.advance(5)
    got = c.gets("ha")
    assert got is not None and got.body == b"new"


def test_a_queue_that_is_held_does_not_expire_for_want_of_users(cluster: Cluster) -> None:
    """They may be at whoever leads, and come back when it is known who that is."""
    a, c = cluster["a"].connects(), cluster["c"].connects()
    for client in (a, c):
        client.opens_channel(1)
    declare_mirrored(cluster, a, "ha", {"x-expires": Field("I", 5000)})
    c.consumes("ha")
    for mirror in "bc":
        cluster.cut_store(mirror)
    cluster.kill("a")
    cluster.comes_back("a")
    cluster.clock.advance(20)
    assert cluster["a"].queue("ha").is_held
    for mirror in "bc":
        cluster.restore_store(mirror)
    cluster.clock.advance(4)
    assert "ha" in cluster["c"].vhost.queues


def held_with_messages(cluster: Cluster, *bodies: bytes, **arguments: Field) -> Client:
    """A queue with these messages that is being handed over to b, which cannot write so yet."""
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.declares("dead")
    all_arguments = {
        "x-dead-letter-exchange": Field("S", b""),
        "x-dead-letter-routing-key": Field("S", b"dead"),
        **{name.replace("_", "-"): value for name, value in arguments.items()},
    }
    declare_mirrored(cluster, client, "ha", all_arguments)
    for body in bodies:
        client.publishes("ha", body)
    cluster.settle()
    cluster.cut_store("b")
    hand_over(cluster, "ha", "b")
    cluster.settle()
    assert cluster["a"].queue("ha").is_held
    return client


def hand_over_ends(cluster: Cluster, goes: bool) -> None:
    """The target, b, can write that it leads again; unless it `goes`, the leader has given up
    before, and leads on."""
    cluster.clock.advance(2 if goes else PATIENCE_S + 1)
    cluster.restore_store("b")
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader == ("b" if goes else "a")


@pytest.mark.parametrize("goes", [True, False])
def test_what_expires_while_a_queue_is_handed_over_is_dead_once(
    cluster: Cluster, goes: bool
) -> None:
    client = held_with_messages(cluster, b"one", b"two", x_message_ttl=Field("I", 1000))
    hand_over_ends(cluster, goes)
    assert client.counts("dead") == (2, 0)
    assert client.counts("ha") == (0, 0)


@pytest.mark.parametrize("goes", [True, False])
@pytest.mark.parametrize("node", ["a", "c"])
def test_a_queue_that_is_purged_while_it_is_handed_over_is_empty(
    cluster: Cluster, node: str, goes: bool
) -> None:
    held_with_messages(cluster, b"one", b"two")
    client = cluster[node].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Purge, queue="ha")
    hand_over_ends(cluster, goes)
    assert client.receives(commands.Queue.PurgeOk).message_count == 2
    assert client.counts("ha") == (0, 0)


@pytest.mark.parametrize("goes", [True, False])
@pytest.mark.parametrize("node", ["a", "c"])
def test_who_gets_from_a_queue_that_is_handed_over_waits_for_whoever_leads(
    cluster: Cluster, node: str, goes: bool
) -> None:
    held_with_messages(cluster, b"one", b"two")
    client = cluster[node].connects()
    client.opens_channel(1)
    client.sends(commands.Basic.Get, queue="ha")
    hand_over_ends(cluster, goes)
    got = client.receives_content(commands.Basic.GetOk)
    assert got.body == b"one"
    client.acks(got.method.delivery_tag)
    cluster.clock.advance(1)
    assert client.counts("ha") == (1, 0)


@pytest.mark.parametrize("goes", [True, False])
def test_who_waits_for_a_queue_that_is_handed_over_may_go(cluster: Cluster, goes: bool) -> None:
    held_with_messages(cluster, b"one", b"two")
    for node in ("a", "c"):
        client = cluster[node].connects()
        client.opens_channel(1)
        client.sends(commands.Basic.Get, queue="ha")
        cluster.settle()
        client.vanishes()
    hand_over_ends(cluster, goes)
    client = cluster["a"].connects()
    client.opens_channel(1)
    assert client.counts("ha") == (2, 0)


def test_the_node_of_who_waits_for_a_queue_that_is_handed_over_may_die(cluster: Cluster) -> None:
    client = held_with_messages(cluster, b"one", b"two")
    other = cluster["c"].connects()
    other.opens_channel(1)
    other.sends(commands.Basic.Get, queue="ha")
    cluster.settle()
    cluster.kill("c")
    cluster.clock.advance(PATIENCE_S + 1)
    assert not cluster["a"].queue("ha").is_held
    assert client.counts("ha") == (2, 0)


@pytest.mark.parametrize("goes", [True, False])
def test_what_may_have_been_delivered_is_redelivered_after_a_queue_was_held(
    cluster: Cluster, goes: bool
) -> None:
    client = held_with_messages(cluster)
    queue = cluster["a"].queue("ha")
    envelope = Envelope("", "ha", AmqpContentCodec().content_header(5, {}), False, 0, None)
    queue.publish_again(envelope, b"again", None, 0)
    queue.publish(envelope, b"anew.", None, 0)
    hand_over_ends(cluster, goes)
    for body, again in ((b"again", True), (b"anew.", False)):
        got = client.gets("ha")
        assert got is not None and (got.body, got.method.redelivered) == (body, again)


@pytest.mark.parametrize("priorities", [0, 3])
@pytest.mark.parametrize("consumes", [True, False])
def test_what_may_have_been_delivered_is_redelivered_by_a_queue_without_mirrors(
    cluster: Cluster, consumes: bool, priorities: int
) -> None:
    """Its leader may have taken over from one that is gone, and have no mirrors left."""
    client = cluster["a"].connects()
    client.opens_channel(1)
    arguments = {"x-max-priority": Field("B", priorities)} if priorities else {}
    client.declares("alone", arguments=arguments)
    queue = cluster["a"].queue("alone")
    if consumes:
        client.consumes("alone")
    envelope = Envelope("", "alone", AmqpContentCodec().content_header(5, {}), False, 0, None)
    got = []
    for body, again in ((b"again", True), (b"anew.", False)):
        (queue.publish_again if again else queue.publish)(envelope, body, None, 0)
        cluster.settle()
        if consumes:
            one = client.receives_content(commands.Basic.Deliver)
            got.append((one.body, one.method.redelivered))
    while not consumes and (one := client.gets("alone")) is not None:
        got.append((one.body, one.method.redelivered))
    assert got == [(b"again", True), (b"anew.", False)]


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
@pytest.mark.parametrize("handed_over", [True, False])
@pytest.mark.parametrize("priority", [0, 3])
def test_messages_expire_at_whoever_leads(
    cluster: Cluster, priority: int, handed_over: bool, ahead_s: float
) -> None:
    """Whatever the time of day is there."""
    for mirror in "bc":
        cluster[mirror].clock.ahead_s = ahead_s  # type: ignore[attr-defined]
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.declares("dead")
    arguments = {
        "x-dead-letter-exchange": Field("S", b""),
        "x-dead-letter-routing-key": Field("S", b"dead"),
        **({"x-max-priority": Field("I", 5)} if priority else {}),
    }
    a = cluster["a"].connects()
    a.opens_channel(1)
    declare_mirrored(cluster, a, "ha", arguments)
    a.publishes("ha", b"mortal", expiration="20000", priority=priority)
    cluster.settle()
    if handed_over:
        hand_over(cluster, "ha", "b")
    else:
        cluster.kill("a")
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader != "a"
    assert (b.counts("ha"), b.counts("dead")) == ((1, 0), (0, 0))
    cluster.clock.advance(11)
    assert (b.counts("ha"), b.counts("dead")) == ((0, 0), (1, 0))


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("queue", ["ha", "plain"])
def test_a_deleted_queue_is_let_go_though_messages_were_out(
    cluster: Cluster, queue: str, node: str
) -> None:
    """The collector does not look at messages: what leads in a circle through them stays."""
    before = {id(one) for one in gc.get_objects() if isinstance(one, Consumer)}
    deletes = cluster["a"].connects()
    deletes.opens_channel(1)
    deletes.sends(commands.Queue.Declare, queue=queue, durable=True)
    cluster.clock.advance(3)
    deletes.receives(commands.Queue.DeclareOk)
    client = cluster[node].connects()
    client.opens_channel(1)
    client.sends(commands.Basic.Consume, queue=queue, consumer_tag="c")
    cluster.clock.advance(1)
    client.receives(commands.Basic.ConsumeOk)
    deletes.publishes(queue)
    cluster.clock.advance(1)
    tag = client.receives_content().method.delivery_tag
    deletes.sends(commands.Queue.Delete, queue=queue)
    cluster.clock.advance(1)
    client.acks(tag)
    cluster.clock.advance(1)
    client.vanishes()
    deletes.vanishes()
    cluster.clock.advance(60)
    gc.collect()
    consumers = [one for one in gc.get_objects() if isinstance(one, Consumer)]
    assert not [one for one in consumers if one.queue.deleted and id(one) not in before]
