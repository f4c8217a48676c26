"""A cluster is started without the node that led: a mirror that was in sync leads from its disk."""

from __future__ import annotations

import pytest
from cluster_checks import check_mirrors
from pamqp import commands
from stopped_cluster import StoppedCluster

from warren.core.definitions.records import QueueRecord
from warren.core.scheduling.waiting import run
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S

CARRIERS = ("gm", "log")


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_in_sync_leads_when_the_cluster_is_started_without_the_leader(
    carrier: str,
) -> None:
    cluster = StoppedCluster(carrier, ha_promote_on_failure="when-synced")
    cluster.publish(b"one", b"two")
    cluster.kill_all()
    cluster.start_again("b", "c")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    record = cluster.record()
    assert record.leader in ("b", "c") and len(record.in_sync) == 1
    assert record.promoted == "a is down"
    assert list(check_mirrors(cluster)) == record.in_sync
    cluster.publish(b"three", node="b")
    # Who led before comes later, and follows.
    cluster.comes_back("a")
    cluster.clock.advance(10)
    assert cluster.record().leader == record.leader and "a" in cluster.record().in_sync
    assert len(list(check_mirrors(cluster))) == 2
    assert cluster.bodies() == [(b"one", True), (b"two", True), (b"three", False)]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_is_started_with_the_others_leads_on(carrier: str) -> None:
    cluster = StoppedCluster(carrier)
    cluster.publish(b"one")
    cluster.kill_all()
    cluster.start_again("b", "c")
    cluster.clock.advance(LEADER_MAY_COME_S / 2)
    cluster.comes_back("a")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    record = cluster.record()
    assert (record.leader, sorted(record.in_sync)) == ("a", ["b", "c"])
    assert record.promoted == "its leader is back"
    assert cluster.bodies() == [(b"one", True)]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_is_up_is_waited_for_though_it_cannot_be_reached(carrier: str) -> None:
    cluster = StoppedCluster(carrier)
    cluster.kill_all()
    for name in cluster.nodes:
        cluster.restart(name)
        cluster.settle()
    cluster.connect("b", "c")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    assert cluster.record().leader == "a"


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("is_used", [False, True])
def test_a_mirror_that_stopped_before_its_leader_leads_if_nothing_happened_in_between(
    carrier: str, is_used: bool
) -> None:
    cluster = StoppedCluster(carrier, ha_promote_on_shutdown="when-synced")
    cluster.publish(b"one")
    cluster.clock.advance(2)
    for name in ("c", "b"):
        cluster.stop_in_order(name)
    if is_used:
        cluster.publish(b"two")
    cluster.stop_in_order("a")
    cluster.start_again("c", "b")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    if is_used:
        # Only the leader has all.
        assert cluster.record().leader == "a"
        cluster.start_again("a")
        cluster.clock.advance(10)
    else:
        assert cluster.record().leader in ("b", "c")
    expected = [b"one", b"two"] if is_used else [b"one"]
    assert [body for body, _ in cluster.bodies()] == expected


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_whose_node_is_up_and_was_not_reached_is_not_named_by_a_leader_that_stops(
    carrier: str,
) -> None:
    """It has dropped its copy when it saw that it was named no more."""
    cluster = StoppedCluster(carrier)
    cluster.kill("c")
    cluster.cut("a", "b")
    cluster.clock.advance(20)
    assert cluster.record().in_sync == []
    cluster.stop_in_order("a")
    assert (cluster.record().leader, cluster.record().in_sync) == ("a", [])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_is_back_first_leads_on_without_mirrors_that_stopped_before_it(
    carrier: str,
) -> None:
    cluster = StoppedCluster(carrier)
    cluster.publish(b"one")
    cluster.clock.advance(2)
    for name in ("c", "b", "a"):
        cluster.stop_in_order(name)
    cluster.start_again("a")
    cluster.clock.advance(5)
    assert (cluster.record().leader, cluster.record().in_sync) == ("a", [])
    cluster.publish(b"two")
    cluster.start_again("b", "c")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    assert (cluster.record().leader, sorted(cluster.record().in_sync)) == ("a", ["b", "c"])
    assert [body for body, _ in cluster.bodies()] == [b"one", b"two"]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_leader_that_goes_on_without_its_lease_is_up_for_those_who_reach_it(
    carrier: str, goes_on: bool
) -> None:
    """b is started anew, and is not told yet that the leader wants a mirror there again."""
    cluster = StoppedCluster(carrier)
    cluster.goes_on_without_lease = goes_on
    cluster.kill("c")
    cluster.clock.advance(10)
    assert cluster.record().in_sync == ["b"]
    cluster.cut_store("a")
    cluster.kill("b")
    cluster.stall("a", "b")
    cluster.comes_back("b")
    cluster.lease_ends("a")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    stored = cluster["b"].metadata.get(("queue", "/", "q"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    assert stored.record.leader == ("a" if goes_on else "b")


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_that_was_not_in_sync_leads_nothing_from_its_disk(carrier: str) -> None:
    """Its definition says who had all; that the others are away changes nothing."""
    cluster = StoppedCluster(carrier, ha_promote_on_failure="always")
    cluster.publish(b"one")
    cluster.kill("c")
    cluster.clock.advance(5)
    cluster.publish(b"two")
    assert cluster.record().in_sync == ["b"]
    cluster.kill_all()
    cluster.start_again("c")
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    assert cluster.record().leader == "a"
    cluster.start_again("b")
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    assert (cluster.record().leader, cluster.record().in_sync) == ("b", ["c"])
    assert [body for body, _ in cluster.bodies()] == [b"one", b"two"]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_that_is_started_again_is_a_whole_copy_for_those_that_lack_something(
    carrier: str,
) -> None:
    """Where the policy lets c lead, which is not in sync, b is waited for nevertheless."""
    cluster = StoppedCluster(carrier, ha_promote_on_failure="always", ha_sync_mode="manual")
    cluster.publish(b"one")
    cluster.kill("c")
    cluster.clock.advance(2)
    cluster.cards["c"].clear()
    cluster.comes_back("c")
    cluster.clock.advance(5)
    assert (cluster.record().in_sync, cluster.record().mirrors) == (["b"], ["b", "c"])
    # The leader is cut off from the definitions, and cannot take b out of them.
    cluster.cut_store("a")
    cluster.kill("b")
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.comes_back("b")
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    assert cluster.record().leader == "b"
    assert [body for body, _ in cluster.bodies()] == [b"one"]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_a_client_may_have_had_is_redelivered_after_all_were_stopped_in_order(
    carrier: str,
) -> None:
    cluster = StoppedCluster(carrier)
    cluster.publish(b"had", b"not had")
    consumer = cluster["a"].connects()
    consumer.opens_channel(1)
    consumer.sends(commands.Basic.Qos, prefetch_count=1)
    consumer.receives(commands.Basic.QosOk)
    consumer.consumes("q")
    cluster.clock.advance(1)
    for name in cluster.nodes:
        cluster[name].mirroring.stop_leading()
    cluster.kill_all()
    cluster.start_again("b", "c")
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    assert (b"had", True) in cluster.bodies()


def test_a_mirror_that_is_stopped_writes_down_what_clients_may_have_had() -> None:
    """What the leader has announced, though the mirror need not have heard that it was taken."""
    cluster = StoppedCluster("log")
    cluster.publish(b"one", b"two")
    consumer = cluster["a"].connects()
    consumer.opens_channel(1)
    consumer.sends(commands.Basic.Qos, prefetch_count=1)
    consumer.receives(commands.Basic.QosOk)
    consumer.consumes("q")
    cluster.clock.advance(0.1)
    (copy,) = cluster["b"].mirroring.figures.copies_here()
    level = copy.mirror.levels[0]
    announced = level.handed_out_below + level.delta
    assert level.backing.delivered_below < announced
    cluster["b"].mirroring.stop_leading()
    assert level.backing.delivered_below == min(announced, level.backing.next_position)


def test_a_quorum_queue_goes_on_from_the_disks_of_a_majority_without_its_leader() -> None:
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    leader = cluster.record().leader
    assert sorted([leader, *cluster.record().in_sync]) == ["a", "b", "c"]
    cluster.publish(b"one", b"two")
    cluster.kill_all()
    others = sorted({"a", "b", "c"} - {leader})
    cluster.start_again(others[0])
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    assert cluster.record().leader == leader
    cluster.start_again(others[1])
    cluster.clock.advance(LEADER_MAY_COME_S + 10)
    record = cluster.record()
    assert sorted([record.leader, *record.in_sync]) == others
    cluster.publish(b"three", node=others[0])
    cluster.comes_back(leader)
    cluster.clock.advance(10)
    record = cluster.record()
    assert sorted([record.leader, *record.in_sync]) == ["a", "b", "c"]
    assert [body for body, _ in cluster.bodies()] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("before", [[b"one"], []])
def test_of_copies_on_disk_the_one_that_has_most_leads_where_a_majority_confirms(
    before: list[bytes],
) -> None:
    """One without a message has less than any other."""
    cluster = StoppedCluster("log", log_acks="majority", ha_promote_on_failure="when-synced")
    if before:
        cluster.publish(*before)
    cluster.stall("a", "b")
    cluster.publish(b"two")
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    cluster.kill_all()
    cluster.start_again("b")
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    # It cannot know whether it has all that was confirmed.
    assert cluster.record().leader == "a"
    cluster.start_again("c")
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    assert (cluster.record().leader, cluster.record().in_sync) == ("c", ["b"])
    assert [body for body, _ in cluster.bodies()] == [*before, b"two"]


@pytest.mark.parametrize("before", [[b"one"], []])
def test_what_a_copy_on_disk_lacks_that_leads_without_votes_is_found(before: list[bytes]) -> None:
    """Its positions go on far behind its last message, and so say nothing of what it lacks."""
    cluster = StoppedCluster("log", log_acks="majority", ha_promote_on_failure="always")
    if before:
        cluster.publish(*before)
    cluster.stall("a", "b")
    cluster.publish(b"two")
    cluster.kill_all()
    cluster.start_again("b")
    cluster.clock.advance(LEADER_MAY_COME_S + 30)
    record = cluster.record()
    told = "a is down; other copies, which are gone, may have had more"
    assert (record.leader, record.promoted) == ("b", told)
    cluster.start_again("a", "c")
    cluster.clock.advance(30)
    assert [body for body, _ in cluster.bodies()] == before
    assert [body for body, _ in cluster.bodies("lost+found")] == [b"two"]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_copy_on_disk_does_not_take_over_from_a_leader_that_lives(carrier: str) -> None:
    """As when its node was started anew while the leader handed the queue over, and could not
    change the definition: what was not on disk is at the leader only."""
    cluster = StoppedCluster(carrier)
    cluster.publish(b"one")
    cluster.cut_store("a")
    cluster.kill("b")
    cluster.comes_back("b")
    cluster.clock.advance(0.1)
    record = cluster.record()
    assert "b" in record.in_sync and len(cluster["b"].mirroring.figures.copies_here()) == 1
    answers: list[bool] = []

    async def hand_over() -> bool:
        takes: bool = await cluster["a"].calls.ask(
            "b", "mirror.take_over", record.queue_id, record.epoch
        )
        return takes

    run(hand_over(), lambda result: answers.append(result()))
    cluster.clock.advance(1)
    assert answers == [False]
    assert cluster["b"].metadata.get(("queue", "/", "q")) == cluster["c"].metadata.get(
        ("queue", "/", "q")
    )
    assert cluster.record().leader == "a"
