"""Mirrored queues whose nodes do not reach each other for a while."""

from __future__ import annotations

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, ha_cluster, hand_over, mirrored, record
from pamqp import commands

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field


@pytest.fixture
def cluster() -> Cluster:
    return ha_cluster()


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
    began = led.synchronisation.slices
    cluster["a"].mirroring.synchronise(led.queue)
    cluster.clock.advance(1)
    assert led.synchronisation.slices == began
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


@pytest.mark.parametrize("carrier", ["gm", "log"])
@pytest.mark.parametrize("dies", [True, False])
def test_a_publish_without_confirms_outlives_a_leader_that_cannot_pass_it_on(
    carrier: str, dies: bool
) -> None:
    """The leader answered when it had the publish: the publisher's node forgot that, and no mirror
    had it."""
    cluster = Cluster("a", "b", "c")
    definition = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-replication": carrier}
    cluster["a"].node.policies.set("/", "ha", "^ha", definition, 0, "queues")
    cluster.settle()
    a, c = cluster["a"].connects(), cluster["c"].connects()
    for client in (a, c):
        client.opens_channel(1)
    declare_mirrored(cluster, a, "ha")
    c.publishes("ha", b"passed on", delivery_mode=2)
    cluster.clock.advance(1)
    if dies:
        # What it has sent is on its way, and is lost with it.
        cluster.stall("a", "b")
    else:
        cluster.cut("a", "b")
        cluster.cut_store("a")
    c.publishes("ha", b"not passed on", delivery_mode=2)
    cluster.settle()
    if dies:
        cluster.kill("a")
    cluster.clock.advance(5)
    assert record(cluster, "ha").leader == "b"
    bodies = [got.body for _ in range(2) if (got := c.gets("ha", no_ack=True)) is not None]
    assert bodies == [b"passed on", b"not passed on"]
