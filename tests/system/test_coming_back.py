"""A node that comes back has most of its mirrored queues still, and is sent the rest."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until

from warren.mirror.replication.copies.copy_cards import is_copy
from warren.mirror.replication.copies.lost_and_found import LOST_AND_FOUND
from warren.persist.layout.format import decode_clean

LEASES_END = True
"""Tests wait until the lease of a node ends."""

QUEUE = "ha.back"


def in_sync(node: ClusterProcess) -> set[str]:
    return set(node.in_sync(QUEUE))


def test_a_mirror_that_comes_back_is_in_sync_though_nobody_synchronises_it(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    """By hand only what a node never had is synchronised."""
    cluster = start_cluster("a", "b", "c")
    a, b, c = cluster.nodes.values()
    policy = {"ha-mode": "all", "ha-sync-mode": "manual"}
    body = {"pattern": "^ha", "definition": policy, "apply-to": "queues"}
    a.changes("policies", "/", "ha", body=body)
    channel = a.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(QUEUE, durable=True)
    wait_until(lambda: in_sync(a) == {b.name, c.name})
    wanted = [b"%d" % number * 500 for number in range(1, 1000)]
    publish(channel, QUEUE, wanted[:900])
    b.stop()
    wait_until(lambda: in_sync(a) == {c.name})
    assert take(channel, QUEUE, 50) == wanted[:50]
    publish(channel, QUEUE, wanted[900:])
    b.start()
    wait_until(lambda: in_sync(a) == {b.name, c.name})
    # The leader goes; what comes back has what the next one has.
    a.kill()
    c.kill()
    wait_until(lambda: b.queue(QUEUE).get("node") == b.name)
    a.start()
    wait_until(lambda: in_sync(b) == {a.name})
    b.kill()
    wait_until(lambda: a.queue(QUEUE).get("node") == a.name)
    assert take(a.connect().channel(), QUEUE, len(wanted) - 50) == wanted[50:]


@pytest.mark.parametrize("heir_lives_s", [0.0, 0.3])
def test_what_a_leader_and_its_heir_had_is_found_when_both_are_back(
    start_cluster: Callable[..., RunningCluster], heir_lives_s: float
) -> None:
    """A mirror that has only what came last leads meanwhile, as the policy allows."""
    cluster = start_cluster("a", "b", "c")
    a, b, c = cluster.nodes.values()
    policy: dict[str, object] = {"ha-mode": "nodes", "ha-params": [a.name, b.name]}
    body = {"pattern": "^ha", "definition": policy, "apply-to": "queues"}
    a.changes("policies", "/", "ha", body=body)
    channel = a.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(QUEUE, durable=True)
    wait_until(lambda: in_sync(a) == {b.name})
    wanted = [b"%d" % number for number in range(120)]
    publish(channel, QUEUE, wanted)
    policy = {"ha-mode": "all", "ha-promote-on-failure": "always"}
    a.changes("policies", "/", "ha", body={**body, "definition": policy})
    wait_until(lambda: c.name in a.queue(QUEUE).get("slave_nodes", ()))
    a.kill()
    wait_until(lambda: c.queue(QUEUE).get("node") == b.name)
    time.sleep(heir_lives_s)
    b.kill()
    wait_until(lambda: c.queue(QUEUE).get("node") == c.name)
    b.start()
    a.start()
    wait_until(lambda: c.queue(LOST_AND_FOUND).get("messages", 0) >= len(wanted))
    found = take(c.connect().channel(), LOST_AND_FOUND, len(wanted))
    assert sorted(found) == sorted(wanted)


def test_a_mirror_that_stops_remembers_what_clients_may_have_had(
    running_cluster: RunningCluster,
) -> None:
    """It may have been about to lead: the definition that says so comes when it is gone."""
    a, b, _ = running_cluster.nodes.values()
    policy = {"pattern": "^ha", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    a.changes("policies", "/", "ha", body=policy)
    channel = a.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(QUEUE, durable=True)
    wait_until(lambda: b.name in in_sync(a))
    publish(channel, QUEUE, [b"1", b"2", b"3"])
    held = a.connect().channel()
    for body in (b"1", b"2"):
        assert held.basic_get(QUEUE)[2] == body
    wait_until(lambda: b.queue(QUEUE)["messages_unacknowledged"] == 2)
    b.stop()
    _, _, delivered_below = decode_clean((b.data_directory / "store/clean").read_bytes())
    (first,) = [at for storage_id, at in delivered_below.items() if is_copy(storage_id)]
    # The start of a node is in the upper bits.
    assert first % (1 << 40) >= 2
