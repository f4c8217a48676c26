"""A node that comes back has most of its mirrored queues still, and is sent the rest."""

from __future__ import annotations

from collections.abc import Callable

from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until

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
