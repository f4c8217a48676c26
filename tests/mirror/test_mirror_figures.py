"""What is shown of mirrored queues: rings, lag, synchronisations, and why the leader changed."""

from __future__ import annotations

import pytest
from cluster import Cluster
from mirrored import mirrored, record


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    return cluster


def standings(cluster: Cluster, node: str, queue: str) -> dict[str, str]:
    """The ring as a node shows it."""
    there = cluster[node]
    shown = there.mirroring.figures.ring(there.node.vhosts["/"].queues[queue])
    return {member.node: str(member.standing) for member in shown}


def test_a_synchronisation_says_how_much_is_left_and_how_long_it_takes(cluster: Cluster) -> None:
    a = cluster["a"].connects()
    a.opens_channel(1)
    a.declares("later", durable=True)
    for number in range(1000):
        a.publishes("later", b"%d" % number)
    policies = cluster["b"].node.policies
    policies.set("/", "later", "^later", {"ha-mode": "all"}, 0, "queues")
    cluster.clock.advance(5)
    queue = cluster["a"].queue("later")
    mirroring = cluster["a"].mirroring
    before = mirroring.figures.state(queue)
    assert before is not None and not before.progress
    assert set(standings(cluster, "a", "later").values()) == {"leader", "out_of_sync"}
    mirroring.synchronise(queue)
    assert set(standings(cluster, "a", "later").values()) == {"leader", "syncing"}
    cluster.clock.advance(0.02)
    state = mirroring.figures.state(queue)
    assert state is not None
    progress = state.progress["b"]
    assert 0 < progress.sent < 1000 and progress.total == 1000
    left_s = progress.seconds_left(cluster.clock.now())
    assert left_s is not None and 0 <= left_s < 10
    # What comes meanwhile is to be sent as well.
    for _ in range(50):
        a.publishes("later", b"more")
    state = mirroring.figures.state(queue)
    assert state is not None and state.progress["b"].total == 1050
    cluster.clock.advance(5)
    state = mirroring.figures.state(queue)
    assert state is not None and not state.progress and sorted(state.in_sync) == ["b", "c"]
    assert standings(cluster, "b", "later") == {"a": "leader", "b": "in_sync", "c": "in_sync"}


def test_a_mirror_that_has_not_reported_lags(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    a = cluster["a"].connects()
    a.opens_channel(1)
    queue = cluster["a"].queue("ha")
    a.publishes("ha", b"x" * 1000)
    cluster.settle()
    state = cluster["a"].mirroring.figures.state(queue)
    assert state is not None and set(state.lag.values()) == {(0, 0)}
    # What a node was sent that has died stays owed until it is found dead.
    cluster.kill("c", notice_s=lambda: 1.0)
    a.publishes("ha", b"x" * 1000)
    cluster.settle()
    state = cluster["a"].mirroring.figures.state(queue)
    assert state is not None
    assert state.lag["c"].batches == 1
    assert 1000 < state.lag["c"].octets < 1200
    cluster.clock.advance(10)
    state = cluster["a"].mirroring.figures.state(queue)
    assert state is not None and state.lag == {"b": (0, 0)}


def test_why_and_when_another_node_leads_is_kept_and_counted(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    assert record(cluster, "ha").promoted_at == 0
    cluster.kill("a")
    cluster.clock.advance(5)
    found = record(cluster, "ha")
    assert found.promoted == "a is down"
    now = cluster.clock.wall_time()
    assert now - 6 < found.promoted_at <= now
    assert cluster[found.leader].mirroring.figures.promotions == {"leader_down": 1}
    mirroring = cluster[found.leader].mirroring
    led = mirroring.led(found.queue_id)
    assert led is not None
    (mirror,) = found.mirrors
    mirroring.hand_overs.begin(led, mirror)
    cluster.clock.advance(5)
    moved = record(cluster, "ha")
    assert (moved.leader, moved.promoted) == (mirror, f"{found.leader} has handed it over")
    assert moved.promoted_at > found.promoted_at
    assert cluster[mirror].mirroring.figures.promotions == {"handed_over": 1}
