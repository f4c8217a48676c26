"""Clients of one node and queues of another: as if they were at the same."""

from __future__ import annotations

from random import Random

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import publish_frames
from stores import SlowQueues

from warren.core.backing.memory_queue import MemoryQueue
from warren.mirror.members import abreast


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def test_a_queue_is_declared_once_for_all_nodes(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", durable=True)
    assert b.declares("q", durable=True).message_count == 0
    b.sends(commands.Queue.Declare, queue="q", durable=False, arguments={})
    assert "inequivalent arg 'durable'" in b.receives_close(406).reply_text
    assert cluster["a"].queue("q").is_here
    assert not cluster["b"].queue("q").is_here


def test_messages_pass_between_clients_of_different_nodes(cluster: Cluster) -> None:
    a, b, c = (cluster[name].connects() for name in "abc")
    for client in (a, b, c):
        client.opens_channel(1)
    a.declares("q")
    c.consumes("q")
    b.selects_confirms()
    for number in range(3):
        b.publishes("q", b"%d" % number, delivery_mode=2)
    assert b.receives(commands.Basic.Ack).delivery_tag == 3
    assert c.receives_bodies() == [b"0", b"1", b"2"]
    c.acks(3, multiple=True)
    assert a.counts("q") == (0, 1)
    assert b.counts("q") == (0, 1)
    assert cluster["a"].queue("q").unacked == 0


def test_publishes_that_come_together_go_on_in_one_frame_and_are_delivered_in_one(
    cluster: Cluster,
) -> None:
    a, b, reader = (cluster[name].connects() for name in "abb")
    for client in (a, b, reader):
        client.opens_channel(1)
    a.declares("q", durable=True)
    b.selects_confirms()
    reader.consumes("q")
    bodies = [b"%d" % number for number in range(50)]
    links = cluster["b"].links
    before = dict(links.sent)
    # Each has an envelope of its own; one of them expires, which goes by itself.
    b.sends_octets(
        b"".join(
            publish_frames(
                1,
                "",
                "q",
                body,
                message_id=f"id-{number}-",
                delivery_mode=2 if number % 2 else 1,
                expiration="60000" if number == 30 else None,
            )
            for number, body in enumerate(bodies)
        )
    )
    assert links.sent["a"] - before["a"] <= 2
    assert b.receives(commands.Basic.Ack).delivery_tag == 50
    contents = reader.receives_deliveries()
    assert [content.body for content in contents] == bodies
    assert all(b"id-%b-" % content.body in content.header for content in contents)
    assert not any(content.method.redelivered for content in contents)
    assert cluster["a"].queue("q").unacked == 50


def test_publishes_that_come_together_are_refused_while_the_leader_is_away(
    cluster: Cluster,
) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", durable=True)
    b.selects_confirms()
    cluster.kill("a")
    b.sends_octets(b"".join(publish_frames(1, "", "q", b"x") for _ in range(20)))
    tags = [b.receives(commands.Basic.Nack).delivery_tag for _ in range(20)]
    assert tags == list(range(1, 21))


def test_a_queue_that_was_deleted_is_named_before_its_deletion_is_known_everywhere(
    cluster: Cluster,
) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    cluster.clock.advance(1)
    cluster.cut_store("b")
    a.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(1)
    b.sends(commands.Queue.Declare, queue="q", passive=True)
    cluster.clock.advance(30)
    closed = b.receives(commands.Channel.Close)
    assert (closed.reply_code, closed.reply_text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")


def test_what_is_not_acknowledged_comes_back_when_the_channel_closes(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    a.publishes("q", b"one")
    a.publishes("q", b"two")
    b.consumes("q")
    assert b.receives_bodies() == [b"one", b"two"]
    b.acks(1)
    b.vanishes()
    got = a.gets("q")
    assert got is not None and got.body == b"two" and got.method.redelivered
    assert a.gets("q") is None


def test_basic_get_purge_and_delete_ask_the_leader(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    for body in (b"1", b"2", b"3", b"4"):
        a.publishes("q", body)
    got = b.gets("q")
    assert got is not None and (got.body, got.method.message_count) == (b"1", 3)
    b.nacks(1)
    got = b.gets("q", no_ack=True)
    assert got is not None and got.body == b"1" and got.method.redelivered
    b.sends(commands.Queue.Purge, queue="q")
    assert b.receives(commands.Queue.PurgeOk).message_count == 3
    assert b.gets("q") is None
    a.publishes("q")
    b.sends(commands.Queue.Delete, queue="q", if_empty=True)
    assert "not empty" in b.receives_close(406).reply_text
    b.opens_channel(1)
    b.sends(commands.Queue.Delete, queue="q")
    assert b.receives(commands.Queue.DeleteOk).message_count == 1
    b.sends(commands.Queue.Declare, queue="q", passive=True)
    b.receives_close(404)
    assert "q" not in cluster["a"].vhost.queues


def test_prefetch_and_a_limit_of_the_channel_hold_elsewhere_too(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    for number in range(6):
        a.publishes("q", b"%d" % number)
    b.sets_prefetch(2)
    b.consumes("q")
    assert b.receives_bodies() == [b"0", b"1"]
    b.acks(1)
    assert b.receives_bodies() == [b"2"]
    b.sets_prefetch(3, whole_channel=True)
    b.acks(2)
    b.acks(3)
    assert b.receives_bodies() == [b"3", b"4"]
    b.opens_channel(2)
    b.sets_prefetch(1, channel=2, whole_channel=True)
    a.declares("other")
    for number in range(3):
        a.publishes("other", b"x%d" % number)
    b.consumes("other", "d", 2)
    assert b.receives_bodies() == [b"x0"]
    b.acks(1, channel=2)
    assert b.receives_bodies() == [b"x1"]
    assert len(cluster["a"].queue("other")) == 1


@pytest.mark.parametrize("seed", range(60))
def test_a_consumer_elsewhere_gets_messages_in_order_however_it_is_stopped(seed: int) -> None:
    """What cannot be handed to it goes back, and what is on its way must not overtake that."""
    random = Random(seed)
    cluster = Cluster("a", "b", seed=seed, delay=lambda: random.choice((0.0, 0.001, 0.01)))
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.sends(commands.Channel.Open)
        client.receives(commands.Channel.OpenOk)
    a.sends(commands.Queue.Declare, queue="q", arguments={})
    cluster.clock.advance(1)
    a.receives(commands.Queue.DeclareOk)
    limit, prefetch = random.choice((0, 1, 3, 30)), random.choice((0, 0, 5, 50))
    for count, is_global in ((limit, True), (prefetch, False)):
        b.sends(commands.Basic.Qos, prefetch_count=count, global_=is_global)
        b.receives(commands.Basic.QosOk)
    b.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    cluster.clock.advance(1)
    b.receives(commands.Basic.ConsumeOk)
    sent, got, unacked = 0, [], []

    def takes() -> None:
        for delivery in b.receives_deliveries():
            assert not delivery.method.redelivered
            got.append(int(delivery.body))
            unacked.append(delivery.method.delivery_tag)

    def acks(count: int) -> None:
        if unacked[:count]:
            b.acks(unacked[:count][-1], multiple=True)
            del unacked[:count]

    for _ in range(200):
        step = random.random()
        if step < 0.4:
            for _ in range(random.choice((1, 10, 100))):
                a.publishes("q", b"%d" % sent)
                sent += 1
        elif step < 0.6:
            b.connection.writable(random.random() < 0.5)
        elif step < 0.8:
            acks(random.randrange(1, 40))
        takes()
        cluster.clock.advance(random.choice((0.0, 0.001, 0.005, 0.02)))
    b.connection.writable(True)
    while unacked or len(got) < sent:
        before = len(got), len(unacked)
        acks(len(unacked))
        cluster.clock.advance(1)
        takes()
        assert (len(got), len(unacked)) != before, "nothing comes any more"
    assert got == list(range(sent))
    assert cluster["a"].queue("q").unacked == 0


def test_what_was_on_its_way_to_a_consumer_that_left_comes_to_the_next_one_as_redelivered(
    cluster: Cluster,
) -> None:
    """The leader has handed over what is behind it by the time it is back."""
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    b.consumes("q", "first")
    cluster.stall("a", "b")
    a.publishes("q", b"one")
    b.sends(commands.Basic.Cancel, consumer_tag="first")
    b.sends(commands.Basic.Consume, queue="q", consumer_tag="second")
    cluster.settle()
    a.publishes("q", b"two")
    cluster.unstall("a", "b")
    cluster.settle()
    b.receives(commands.Basic.CancelOk)
    b.receives(commands.Basic.ConsumeOk)
    got = [(one.body, one.method.redelivered) for one in b.receives_deliveries()]
    assert got == [(b"two", False), (b"one", True)]


def test_a_leader_that_cannot_hold_messages_is_told_that_the_consumer_may_have_no_more(
    cluster: Cluster,
) -> None:
    """As in a cluster whose nodes are upgraded one after the other."""
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    del cluster["a"].calls._methods["queue.hold"]
    a.declares("q")
    for number in range(20):
        a.publishes("q", b"%d" % number)
    b.sets_prefetch(1, whole_channel=True)
    b.consumes("q")
    got: list[bytes] = []
    for tag in range(1, 21):
        got += b.receives_bodies()
        assert len(got) == tag
        assert cluster["a"].queue("q").unacked == 1
        b.acks(tag)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


def test_an_exclusive_queue_is_locked_at_every_other_node(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("mine", exclusive=True)
    b.sends(commands.Basic.Get, queue="mine")
    b.receives_close(405)
    b.opens_channel(1)
    a.vanishes()
    b.sends(commands.Queue.Declare, queue="mine", passive=True)
    b.receives_close(404)


def test_an_exclusive_consumer_keeps_those_of_other_nodes_out(cluster: Cluster) -> None:
    a, b, c = (cluster[name].connects() for name in "abc")
    for client in (a, b, c):
        client.opens_channel(1)
    a.declares("q")
    b.consumes("q", exclusive=True)
    c.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    assert "in exclusive use" in c.receives_close(403).reply_text
    b.sends(commands.Basic.Cancel, consumer_tag="c")
    b.receives(commands.Basic.CancelOk)
    c.opens_channel(1)
    c.consumes("q", exclusive=True)


def test_bindings_count_at_every_node(cluster: Cluster) -> None:
    a, b, c = (cluster[name].connects() for name in "abc")
    for client in (a, b, c):
        client.opens_channel(1)
    a.sends(commands.Exchange.Declare, exchange="x", exchange_type="topic", arguments={})
    a.receives(commands.Exchange.DeclareOk)
    b.declares("q")
    b.sends(commands.Queue.Bind, queue="q", exchange="x", routing_key="*.b", arguments={})
    b.receives(commands.Queue.BindOk)
    c.publishes("a.b", b"hit", exchange="x")
    c.publishes("a.c", b"miss", exchange="x")
    a.consumes("q")
    assert a.receives_bodies() == [b"hit"]


def test_the_last_consumer_takes_an_auto_delete_queue_with_it_from_afar(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=True)
    b.consumes("q")
    b.vanishes()
    cluster.settle()
    assert "q" not in cluster["a"].vhost.queues
    assert "q" not in cluster["c"].vhost.queues


@pytest.mark.parametrize("how", ["cancel", "channel.close", "connection.close"])
@pytest.mark.parametrize("node", ["a", "b"])
def test_an_auto_delete_queue_is_gone_when_its_last_consumer_hears_that_it_has_left(
    how: str, node: str
) -> None:
    delays = {"links": 0.0}
    cluster = Cluster("a", "b", delay=lambda: delays["links"])
    a, b = cluster["a"].connects(), cluster[node].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=True)
    a.declares("used", auto_delete=True)
    a.consumes("used")
    b.consumes("q", "tag")
    b.consumes("used", "other")
    delays["links"] = 0.01
    if how == "cancel":
        b.sends(commands.Basic.Cancel, consumer_tag="tag")
    elif how == "channel.close":
        b.sends(commands.Channel.Close)
    else:
        b.sends(commands.Connection.Close, channel=0)
    waited_s = 0.0
    while not b.pipe.written:
        cluster.clock.advance(0.001)
        waited_s += 0.001
        assert waited_s < 1
    assert "q" not in cluster["a"].vhost.queues
    assert "q" not in cluster[node].vhost.queues
    cluster.clock.advance(1)
    assert "used" in cluster["a"].vhost.queues


@pytest.mark.parametrize("how", ["cancel", "channel.close", "connection.close"])
@pytest.mark.parametrize("node", ["a", "b"])
def test_an_auto_delete_queue_is_gone_everywhere_when_its_last_consumer_hears_that_it_has_left(
    cluster: Cluster, how: str, node: str
) -> None:
    a, b = cluster["a"].connects(), cluster[node].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=True)
    b.consumes("q", "tag")
    # Node c hears of the end of the queue later than the others.
    cluster.cut_store("c")
    if how == "cancel":
        b.sends(commands.Basic.Cancel, consumer_tag="tag")
    elif how == "channel.close":
        b.sends(commands.Channel.Close)
    else:
        b.sends(commands.Connection.Close, channel=0)
    cluster.clock.advance(abreast.PATIENCE_S / 2)
    assert "q" in cluster["c"].vhost.queues
    assert not b.pipe.written
    cluster.restore_store("c")
    cluster.settle()
    assert "q" not in cluster["c"].vhost.queues
    assert b.pipe.written


def test_who_leaves_an_auto_delete_queue_is_answered_when_its_leader_is_away(
    cluster: Cluster,
) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=True)
    b.consumes("q")
    cluster.cut("a", "b")
    b.sends(commands.Channel.Close)
    b.receives(commands.Basic.Cancel)
    b.receives(commands.Channel.CloseOk)


def test_deleting_a_queue_cancels_consumers_of_other_nodes(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    b.consumes("q", "tag")
    a.sends(commands.Queue.Delete, queue="q")
    a.receives(commands.Queue.DeleteOk)
    assert b.receives(commands.Basic.Cancel).consumer_tag == "tag"


def test_a_link_that_breaks_refuses_confirms_and_cancels_consumers(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", durable=True)
    a.publishes("q", b"kept")
    b.consumes("q", "tag")
    assert b.receives_bodies() == [b"kept"]
    b.selects_confirms()
    b.publishes("q", b"lost")
    cluster.cut("a", "b")
    assert b.receives(commands.Basic.Cancel).consumer_tag == "tag"
    assert b.receives(commands.Basic.Nack).delivery_tag == 1
    b.acks(1)
    b.sends(commands.Basic.Get, queue="q")
    assert b.receives_close(404).reply_text == (
        "NOT_FOUND - home node 'a' of durable queue 'q' in vhost '/' is down or inaccessible"
    )
    got = a.gets("q")
    assert got is not None and got.body == b"kept" and got.method.redelivered


@pytest.mark.parametrize("fault", ["the link breaks", "the leader dies"])
@pytest.mark.parametrize("verdict", ["ack", "reject"])
def test_a_verdict_on_what_was_delivered_before_means_nothing_after(
    cluster: Cluster, fault: str, verdict: str
) -> None:
    a, b, c = (cluster[name].connects() for name in "abc")
    for client in (a, b, c):
        client.opens_channel(1)
    a.declares("q", durable=True)
    a.publishes("q", b"one", delivery_mode=2)
    got = b.gets("q")
    assert got is not None and got.body == b"one"
    if fault == "the link breaks":
        cluster.cut("a", "b")
        cluster.connect("a", "b")
    else:
        cluster.kill("a")
        cluster.comes_back("a")
        # Queues are in memory here.
        c.publishes("q", b"one", delivery_mode=2)
    other = cluster["b"].connects()
    other.opens_channel(1)
    again = other.gets("q")
    assert again is not None and again.body == b"one"
    # The tag of both is 1, but they are deliveries of different sessions.
    if verdict == "ack":
        b.acks(1)
    else:
        b.sends(commands.Basic.Reject, delivery_tag=1, requeue=False)
    cluster.settle()
    assert cluster["a"].queue("q").unacked == 1
    other.vanishes()
    cluster.settle()
    last = c.gets("q")
    assert last is not None and last.body == b"one" and last.method.redelivered


def test_what_is_published_to_a_queue_that_has_been_deleted_is_refused(cluster: Cluster) -> None:
    """Its node did not know, and there is another one of its name, which never gets it."""
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", durable=True)
    b.selects_confirms()
    cluster.cut_store("b")
    a.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(abreast.PATIENCE_S)
    assert a.receives(commands.Queue.DeleteOk)
    a.declares("q", durable=True)
    b.publishes("q", b"to the one before")
    cluster.clock.advance(1)
    assert not b.frames()
    cluster.restore_store("b")
    assert b.receives(commands.Basic.Nack).delivery_tag == 1
    assert a.counts("q") == (0, 0)


def test_two_nodes_that_declare_the_same_queue_at_once_agree(cluster: Cluster) -> None:
    clients = [cluster[name].connects() for name in "abc"]
    for client in clients:
        client.opens_channel(1)
    for client in clients:
        client.sends(commands.Queue.Declare, queue="q", durable=True, arguments={})
    for client in clients:
        assert client.receives(commands.Queue.DeclareOk).queue == "q"
    assert sum(cluster[name].queue("q").is_here for name in "abc") == 1


def test_a_transaction_commits_when_another_node_has_it(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    b.sends(commands.Tx.Select)
    b.receives(commands.Tx.SelectOk)
    b.publishes("q", b"one")
    assert a.counts("q")[0] == 0
    b.sends(commands.Tx.Commit)
    b.receives(commands.Tx.CommitOk)
    assert a.counts("q")[0] == 1
    b.publishes("q", b"two")
    b.sends(commands.Tx.Commit)
    cluster.cut("a", "b")
    assert b.receives_close(406).reply_text == "PRECONDITION_FAILED - partial tx completion"


@pytest.mark.parametrize("fault", ["the link breaks", "the leader is away"])
def test_a_transaction_that_another_node_refuses_acknowledges_nothing(
    cluster: Cluster, fault: str
) -> None:
    """What is taken from one queue and published to another one is in one of them at least."""
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("to", durable=True)
    b.declares("from", durable=True)
    b.publishes("from", b"moved")
    b.sends(commands.Tx.Select)
    b.receives(commands.Tx.SelectOk)
    assert b.gets("from") is not None
    b.publishes("to", b"moved")
    b.acks(1)
    if fault == "the leader is away":
        cluster.cut("a", "b")
    b.sends(commands.Tx.Commit)
    if fault == "the link breaks":
        cluster.cut("a", "b")
    assert b.receives_close(406).reply_text == "PRECONDITION_FAILED - partial tx completion"
    b.opens_channel(1)
    again = b.gets("from")
    assert again is not None and again.body == b"moved" and again.method.redelivered


def test_a_transaction_acknowledges_elsewhere_when_what_it_published_here_is_safe() -> None:
    disk = SlowQueues()
    cluster = Cluster(
        "a",
        "b",
        new_backing=lambda node, spec: disk.new(spec) if node.name == "b" else MemoryQueue(),
    )
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("from", durable=True)
    a.publishes("from", b"moved")
    b.declares("to", durable=True)
    b.sends(commands.Tx.Select)
    b.receives(commands.Tx.SelectOk)
    assert b.gets("from") is not None
    b.publishes("to", b"moved", delivery_mode=2)
    b.acks(1)
    b.sends(commands.Tx.Commit)
    cluster.settle()
    assert cluster["a"].queue("from").unacked == 1
    disk.settle()
    b.receives(commands.Tx.CommitOk)
    cluster.settle()
    assert cluster["a"].queue("from").unacked == 0


def test_the_node_of_a_client_traces_what_it_is_delivered_wherever_the_queue_is(
    cluster: Cluster,
) -> None:
    """As with RabbitMQ; and once, though the node that leads the queue traces as well."""
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q")
    a.declares("traces")
    trace = {"exchange": "amq.rabbitmq.trace", "routing_key": "deliver.#"}
    a.sends(commands.Queue.Bind, queue="traces", **trace)
    a.receives(commands.Queue.BindOk)
    for name in "ab":
        cluster[name].node.trace("/", True)
    for no_ack in (True, False):
        a.publishes("q", b"consumed")
        b.consumes("q", no_ack=no_ack)
        assert b.receives_bodies() == [b"consumed"]
        b.sends(commands.Basic.Cancel, consumer_tag="c")
        b.receives(commands.Basic.CancelOk)
    a.publishes("q", b"got")
    assert b.gets("q") is not None
    a.publishes("q", b"at a")
    assert a.gets("q", no_ack=True) is not None
    a.consumes("traces", no_ack=True)
    traces = a.receives_deliveries()
    assert [trace.body for trace in traces] == [b"consumed", b"consumed", b"got", b"at a"]
    assert [trace.headers["node"].value for trace in traces] == [b"b", b"b", b"b", b"a"]
