"""Mirrored queues on whole nodes: what clients see of leaders, mirrors and failures."""

from __future__ import annotations

import gc

import pytest
from cluster import Cluster, ClusterNode
from mirrored import declare_mirrored, ha_cluster, hand_over, mirrored, record
from pamqp import commands
from pipe import publish_frames

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.core.queues.consumers import Consumer
from warren.core.scheduling.waiting import run
from warren.mirror.members import abreast
from warren.mirror.replication.definition.replicas import SyncLimits, WantedMirrors
from warren.mirror.replication.leading.flush_times import WAIT_S
from warren.mirror.replication.leading.leader import BATCH_BYTES_MAX


@pytest.fixture
def cluster() -> Cluster:
    return ha_cluster()


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
    cluster.clock.advance(WAIT_S)
    for node in "bc":
        (copy,) = cluster[node].mirroring.copies.by_queue.values()
        assert copy.mirror.levels[0].backing.length == 0
        assert len(copy.mirror.levels[0].pending) == 2


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
    assert led.synchronisation.slices == slices


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
        wanted = WantedMirrors.of(definition, limits)
        assert (wanted.sync_batch, wanted.catch_up_rate) == limits
    assert WantedMirrors.of({"ha-sync-batch-size": 20}, limits).sync_batch == 20
    assert WantedMirrors.of({"log-catchup-rate": 0}, limits).catch_up_rate == 0


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
    a.publishes("ha", b"one")
    a.publishes("ha", b"two")
    cluster.clock.advance(1)
    (led,) = cluster["a"].mirroring._led.values()
    stored = led.leader.levels[0].inner
    assert stored.length == 2
    a.sends(commands.Queue.Delete, queue="ha")
    assert a.receives(commands.Queue.DeleteOk).message_count == 2
    assert stored.length == 0
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
    a.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(abreast.PATIENCE_S + 3)
    assert a.receives(commands.Queue.DeclareOk)
    assert record(cluster, "ha", "a").mirrors == ["c"]
    cluster.restore_store("b")
    cluster.clock.advance(3)
    assert sorted(record(cluster, "ha").mirrors) == ["b", "c"]


def test_a_queue_that_no_other_node_can_mirror_is_declared_at_once(cluster: Cluster) -> None:
    cluster.kill("b")
    cluster.kill("c")
    cluster.clock.advance(5)
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.settle()
    assert a.receives(commands.Queue.DeclareOk)


def test_a_declaration_does_not_wait_for_a_mirror_whose_node_is_lost(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    (led,) = cluster["a"].mirroring._led.values()
    told: list[object] = []
    run(led.awaited.wait(["b", "c"]), told.append)
    led.awaited.wait_no_more_for(["c"])
    assert not told
    cluster.kill("b")
    cluster.settle()
    assert told


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
