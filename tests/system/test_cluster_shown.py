"""How a cluster and its mirrored queues are shown: over HTTP and by `warren ctl`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from proxied_node import proxied
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from scrape_node import scrape

from warren.mgmt.ctl.errors import RequestRefused

LEASES_END = True
"""Tests wait until the lease of a node ends."""

A, B, C = (f"{name}@127.0.0.1" for name in "abc")


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> Iterator[RunningCluster]:
    """With a policy that gives queues `ha...` mirrors everywhere."""
    everywhere = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    policy = {"pattern": "^ha", "definition": everywhere, "apply-to": "queues"}
    running_cluster["a"].changes("policies", "/", "ha", body=policy)
    yield running_cluster


def ring(node: ClusterProcess, queue: str) -> dict[str, str]:
    shown = node.queue(queue).get("mirror_ring", [])
    return {member["node"]: member["state"] for member in shown}


def declare(node: ClusterProcess, queue: str, messages: int = 0) -> None:
    channel = node.connect().channel()
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, [b"x" * 100] * messages)
    node.until_queue(queue, lambda shown: shown.get("messages") == messages)


def test_a_mirrored_queue_is_shown_by_every_node(cluster: RunningCluster) -> None:
    declare(cluster["b"], "ha.q", 10)
    for node in cluster.nodes.values():
        # A batch counts as lag until the mirrors' answers to it have come round.
        shown = node.until_queue(
            "ha.q",
            lambda shown: (
                sorted(shown.get("synchronised_slave_nodes", ())) == [A, C]
                and shown["mirror_lag"] == {A: 0, C: 0}
            ),
        )
        assert shown["node"] == B
        assert sorted(shown["slave_nodes"]) == [A, C]
        assert (shown["promoted"], shown["promoted_at"]) == ("", None)
        assert shown["mirror_lag_bytes"] == {A: 0, C: 0}
        in_full = {A: "in_sync", B: "leader", C: "in_sync"}
        wait_until(lambda: ring(node, "ha.q") == in_full)  # noqa: B023
        shown = node.queue("ha.q")
        assert "sync_progress" not in shown
        (listed,) = node.asks("queues")
        assert listed["slave_nodes"] == shown["slave_nodes"] and "mirror_ring" not in listed
    columns = ("slave_pids", "synchronised_slave_pids", "mirror_lag", "sync_progress", "promoted")
    printed = cluster["c"].ctl("-s", "list_queues", "name", *columns)
    name, pids, synchronised, lag, progress, promoted = printed.rstrip("\n").split("\t")
    assert name == "ha.q" and sorted(pids) == sorted(synchronised)
    assert f"<{A}.0." in pids and f"<{C}.0." in pids
    assert f"{A}: 0 batches, 0 octets" in lag
    assert (progress, promoted) == ("[]", "")
    declare(cluster["a"], "plain")
    assert "slave_nodes" not in cluster["c"].until_queue("plain", bool)
    assert "mirror_ring" not in cluster["a"].queue("plain")


def test_octets_are_counted_wherever_the_consumers_are(cluster: RunningCluster) -> None:
    declare(cluster["a"], "octets", 10)
    consuming, getting = cluster["b"].connect().channel(), cluster["c"].connect().channel()
    consuming.basic_qos(prefetch_count=4)
    consuming.basic_consume("octets", lambda *_: None)
    cluster["a"].until_queue("octets", lambda shown: shown["messages_unacknowledged"] == 4)
    assert getting.basic_get("octets")[0] is not None
    wanted = {
        "messages_unacknowledged": 5,
        "message_bytes_unacknowledged": 500,
        "message_bytes_ready": 500,
        "message_bytes": 1000,
    }
    for node in cluster.nodes.values():
        node.until_queue(
            "octets", lambda shown: {name: shown.get(name) for name in wanted} == wanted
        )


def test_a_synchronisation_is_shown_while_it_runs(cluster: RunningCluster) -> None:
    declare(cluster["a"], "later", 20_000)
    # In small batches it is not over before it has been looked at.
    definition = {"ha-mode": "all", "ha-sync-batch-size": 10}
    policy = {"pattern": "^later", "definition": definition, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "later", body=policy)
    c = cluster["c"]
    shown = c.until_queue("later", lambda shown: len(shown.get("slave_nodes", ())) == 2)
    assert shown["synchronised_slave_nodes"] == [] and "sync_progress" not in shown
    behind = {A: "leader", B: "out_of_sync", C: "out_of_sync"}
    wait_until(lambda: ring(c, "later") == behind)
    c.does("POST", "queues", "/", "later", "actions", body={"action": "sync"})
    shown = c.until_queue(
        "later", lambda shown: shown.get("sync_progress", {}).get(B, {}).get("sent", 0) > 0
    )
    assert shown["sync_messages"] > 0
    progress = shown["sync_progress"][B]
    assert 0 < progress["sent"] < progress["total"] == 20_000
    assert progress["seconds_left"] > 0
    states = {member["node"]: member["state"] for member in shown["mirror_ring"]}
    assert states[B] == "syncing"
    printed = cluster["b"].ctl("-s", "list_queues", "name", "sync_progress")
    assert f"{B}: " in printed and " of 20000, " in printed and " s left" in printed
    c.does("POST", "queues", "/", "later", "actions", body={"action": "cancel_sync"})
    wait_until(lambda: "sync_progress" not in c.queue("later"))
    wait_until(lambda: ring(c, "later") == behind)
    cluster["a"].does("DELETE", "policies", "/", "later")


def test_queues_that_a_node_alone_has_whole_make_it_critical(cluster: RunningCluster) -> None:
    a = cluster["a"]
    names = ("node-is-mirror-sync-critical", "node-is-quorum-critical")
    declare(a, "ha.q", 3)
    wait_until(lambda: len(a.in_sync("ha.q")) == 2)
    for name in names:
        assert a.asks("health", "checks", name) == {"status": "ok"}
    said = a.ctl("check_if_node_is_mirror_sync_critical")
    assert f"Node {A} reported no classic mirrored queues" in said
    declare(a, "later", 10)
    policy = {"pattern": "^later", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    a.changes("policies", "/", "later", body=policy)
    a.until_queue("later", lambda shown: len(shown.get("slave_nodes", ())) == 2)
    with pytest.raises(RequestRefused) as refused:
        a.asks("health", "checks", names[0])
    assert refused.value.status == 503
    assert [one["name"] for one in refused.value.answer["queues"]] == ["later"]
    with pytest.raises(AssertionError, match="queue 'later' in vhost '/'"):
        a.ctl("check_if_node_is_mirror_sync_critical")
    # Another one does not lead it, and may go.
    assert cluster["b"].asks("health", "checks", names[0]) == {"status": "ok"}
    a.does("DELETE", "policies", "/", "later")


def test_why_another_node_leads_and_who_is_up_are_shown(cluster: RunningCluster) -> None:
    declare(cluster["a"], "ha.q", 3)
    b = cluster["b"]
    wait_until(lambda: len(b.in_sync("ha.q")) == 2)
    cluster["a"].kill()
    shown = b.until_queue(
        "ha.q",
        lambda shown: shown.get("promoted") == f"{A} is down" and shown.get("messages") == 3,
    )
    assert shown["node"] in (B, C)
    assert datetime.fromisoformat(shown["promoted_at"]).year >= 2020
    wait_until(lambda: sorted(ring(b, "ha.q").values()) == ["in_sync", "leader"])
    wait_until(lambda: {one["name"]: one["state"] for one in b.asks("nodes")}[A] == "down")
    assert {one["name"]: one["state"] for one in b.asks("nodes")} == {
        A: "down",
        B: "running",
        C: "running",
    }
    assert b.asks("nodes", A)["state"] == "down"


def test_a_node_that_has_paused_is_shown_as_such(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path, "a")
    with proxied(cluster.etcd.port) as proxy:
        b = cluster.new_node("b", cluster.config.replace(cluster.etcd.url, proxy.url))
        cluster.nodes["b"] = b
        try:
            cluster.start()
            assert [one["state"] for one in cluster["a"].asks("nodes")] == ["running", "running"]
            # etcd keeps the lease of b alive, and b does not hear of it: so b has paused, and told
            # that to a, before its lease ends for a.
            proxy.lose_answer = 1.0
            wait_until(lambda: [one["state"] for one in cluster["a"].asks("nodes")][1] == "paused")
            down = cluster["a"].asks("nodes", B)
            assert (down["running"], down["state"]) == (False, "paused")
        finally:
            cluster.end()


def test_nodes_that_reach_etcd_and_not_each_other_are_shown_as_such(tmp_path: Path) -> None:
    # Where they say that they are, nobody listens.
    cluster = RunningCluster(tmp_path, "a", "b", more="cluster.advertised_host = 127.0.0.2\n")
    try:
        cluster.etcd.start()
        for node in cluster.nodes.values():
            node.start()
        a = cluster["a"]
        wait_until(lambda: len(a.asks("nodes")) == 2)
        own, other = a.asks("nodes")
        assert (own["state"], own["partitions"], own["cluster_links"]) == ("running", [B], [])
        assert (other["state"], other["running"]) == ("unreachable", False)
        values = scrape(a.http_port)
        assert values["rabbitmq_unreachable_cluster_peers_count"] == 1
        assert values["warren_cluster_partitioned_peers"] == 1
        assert values[f'erlang_vm_dist_node_state{{peer="{B}"}}'] == 1
    finally:
        cluster.end()
