"""All nodes are started again, and one finds that its disk has lost messages of mirrored queues."""

from __future__ import annotations

import pytest
from stopped_cluster import StoppedCluster

from warren.core.definitions.records import QueueRecord
from warren.core.scheduling.waiting import run
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.elections.returned_leader import MIRROR_MAY_COME_S

CARRIERS = ("gm", "log")
BODIES = [b"%d" % number for number in range(6)]
LONG_S = LEADER_MAY_COME_S + MIRROR_MAY_COME_S + 10


def damage(cluster: StoppedCluster, node: str, *lost: int) -> None:
    """Have the disk of a node lose these messages, counted from the oldest."""
    cluster.damaged.add(node)
    (kept,) = [queue for queue in cluster.disks[node].queues.values() if queue]
    for position in [sorted(kept)[number] for number in lost]:
        del kept[position]


def with_messages(carrier: str, **policy: str) -> StoppedCluster:
    """All nodes are killed, and have all messages on disk."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic", **policy)
    cluster.publish(*BODIES)
    cluster.kill_all()
    return cluster


def bodies(cluster: StoppedCluster) -> list[bytes]:
    return [body for body, _ in cluster.bodies()]


def is_at_rest(cluster: StoppedCluster) -> bool:
    record = cluster.record()
    return sorted([record.leader, *record.in_sync]) == cluster.alive


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
@pytest.mark.parametrize("lost", [(0,), (2, 3), (5,), range(6)])
def test_a_mirror_leads_in_the_place_of_a_leader_whose_disk_is_damaged(
    carrier: str, order: str, lost: tuple[int, ...]
) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "a", *lost)
    cluster.start_again(*order)
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader != "a" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_its_mirrors_may_be_started_some_seconds_after_it(carrier: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "a", 1)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S - 2)
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader != "a" and bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_it_leads_on_if_no_mirror_comes(carrier: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "a", 1)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    assert cluster.record().leader == "a"
    assert bodies(cluster) == [BODIES[0], *BODIES[2:]]


def waiting(carrier: str) -> StoppedCluster:
    """The leader has found damage and waits: only a copy with all messages is to lead."""
    cluster = with_messages(carrier, ha_promote_on_failure="when-synced")
    damage(cluster, "a", 1)
    cluster.start_again("a")
    cluster.clock.advance(600)
    queue = cluster["a"].node.vhosts["/"].queues["q"]
    assert queue.is_held and cluster.record().in_sync == ["b", "c"]
    waits_for = cluster["a"].mirroring.figures.waits_for(queue)
    assert waits_for.startswith("nodes that may have what the damaged disk of a lacks: b, c, or a")
    return cluster


def forget(cluster: StoppedCluster, node: str) -> None:
    del cluster.nodes[node]
    run(cluster["a"].mirroring.queue_members.forget(node, cluster.nodes), lambda result: result())
    cluster.clock.advance(5)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("order", ["bc", "cb"])
def test_a_queue_that_only_whole_copies_lead_waits_for_one(carrier: str, order: str) -> None:
    cluster = waiting(carrier)
    cluster.start_again(*order)
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader != "a" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_it_leads_on_as_soon_as_the_policy_allows_it(carrier: str) -> None:
    cluster = waiting(carrier)
    definition = cluster.definition | {"ha-promote-on-failure": "always"}
    cluster["a"].node.policies.set("/", "q", "^q$", definition, 0, "queues")
    cluster.clock.advance(5)
    assert bodies(cluster) == [BODIES[0], *BODIES[2:]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_it_leads_on_when_the_awaited_nodes_are_damaged_too(carrier: str) -> None:
    cluster = waiting(carrier)
    for node in "bc":
        damage(cluster, node, 1)
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert bodies(cluster) == [BODIES[0], *BODIES[2:]]


@pytest.fixture
def quorum() -> StoppedCluster:
    """The leader of a quorum queue has found damage; a member is up, too, but no two are whole."""
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, "a", 1)
    cluster.start_again("a", "b")
    cluster.clock.advance(3600)
    assert cluster["a"].node.vhosts["/"].queues["q"].is_held
    return cluster


def test_a_quorum_queue_does_not_go_on_with_a_majority_that_lacks_messages(
    quorum: StoppedCluster,
) -> None:
    quorum.start_again("c")
    quorum.clock.advance(LONG_S)
    assert quorum.record().leader != "a"
    assert bodies(quorum) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirrored_queue_goes_on_when_the_awaited_nodes_are_forgotten(carrier: str) -> None:
    cluster = waiting(carrier)
    forget(cluster, "b")
    assert cluster["a"].node.vhosts["/"].queues["q"].is_held
    forget(cluster, "c")
    assert bodies(cluster) == [BODIES[0], *BODIES[2:]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_it_leads_on_if_the_disks_of_all_mirrors_are_damaged_too(carrier: str) -> None:
    cluster = with_messages(carrier)
    for node in cluster.nodes:
        damage(cluster, node, 1)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert bodies(cluster) == [BODIES[0], *BODIES[2:]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_mirror_that_is_whole_leads_if_another_one_is_damaged_too(carrier: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "a", 1)
    damage(cluster, "b", 2)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "c" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_damaged_mirror_does_not_lead_when_the_leader_does_not_come(carrier: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "b", 1)
    cluster.start_again("b")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a"
    cluster.start_again("c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "c" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("lost", [(0,), (2, 3), (5,)])
def test_a_damaged_mirror_is_sent_what_it_lacks(carrier: str, lost: tuple[int, ...]) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "b", *lost)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    for node in ("c", "a"):
        cluster.kill(node)
        cluster.tidy_after(node)
        cluster.clock.advance(5)
    assert cluster.record().leader == "b"
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_damaged_node_that_is_started_alone_is_sent_what_it_lacks(carrier: str) -> None:
    """It led, and another node leads when it comes back."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    cluster.kill_and_tidy("a")
    cluster.clock.advance(5)
    damage(cluster, "a", 2, 3)
    cluster.comes_back("a")
    cluster.clock.advance(LONG_S)
    assert "a" in cluster.record().in_sync and is_at_rest(cluster)
    for node in "bc":
        cluster.kill_and_tidy(node)
        cluster.clock.advance(5)
    assert cluster.record().leader == "a"
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("lost", [(0,), (2, 3), (5,), range(6)])
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_members_of_a_quorum_queue_elect_one_whose_disk_is_whole(
    victim: str, lost: tuple[int, ...]
) -> None:
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, victim, *lost)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    record = cluster.record()
    assert sorted([record.leader, *record.in_sync]) == ["a", "b", "c"]
    assert record.leader != victim
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_damaged_leader_that_is_started_once_more_still_asks_its_mirrors(carrier: str) -> None:
    """Its second start does not find the damage again."""
    cluster = with_messages(carrier)
    damage(cluster, "a", 1)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S / 2)
    cluster.kill_all()
    cluster.damaged.clear()
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader != "a" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_damaged_mirror_is_not_whole_at_its_next_start_either(carrier: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, "b", 1)
    cluster.start_again("b")
    cluster.clock.advance(1)
    cluster.kill_all()
    cluster.damaged.clear()
    cluster.start_again("b")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a"
    cluster.start_again("c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "c" and is_at_rest(cluster)
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_copy_that_was_made_whole_again_leads_from_disk(carrier: str, victim: str) -> None:
    cluster = with_messages(carrier)
    damage(cluster, victim, 1)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert is_at_rest(cluster)
    cluster.damaged.clear()
    cluster.kill_all()
    cluster.start_again(victim)
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == victim
    assert bodies(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_queue_that_is_declared_after_the_damage_was_found_lacks_nothing(carrier: str) -> None:
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.kill_all()
    cluster.damaged.add("a")
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(30)
    cluster["a"].node.policies.set("/", "new", "^new$", cluster.definition, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.declares("new", durable=True)
    cluster.clock.advance(5)
    stored = cluster["a"].metadata.get(("queue", "/", "new"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    record = stored.record
    assert (record.leader, sorted(record.in_sync)) == ("a", ["b", "c"])
    assert (record.epoch, record.promoted) == (0, "")
