"""What mirrored queues retain of acknowledged messages: every node has the same, at the same
positions, and is sent what it lacks."""

from __future__ import annotations

import pytest
from cluster import Cluster
from cluster_disk import backings_on
from mirrored import declare_mirrored, record
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import VirtualHostRecord
from warren.core.field import long
from warren.core.ports import Write
from warren.core.queues.retention import Retention

RETENTION = {"retention": {"max-bytes": 1 << 20}}


def set_policy(cluster: Cluster, **more: object) -> None:
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic", **more}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.settle()


def retain(cluster: Cluster, *, nothing: bool = False) -> None:
    """Have the queues retain messages, or nothing any more; the rest of their policy stays."""
    (policy,) = cluster["a"].node.policies.of_vhost("/")
    kept = {key: value for key, value in policy.definition.items() if key not in RETENTION}
    definition = kept if nothing else kept | RETENTION
    cluster["a"].node.policies.set("/", "ha", "^q$", definition, 0, "queues")
    cluster.settle()


@pytest.fixture(params=["gm", "log", "quorum"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One in which a queue `q` is mirrored by this carrier, or is a quorum queue."""
    cluster = Cluster("a", "b", "c")
    if request.param == "quorum":
        policy = {"expires": 86_400_000, **RETENTION}
        cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
        quorum = VirtualHostRecord(default_queue_type="quorum")
        cluster["a"].node.metadata.transact([Write(("vhost", "/"), quorum)])
        cluster.settle()
    else:
        set_policy(cluster, **{"ha-replication": request.param}, **RETENTION)
    return cluster


CLASSIC_ONLY = pytest.mark.parametrize("cluster", ["gm", "log"], indirect=True)
"""Quorum queues have no priorities."""


def client_of(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def fill(cluster: Cluster, client: Client, *bodies: bytes) -> None:
    for body in bodies:
        client.publishes("q", body, delivery_mode=2)
    cluster.clock.advance(1)


def acknowledge(cluster: Cluster, client: Client, count: int) -> None:
    for _ in range(count):
        client.sends(commands.Basic.Get, queue="q")
        cluster.clock.advance(1)
        client.acks(client.receives_content(commands.Basic.GetOk).method.delivery_tag)
    cluster.clock.advance(1)


def bodies(retention: Retention | None) -> list[bytes]:
    assert retention is not None
    log, found = retention.log, []
    position = log.first
    while position < log.committed:
        messages, position = log.read(position, 10)
        found += [message.body for message in messages]
    return found


def positions(retention: Retention | None) -> list[int]:
    assert retention is not None
    return retention.log.list_positions(0, 1 << 62, 1 << 20).positions


def all_retained(cluster: Cluster) -> list[bytes]:
    """What all nodes that are up have, at the same positions."""
    queue_id = record(cluster, "q", cluster.alive[-1]).queue_id
    copies = [cluster[name].mirroring.retained.of(queue_id) for name in cluster.alive]
    found = [(bodies(copy), positions(copy)) for copy in copies]
    assert all(one == found[0] for one in found), found
    return found[0][0]


def of_leader(cluster: Cluster) -> list[bytes]:
    return bodies(cluster[record(cluster, "q").leader].queue("q").retention)


def of_mirror(cluster: Cluster, node: str) -> list[bytes]:
    queue_id = record(cluster, "q").queue_id
    return bodies(cluster[node].mirroring.retained._retentions[queue_id])


def test_every_copy_retains_what_is_acknowledged(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 2)
    assert of_leader(cluster) == [b"1", b"2"]
    assert of_mirror(cluster, "b") == of_mirror(cluster, "c") == [b"1", b"2"]


def test_the_next_leader_has_it_and_goes_on(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3", b"4")
    acknowledge(cluster, client, 2)
    cluster.kill("a")
    cluster.clock.advance(10)
    leader = record(cluster, "q").leader
    assert leader != "a"
    assert of_leader(cluster) == [b"1", b"2"]
    acknowledge(cluster, client_of(cluster, leader), 1)
    assert of_leader(cluster) == [b"1", b"2", b"3"]
    (other,) = {"b", "c"} - {leader}
    assert of_mirror(cluster, other) == [b"1", b"2", b"3"]
    assert len(cluster[leader].queue("q")) == 1


def test_leader_that_hands_over_keeps_what_it_has(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 1)
    mirroring = cluster["a"].mirroring
    mirroring.hand_overs.drain()
    cluster.clock.advance(10)
    leader = record(cluster, "q").leader
    assert leader != "a"
    acknowledge(cluster, client_of(cluster, leader), 1)
    assert of_leader(cluster) == of_mirror(cluster, "a") == [b"1", b"2"]


def test_what_goes_straight_to_a_client_is_retained_everywhere(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True)
    cluster.clock.advance(1)
    fill(cluster, client, b"1", b"2")
    assert of_leader(cluster) == of_mirror(cluster, "b") == [b"1", b"2"]
    assert len(cluster["a"].queue("q")) == 0


@CLASSIC_ONLY
def test_priorities_and_ids(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q", {"x-max-priority": long(3)})
    for priority in (0, 3, 9):
        client.publishes("q", b"%d" % priority, delivery_mode=2, priority=priority)
    cluster.clock.advance(1)
    acknowledge(cluster, client, 3)
    assert of_leader(cluster) == of_mirror(cluster, "b") == [b"3", b"9", b"0"]


def test_policy_that_is_removed_and_set_again(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, *[b"%d" % number for number in range(6)])
    acknowledge(cluster, client, 2)
    retain(cluster, nothing=True)
    cluster.clock.advance(2)
    assert cluster["a"].queue("q").retention is None
    acknowledge(cluster, client, 2)
    retain(cluster)
    cluster.clock.advance(2)
    acknowledge(cluster, client, 1)
    assert of_leader(cluster) == of_mirror(cluster, "b") == of_mirror(cluster, "c") == [b"4"]


def test_queue_that_is_deleted_takes_it_along_everywhere(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1")
    acknowledge(cluster, client, 1)
    client.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(2)
    client.receives(commands.Queue.DeleteOk)
    for name in "abc":
        assert not cluster[name].mirroring.retained._retentions


@CLASSIC_ONLY
def test_positions_mean_the_same_at_every_node(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q", {"x-max-priority": long(3)})
    for number in range(6):
        client.publishes("q", b"%d" % number, delivery_mode=2, priority=number % 2)
    cluster.clock.advance(1)
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    cluster.clock.advance(1)
    client.acks(6, multiple=True)
    cluster.clock.advance(1)
    assert sorted(all_retained(cluster)) == [b"%d" % number for number in range(6)]


def test_positions_stay_when_another_node_leads(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 2)
    before = positions(cluster["a"].queue("q").retention)
    cluster.kill("a")
    cluster.clock.advance(10)
    leader = record(cluster, "q").leader
    acknowledge(cluster, client_of(cluster, leader), 1)
    after = positions(cluster[leader].queue("q").retention)
    assert after[:2] == before and after[2] > before[1] + (1 << 30)
    assert all_retained(cluster) == [b"1", b"2", b"3"]


def test_mirror_that_was_away_is_sent_what_it_lacks(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, *[b"%03d" % number for number in range(300)])
    acknowledge(cluster, client, 2)
    cluster.kill("b")
    cluster.clock.advance(5)
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    cluster.clock.advance(1)
    client.acks(300, multiple=True)
    cluster.clock.advance(1)
    assert len(of_leader(cluster)) == 300
    cluster.comes_back("b")
    cluster.clock.advance(30)
    fill(cluster, client, b"more")
    client.acks(301)
    cluster.clock.advance(1)
    assert all_retained(cluster) == [*[b"%03d" % number for number in range(300)], b"more"]


def test_synchronisation_that_is_broken_off_goes_on_with_the_next_leader(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.mirror.replication.copies.retained_sync.SLICE_COUNT", 3)
    monkeypatch.setattr("warren.mirror.replication.copies.retained_sync.LISTED_MAX", 20)
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    cluster.kill("b")
    cluster.clock.advance(5)
    fill(cluster, client, *[b"%03d" % number for number in range(100)])
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    cluster.clock.advance(1)
    client.acks(100, multiple=True)
    cluster.clock.advance(1)
    cluster.comes_back("b")
    queue_id = record(cluster, "q", "a").queue_id
    while (
        len(bodies(cluster["b"].mirroring.retained.of(queue_id)) if has(cluster, "b") else ()) < 9
    ):
        cluster.clock.advance(0.01)
    assert len(of_mirror(cluster, "b")) < 20
    cluster.kill("a")
    cluster.clock.advance(30)
    assert all_retained(cluster) == [b"%03d" % number for number in range(100)]


def has(cluster: Cluster, node: str) -> bool:
    return record(cluster, "q", "c").queue_id in cluster[node].mirroring.retained._retentions


def test_leader_that_had_not_been_sent_everything_asks_its_mirrors(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 3)
    leader_log = cluster["a"].queue("q").retention.log
    queue_id = record(cluster, "q").queue_id
    # As if it had taken the lead before it was sent these.
    leader_log.drop(0, leader_log.next_position - 1)
    assert of_leader(cluster) == [b"3"]
    cluster.kill("c")
    cluster.clock.advance(5)
    cluster.comes_back("c")
    cluster.clock.advance(20)
    assert of_mirror(cluster, "c") == [b"3"]
    cluster["b"].mirroring._retained_sync.forget(queue_id)
    cluster["b"].mirroring.copies.by_queue[queue_id].at_rest = False
    cluster.clock.advance(20)
    assert all_retained(cluster) == [b"1", b"2", b"3"]


def test_what_only_a_leader_had_that_was_cut_off_is_not_retained_twice(cluster: Cluster) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 1)
    client.sends(commands.Basic.Get, queue="q")
    cluster.clock.advance(1)
    tag = client.receives_content(commands.Basic.GetOk).method.delivery_tag
    cluster.cut_store("a")
    for other in "bc":
        cluster.stall("a", other)
    client.acks(tag)
    cluster.settle()
    assert of_leader(cluster) == [b"1", b"2"]
    for other in "bc":
        cluster.cut("a", other)
    cluster.clock.advance(15)
    leader = record(cluster, "q").leader
    assert leader != "a"
    assert of_leader(cluster) == [b"1"]
    cluster.restore_store("a")
    for other in "bc":
        cluster.unstall("a", other)
        cluster.connect("a", other)
    cluster.clock.advance(30)
    acknowledge(cluster, client_of(cluster, leader), 2)
    assert all_retained(cluster) == [b"1", b"2", b"3"]


def test_mirror_that_hears_late_that_a_queue_retains_is_sent_what_was_acknowledged(
    cluster: Cluster,
) -> None:
    client = client_of(cluster, "a")
    retain(cluster, nothing=True)
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    # Its mirrors are looked at no more.
    cluster.clock.advance(60)
    cluster.cut_store("b")
    retain(cluster)
    acknowledge(cluster, client, 2)
    cluster.restore_store("b")
    cluster.clock.advance(10)
    acknowledge(cluster, client, 1)
    cluster.clock.advance(10)
    assert all_retained(cluster) == [b"1", b"2", b"3"]


def test_mirror_that_hears_late_that_a_queue_retains_anew_is_sent_the_rest(
    cluster: Cluster,
) -> None:
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 1)
    cluster.cut_store("b")
    retain(cluster, nothing=True)
    retain(cluster)
    acknowledge(cluster, client, 1)
    assert of_leader(cluster) == [b"2"]
    cluster.restore_store("b")
    cluster.clock.advance(10)
    assert all_retained(cluster) == [b"2"]


def test_leader_whose_mirror_retained_nothing_yet_gives_other_positions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(cluster, "a")
    retain(cluster, nothing=True)
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3", b"4")
    # As if their turn did not come before the leader died.
    for name in "bc":
        monkeypatch.setattr(cluster[name].mirroring.copies, "follow_policy", lambda copy: None)
    retain(cluster)
    acknowledge(cluster, client, 2)
    before = positions(cluster["a"].queue("q").retention)
    cluster.kill("a")
    cluster.clock.advance(10)
    leader = record(cluster, "q").leader
    acknowledge(cluster, client_of(cluster, leader), 2)
    after = positions(cluster[leader].queue("q").retention)
    assert len(after) == 2 and after[0] > before[-1]


def with_leader_that_was_not_in_sync(carrier: str) -> Cluster:
    """b leads, and lacks 1 and 2. Its predecessor a, which is down, retained all of 0 to 3."""
    cluster = Cluster("a", "b", "c", new_backing=backings_on({}))
    by_hand = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-mode": "manual"}
    by_hand |= {"ha-replication": carrier, **RETENTION}
    set_policy(cluster, **by_hand)
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"0")
    acknowledge(cluster, client, 1)
    cluster.kill("b")
    cluster.clock.advance(10)
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 2)
    cluster.comes_back("b")
    cluster.clock.advance(10)
    assert record(cluster, "q", "c").in_sync == []
    cluster.stall("a", "b")
    acknowledge(cluster, client, 1)
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(30)
    assert record(cluster, "q", "c").leader == "b", record(cluster, "q", "c")
    return cluster


def returns_and_is_synchronised(cluster: Cluster, carrier: str) -> None:
    cluster.comes_back("a")
    cluster.clock.advance(10)
    policy = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-mode": "automatic"}
    policy |= {"ha-replication": carrier, **RETENTION}
    cluster["b"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.clock.advance(60)
    assert record(cluster, "q", "c").in_sync == ["a"]


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_leader_that_was_not_in_sync_takes_what_the_leader_before_had_retained(
    carrier: str,
) -> None:
    cluster = with_leader_that_was_not_in_sync(carrier)
    returns_and_is_synchronised(cluster, carrier)
    assert of_leader(cluster) == of_mirror(cluster, "a") == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_leader_that_was_not_in_sync_gives_positions_of_its_own_after_a_restart(
    carrier: str,
) -> None:
    cluster = with_leader_that_was_not_in_sync(carrier)
    cluster.kill("b")
    cluster.clock.advance(1)
    cluster.comes_back("b")
    cluster.clock.advance(10)
    client = client_of(cluster, "b")
    while client.counts("q")[0]:
        acknowledge(cluster, client, 1)
    fill(cluster, client, b"4", b"5", b"6")
    acknowledge(cluster, client, 3)
    returns_and_is_synchronised(cluster, carrier)
    retained = of_leader(cluster)
    assert retained == of_mirror(cluster, "a")
    assert set(retained) == {b"%d" % number for number in range(7)}


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_leader_that_never_had_a_message_which_was_retained_does_not_have_it_dropped(
    carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("a", "b", "c", new_backing=backings_on({}))
    by_hand = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-mode": "manual"}
    by_hand |= {"ha-replication": carrier, **RETENTION}
    set_policy(cluster, **by_hand)
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    cluster.kill("b")
    cluster.clock.advance(10)
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 2)
    cluster.comes_back("b")
    # As if the leader died before it was asked for more.
    monkeypatch.setattr(cluster["b"].mirroring._retained_sync, "is_in_sync", lambda *about: None)
    cluster.clock.advance(10)
    client.sends(commands.Basic.Get, queue="q")
    cluster.clock.advance(1)
    client.acks(client.receives_content(commands.Basic.GetOk).method.delivery_tag)
    cluster.clock.advance(5)
    assert record(cluster, "q", "c").in_sync == ["b"]
    assert of_mirror(cluster, "b") == []
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(30)
    assert record(cluster, "q", "c").leader == "b"
    cluster.comes_back("a")
    cluster.clock.advance(60)
    assert of_leader(cluster) == of_mirror(cluster, "a") == [b"1", b"2", b"3"]


def test_mirror_is_not_sent_what_it_has_in_the_queue_still() -> None:
    """It hears later that it was acknowledged; should the leader die before, it leads with it."""
    cluster = Cluster("a", "b", "c")
    set_policy(cluster, **RETENTION)
    client = client_of(cluster, "a")
    declare_mirrored(cluster, client, "q")
    fill(cluster, client, b"1", b"2", b"3")
    acknowledge(cluster, client, 1)
    (led,) = cluster["a"].mirroring._led.values()
    ring = [member.node for member in led.member.member.record.members]
    at = ring.index("a")
    between, last = ring[at - 2], ring[at - 1]
    cluster.stall(between, last)
    acknowledge(cluster, client, 1)
    assert of_leader(cluster) == [b"1", b"2"]
    told = record(cluster, "q")
    cluster[last].mirroring._retained_sync.is_in_sync(told, told.stores[last] + 1)
    cluster.clock.advance(5)
    assert of_mirror(cluster, last) == [b"1"]
    cluster.unstall(between, last)
    cluster.clock.advance(5)
    assert all_retained(cluster) == [b"1", b"2"]
