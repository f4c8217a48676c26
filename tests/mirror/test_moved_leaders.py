"""Queues whose leader is moved to another node, and what happens to them meanwhile."""

from __future__ import annotations

from random import Random

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, ha_cluster, hand_over, mirrored, record
from pamqp import commands
from pipe import Client

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.mirror.replication.leading.hand_over import PATIENCE_S


@pytest.fixture
def cluster() -> Cluster:
    return ha_cluster()


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


def test_clients_that_get_while_a_queue_is_handed_over_are_answered_in_their_order(
    cluster: Cluster,
) -> None:
    bodies = [b"%02d" % number for number in range(20)]
    held_with_messages(cluster, *bodies)
    clients = [cluster["c"].connects() for _ in bodies]
    for client in clients:
        client.opens_channel(1)
        client.sends(commands.Basic.Get, queue="ha")
    hand_over_ends(cluster, goes=True)
    got = [client.receives_content(commands.Basic.GetOk).body for client in clients]
    assert got == bodies


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
