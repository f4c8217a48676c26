"""After a failover messages are redelivered that a client may have had, and no others."""

from __future__ import annotations

import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client, Content

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.mirror.replication.levels.hand_outs import AHEAD_MAX, AHEAD_MIN

POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}


@pytest.fixture
def cluster() -> Cluster:
    return cluster_with_queue()


def cluster_with_queue(**arguments: Field) -> Cluster:
    disks: dict[str, Disk] = {}
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks))
    cluster["a"].node.policies.set("/", "ha", "^ha", POLICY, 0, "queues")
    client = opened(cluster, "a")
    client.sends(commands.Queue.Declare, queue="ha", durable=True, arguments=arguments)
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    return cluster


def record(cluster: Cluster, node: str = "") -> QueueRecord:
    """The queue's definition, as a node has it."""
    stored = cluster[node or cluster.alive[0]].metadata.get(("queue", "/", "ha"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def opened(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def publish(cluster: Cluster, node: str, numbers: range, **properties: int) -> None:
    client = opened(cluster, node)
    client.selects_confirms()
    for number in numbers:
        client.publishes("ha", b"%d" % number, delivery_mode=2, **properties)
    cluster.clock.advance(1)
    client.receives(commands.Basic.Ack)


def consumed(cluster: Cluster, client: Client) -> list[Content]:
    """What comes next, after enough time for all that goes between nodes."""
    cluster.clock.advance(1)
    return client.receives_deliveries()


def take(cluster: Cluster, client: Client, count: int, prefetch: int) -> Client:
    """Have so many delivered, and acknowledge all but the last `prefetch`."""
    client.sets_prefetch(prefetch)
    client.consumes("ha")
    for _ in range(count // prefetch - 1):
        deliveries = consumed(cluster, client)
        assert len(deliveries) == prefetch
        client.acks(deliveries[-1].method.delivery_tag, multiple=True)
    assert len(consumed(cluster, client)) == prefetch
    return client


def lead_on(cluster: Cluster, name: str, *clients: Client) -> str:
    """The leader dies, and these clients are gone then; returns the next one."""
    cluster.kill(name)
    for client in clients:
        client.vanishes()
    cluster.clock.advance(15)
    assert record(cluster).leader != name
    return record(cluster).leader


def left(cluster: Cluster) -> list[tuple[int, bool]]:
    """What is in the queue, and whether it is redelivered. It is fetched and goes back."""
    client = opened(cluster, record(cluster).leader)
    client.consumes("ha")
    found: list[tuple[int, bool]] = []
    while deliveries := consumed(cluster, client):
        found += [(int(one.body), one.method.redelivered) for one in deliveries]
    client.vanishes()
    return found


def marked(cluster: Cluster) -> list[int]:
    return [number for number, redelivered in left(cluster) if redelivered]


def test_only_what_a_client_may_have_had_is_redelivered_after_a_failover(cluster: Cluster) -> None:
    publish(cluster, "a", range(5000))
    client = take(cluster, opened(cluster, "c"), 300, 100)
    lead_on(cluster, "a", client)
    found = left(cluster)
    assert [number for number, _ in found] == list(range(200, 5000))
    flags = [redelivered for _, redelivered in found]
    count = sum(flags)
    assert 100 <= count <= 100 + 2 * AHEAD_MIN + 200 < AHEAD_MAX
    assert flags == [True] * count + [False] * (len(flags) - count)


def test_nothing_is_redelivered_of_a_queue_that_nobody_consumes_from(cluster: Cluster) -> None:
    publish(cluster, "a", range(50))
    lead_on(cluster, "a")
    assert marked(cluster) == []


def test_what_was_delivered_at_once_and_returned_is_redelivered(cluster: Cluster) -> None:
    client = opened(cluster, "b")
    client.consumes("ha")
    publish(cluster, "a", range(10))
    deliveries = consumed(cluster, client)
    client.nacks(deliveries[4].method.delivery_tag, multiple=True)
    client.vanishes()
    cluster.clock.advance(1)
    publish(cluster, "b", range(10, 500))
    lead_on(cluster, "a")
    found = left(cluster)
    assert [number for number, _ in found] == list(range(500))
    assert all(redelivered for _, redelivered in found[:10])
    assert sum(redelivered for _, redelivered in found) <= 10 + AHEAD_MIN


def test_what_a_leader_before_had_delivered_is_redelivered_after_another_failover(
    cluster: Cluster,
) -> None:
    publish(cluster, "a", range(1000))
    client = take(cluster, opened(cluster, "c"), 100, 50)
    second = lead_on(cluster, "a", client)
    lead_on(cluster, second)
    count = len(marked(cluster))
    assert 50 <= count <= 50 + 3 * AHEAD_MIN


@pytest.mark.parametrize("returns", [False, True])
def test_what_is_published_again_stays_redelivered_and_the_rest_does_not_become_so(
    returns: bool,
) -> None:
    delay_s = [0.0]
    cluster = cluster_with_queue()
    cluster._delay = lambda: delay_s[0]
    publish(cluster, "a", range(20))
    c = opened(cluster, "c")
    c.publishes("ha", b"20", delivery_mode=2)
    cluster.clock.advance(1)
    delay_s[0] = 0.1
    # It reaches the leader, and no mirror.
    c.publishes("ha", b"21", delivery_mode=2)
    cluster.clock.advance(0.15)
    cluster.kill("a")
    delay_s[0] = 0.0
    cluster.clock.advance(15)
    second = record(cluster).leader
    publish(cluster, second, range(22, 30))
    if returns:
        # A new mirror is told of it, too.
        cluster.comes_back("a")
        cluster.clock.advance(30)
        cluster.kill(*set("bc") - {second})
        cluster.clock.advance(15)
    lead_on(cluster, second)
    assert not returns or record(cluster).leader == "a"
    found = left(cluster)
    assert [number for number, _ in found] == list(range(30))
    assert [number for number, redelivered in found if redelivered] == [21]


def test_a_mirror_that_is_synchronised_is_told_what_counts_as_delivered(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    take(cluster, opened(cluster, "a"), 200, 100)
    for name in "bc":
        cluster.kill(name)
        cluster.clock.advance(15)
    for name in "bc":
        cluster.comes_back(name)
        cluster.clock.advance(20)
    assert len(record(cluster).in_sync) == 2
    lead_on(cluster, "a")
    count = len(marked(cluster))
    assert 100 <= count <= 100 + 3 * AHEAD_MIN + 100


def test_a_leader_that_comes_back_and_leads_again_marks_no_more(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    client = take(cluster, opened(cluster, "c"), 200, 100)
    lead_on(cluster, "a", client)
    cluster.comes_back("a")
    cluster.clock.advance(30)
    for name in "bc":
        cluster.kill(name)
        cluster.clock.advance(15)
    assert record(cluster).leader == "a"
    found = left(cluster)
    assert [number for number, _ in found] == list(range(100, 1000))
    assert 100 <= sum(redelivered for _, redelivered in found) <= 100 + 3 * AHEAD_MIN + 100


def test_levels_of_priority_are_marked_each_for_itself() -> None:
    cluster = cluster_with_queue(**{"x-max-priority": Field("b", 2)})
    publish(cluster, "a", range(1000))
    publish(cluster, "a", range(1000, 1100), priority=2)
    client = opened(cluster, "a")
    client.sets_prefetch(150)
    client.consumes("ha")
    cluster.clock.advance(1)
    deliveries = client.receives_deliveries()
    assert [int(one.body) for one in deliveries] == [*range(1000, 1100), *range(50)]
    lead_on(cluster, "a")
    found = left(cluster)
    assert [number for number, _ in found] == [*range(1000, 1100), *range(1000)]
    assert all(redelivered for _, redelivered in found[:150])
    assert sum(redelivered for _, redelivered in found) <= 150 + 3 * AHEAD_MIN + 150


def test_after_a_hand_over_exactly_what_was_delivered_is_redelivered(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    client = take(cluster, opened(cluster, "c"), 200, 100)
    mirroring = cluster["a"].mirroring
    (led,) = mirroring._led.values()
    mirroring.hand_overs.begin(led, "b")
    cluster.clock.advance(5)
    assert record(cluster).leader == "b"
    # The consumer has again what it had.
    again = consumed(cluster, client)
    assert [(int(one.body), one.method.redelivered) for one in again] == [
        (number, True) for number in range(100, 200)
    ]
    assert marked(cluster) == []


def test_what_stays_after_the_mirrors_are_gone_is_marked_no_more(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    client = take(cluster, opened(cluster, "c"), 200, 100)
    lead_on(cluster, "a", client)
    cluster["b"].node.policies.clear("/", "ha")
    cluster.clock.advance(5)
    assert not record(cluster).mirrors
    assert 100 <= len(marked(cluster)) <= 100 + 3 * AHEAD_MIN + 100


def test_nothing_is_handed_out_before_mirrors_know_of_it(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    # What the mirrors say does not arrive.
    for mirror in "bc":
        cluster.stall(mirror, "a")
    client = opened(cluster, "a")
    client.consumes("ha")
    getter = opened(cluster, "a")
    getter.sends(commands.Basic.Get, queue="ha")
    cluster.clock.advance(1)
    client.receives_nothing()
    getter.receives_nothing()
    cluster.unstall("b", "a")
    cluster.clock.advance(1)
    client.receives_nothing()
    cluster.unstall("c", "a")
    cluster.clock.advance(1)
    got = int(getter.receives_content(commands.Basic.GetOk).body)
    bodies = [int(one.body) for one in client.receives_deliveries()]
    assert sorted((*bodies, got)) == list(range(1000))


def test_a_get_from_another_node_waits_until_mirrors_know_of_it(cluster: Cluster) -> None:
    publish(cluster, "a", range(10))
    cluster.stall("b", "a")
    getter = opened(cluster, "c")
    getter.sends(commands.Basic.Get, queue="ha")
    cluster.clock.advance(1)
    getter.receives_nothing()
    cluster.unstall("b", "a")
    cluster.clock.advance(1)
    assert getter.receives_content(commands.Basic.GetOk).body == b"0"


def test_what_is_delivered_at_once_waits_for_no_mirror(cluster: Cluster) -> None:
    client = opened(cluster, "a")
    client.consumes("ha")
    for mirror in "bc":
        cluster.stall(mirror, "a")
    publisher = opened(cluster, "a")
    for number in range(3 * AHEAD_MAX):
        publisher.publishes("ha", b"%d" % number)
    assert len(client.receives_bodies()) == 3 * AHEAD_MAX


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_leader_that_is_cut_off_hands_nothing_more_out(cluster: Cluster, carrier: str) -> None:
    """Another one may lead by now, and its clients have what was announced here."""
    cluster["a"].node.policies.set("/", "ha", "^ha", POLICY | {"ha-replication": carrier}, 0, "all")
    cluster.clock.advance(5)
    publish(cluster, "a", range(100))
    client = opened(cluster, "a")
    client.sets_prefetch(1)
    client.consumes("ha")
    (first,) = consumed(cluster, client)
    for mirror in "bc":
        cluster.cut("a", mirror)
    cluster.cut_store("a")
    cluster.clock.advance(15)
    assert record(cluster, "b").leader != "a"
    client.acks(first.method.delivery_tag)
    assert consumed(cluster, client) == []
    new = opened(cluster, record(cluster, "b").leader)
    new.consumes("ha")
    redelivered = [int(one.body) for one in consumed(cluster, new) if one.method.redelivered]
    assert {1, 2} < set(redelivered)


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_leader_whose_mirror_is_gone_goes_on_when_it_is_named_no_more(
    cluster: Cluster, carrier: str
) -> None:
    cluster["a"].node.policies.set("/", "ha", "^ha", POLICY | {"ha-replication": carrier}, 0, "all")
    cluster.clock.advance(5)
    publish(cluster, "a", range(100))
    client = opened(cluster, "a")
    client.sets_prefetch(1)
    client.consumes("ha")
    (first,) = consumed(cluster, client)
    cluster.kill("c")
    cluster.clock.advance(15)
    client.acks(first.method.delivery_tag)
    (second,) = consumed(cluster, client)
    assert (int(second.body), second.method.redelivered) == (1, False)


def test_a_mirror_that_was_about_to_stop_and_leads_after_all_redelivers(cluster: Cluster) -> None:
    publish(cluster, "a", range(1000))
    client = take(cluster, opened(cluster, "a"), 200, 100)
    cluster.kill("c")
    cluster.clock.advance(15)
    cluster._delay = lambda: 0.5
    cluster.kill("a")
    client.vanishes()
    (copy,) = cluster["b"].mirroring.copies.by_queue.values()
    while not copy.promoting:
        cluster.clock.advance(0.1)
    cluster["b"].mirroring.stop_leading()
    cluster._delay = lambda: 0.0
    cluster.clock.advance(1)
    assert record(cluster).leader == "b"
    found = left(cluster)
    assert [number for number, _ in found] == list(range(100, 1000))
    assert all(redelivered for _, redelivered in found[:100])
