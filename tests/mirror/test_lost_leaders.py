"""Queues whose leader dies, stops or comes back: who leads then, and with what."""

from __future__ import annotations

import pytest
from cluster import Cluster, ClusterNode
from mirrored import ha_cluster, hand_over, mirrored, mirrored_later, record
from pamqp import commands

from warren.core.definitions.records import forgotten
from warren.core.field import Field
from warren.core.scheduling.waiting import run
from warren.mirror.members import abreast
from warren.mirror.remote.remote_queue import NEW_LEADER_S
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.leading.flush_times import WAIT_S
from warren.mirror.replication.leading.hand_over import PATIENCE_S


@pytest.fixture
def cluster() -> Cluster:
    return ha_cluster()


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
    cluster.clock.advance(WAIT_S)
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


def test_consumers_that_ask_for_it_are_cancelled_at_failover(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    c = cluster["c"].connects()
    c.opens_channel(1)
    c.consumes("ha", arguments={"x-cancel-on-ha-failover": Field("t", True)})
    cluster.kill("a")
    cluster.clock.advance(5)
    assert c.receives(commands.Basic.Cancel).consumer_tag == "c"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_an_auto_delete_queue_stays_when_its_leader_goes_and_its_consumer_stays(
    cluster: Cluster, how: str
) -> None:
    """The consumer is neither at the node that led nor at the one that leads next."""
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.sends(commands.Queue.Declare, queue="ha", durable=True, auto_delete=True, arguments={})
    cluster.clock.advance(3)
    a.receives(commands.Queue.DeclareOk)
    heir, other = record(cluster, "ha").mirrors
    client = cluster[other].connects()
    client.opens_channel(1)
    client.consumes("ha")
    a.publishes("ha", b"confirmed", delivery_mode=2)
    assert client.receives_bodies() == [b"confirmed"]
    if how == "killed":
        cluster.kill("a")
    else:
        cluster["a"].node.stop_following()
        cluster["a"].mirroring.stop_leading()
        cluster.settle()
        for node in (heir, other):
            cluster.cut("a", node)
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader == heir
    (delivery,) = client.receives_deliveries()
    assert delivery.method.redelivered
    client.acks(delivery.method.delivery_tag)
    client.sends(commands.Basic.Cancel, consumer_tag=delivery.method.consumer_tag)
    cluster.settle()
    assert "ha" not in cluster[heir].vhost.queues


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


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_what_reaches_a_leader_that_stops_is_sent_to_the_next_one(
    cluster: Cluster, carrier: str
) -> None:
    """It answered publishes without confirms, of which it told its mirrors nothing any more."""
    definition = {"ha-mode": "all", "ha-replication": carrier}
    cluster["a"].node.policies.set("/", "ha", "^ha", definition, 0, "queues")
    mirrored(cluster, "ha")
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.publishes("ha", b"before", delivery_mode=2)
    cluster.settle()
    cluster["a"].mirroring.stop_leading()
    b.publishes("ha", b"while it stops", delivery_mode=2)
    cluster.settle()
    cluster.kill("a")
    cluster.clock.advance(3)
    assert record(cluster, "ha").leader != "a"
    bodies = [got.body for _ in range(2) if (got := b.gets("ha", no_ack=True)) is not None]
    assert bodies == [b"before", b"while it stops"]


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


def test_clients_are_refused_when_no_mirror_takes_the_lead_in_time(cluster: Cluster) -> None:
    """They waited for ever: the end of the first wait ended the timer of the next one, too."""
    mirrored_later(cluster, **{"ha-promote-on-failure": "when-synced"})
    early, late = cluster["b"].connects(), cluster["b"].connects()
    for client in (early, late):
        client.opens_channel(1)
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(1)
    early.sends(commands.Queue.Delete, queue="later")
    cluster.clock.advance(NEW_LEADER_S)
    refusal = "home node 'a' of durable queue 'later' in vhost '/' is down or inaccessible"
    assert refusal in early.receives_close(404).reply_text
    late.sends(commands.Queue.Declare, queue="later", durable=True)
    cluster.clock.advance(NEW_LEADER_S - 1)
    assert late.frames() == []
    cluster.clock.advance(2)
    assert refusal in late.receives_close(404).reply_text


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
    cluster.clock.advance(PATIENCE_S + abreast.PATIENCE_S + 1)
    cluster.stall(between, target)
    client.publishes("ha", b"more than the next leader has")
    cluster.settle()
    cluster.stall(target, between)
    cluster.restore_store(target)
    cluster.clock.advance(abreast.PATIENCE_S)
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
        led.synchronisation.start(mirror, synchronise=False)
    a.acks(got.method.delivery_tag)
    cluster.clock.advance(1.5)
    assert not record(cluster, "later").in_sync
    for mirror in "bc":
        cluster.unstall("a", mirror)
    cluster.clock.advance(1.5)
    assert sorted(record(cluster, "later").in_sync) == ["b", "c"]


def forget(cluster: Cluster, node: str) -> None:
    """A node that was killed is forgotten at b."""
    cluster.tidy_after(node)
    cluster.clock.advance(5)
    members = cluster["b"].mirroring.queue_members
    run(members.forget(node, cluster.nodes.keys() - {node}), lambda result: result())
    cluster.clock.advance(5)


def test_what_a_queue_waits_for_whose_leader_is_forgotten_is_logged_and_shown(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored_later(cluster, **{"ha-promote-on-failure": "when-synced"})
    cluster.kill("a")
    cluster.clock.advance(5)
    assert 'candidates=none waits_for="its leader a"' in caplog.text
    caplog.clear()
    forget(cluster, "a")
    told = "its deletion, or a policy with ha-promote-on-failure: always"
    assert f'candidates=none waits_for="{told}' in caplog.text
    b = cluster["b"]
    queue = b.node.vhosts["/"].queues["later"]
    assert b.mirroring.figures.waits_for(queue).startswith(told)


def test_a_queue_whose_leader_is_forgotten_can_be_deleted(cluster: Cluster) -> None:
    """No node leads it, and with when-synced no mirror that lacks messages will."""
    mirrored_later(cluster, **{"ha-promote-on-failure": "when-synced"})
    b = cluster["b"].connects()
    b.opens_channel(1)
    cluster.kill("a")
    forget(cluster, "a")
    assert record(cluster, "later").leader == forgotten("a")
    b.sends(commands.Queue.Delete, queue="later")
    cluster.clock.advance(1)
    assert b.receives(commands.Queue.DeleteOk).message_count == 0
    cluster.clock.advance(30)
    for node in "bc":
        assert cluster[node].metadata.get(("queue", "/", "later")) is None
        assert not cluster[node].mirroring.figures.copies_here()
    b.declares("later", durable=True)


def test_a_policy_lets_a_mirror_lead_whose_leader_is_forgotten(cluster: Cluster) -> None:
    a = mirrored_later(cluster, **{"ha-promote-on-failure": "when-synced"})
    a.publishes("later", b"everywhere", delivery_mode=2)
    cluster.settle()
    cluster.kill("a")
    forget(cluster, "a")
    cluster["b"].node.policies.set("/", "l", "^later", {"ha-mode": "all"}, 0, "queues")
    cluster.clock.advance(5)
    assert record(cluster, "later").leader in ("b", "c")
    b = cluster["b"].connects()
    b.opens_channel(1)
    got = b.gets("later")
    assert got is not None and got.body == b"everywhere"
