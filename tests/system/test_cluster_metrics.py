"""Metrics of clusters and of mirrored queues, of real nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from scrape_node import scrape

from warren import Broker

LEASES_END = True
"""Tests wait until the lease of a node ends."""

A, B, C = (f"{name}@127.0.0.1" for name in "abc")
OWN = "warren_mirroring_"
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> RunningCluster:
    for name, more in (("ha", {"ha-sync-mode": "automatic"}), ("later", {})):
        body = {"pattern": f"^{name}", "definition": {"ha-mode": "all", **more}}
        running_cluster["a"].changes("policies", "/", name, body=body)
    return running_cluster


def of(node: ClusterProcess, name: str, path: str = "/metrics") -> float:
    return scrape(node.http_port, path)[name]


def declare(node: ClusterProcess, queue: str, messages: int = 0) -> None:
    channel = node.connect().channel()
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, [b"x" * 100] * messages)
    node.until_queue(queue, lambda row: row.get("messages") == messages)


def test_a_node_that_is_alone_has_none_of_them() -> None:
    with Broker(http_port=0) as broker:
        port = int(broker.http_url.rstrip("/").rpartition(":")[2])
        for path in (
            "/metrics",
            "/metrics/per-object",
            "/metrics/detailed?family=mirroring_metrics",
        ):
            names = scrape(port, path)
            found = [
                name
                for name in names
                if name.startswith(("warren_mirroring", "warren_cluster", "warren_link", "erlang"))
                or "cluster_peers" in name
            ]
            assert not found, path


def test_members_and_links_are_counted(cluster: RunningCluster) -> None:
    a = cluster["a"]
    values = scrape(a.http_port)
    assert values["rabbitmq_unreachable_cluster_peers_count"] == 0
    assert values["warren_cluster_members"] == values["warren_cluster_members_up"] == 3
    assert values["warren_cluster_etcd_reachable"] == values["warren_cluster_lease_held"] == 1
    assert values["warren_cluster_partitioned_peers"] == 0
    told = {re.sub(r"\{.*", "", key) for key in values}
    for file in (*DEPLOY.glob("grafana/*.json"), *DEPLOY.glob("prometheus/*.yaml")):
        asked = set(re.findall(r"\b(?:warren|erlang_vm)_(?:\w+)", file.read_text()))
        assert asked <= told, file
    for peer in (B, C):
        shown = f'{{peer="{peer}"}}'
        assert values[f"erlang_vm_dist_node_state{shown}"] == 3
        assert values[f"warren_link_lost_total{shown}"] == 0
        assert 0 < values[f"warren_link_round_trip_seconds{shown}"] < 10
        for what in ("recv_bytes", "recv_cnt", "send_bytes", "send_cnt"):
            assert values[f"erlang_vm_dist_{what}{shown}"] > 0, what
    # What a client of another node publishes comes over its link.
    shown = f'erlang_vm_dist_recv_bytes{{peer="{B}"}}'
    declare(a, "sink")
    before = of(a, shown)
    channel = cluster["b"].connect().channel()
    publish(channel, "sink", [b"x" * 100_000])
    a.until_queue("sink", lambda row: row.get("messages") == 1)
    carried = of(a, shown)
    assert carried >= before + 100_000
    cluster["b"].kill()
    wait_until(lambda: of(a, "warren_cluster_members_up") == 2)
    values = scrape(a.http_port)
    assert values["rabbitmq_unreachable_cluster_peers_count"] == 1
    assert values[f'erlang_vm_dist_node_state{{peer="{B}"}}'] == 1
    assert values[f'warren_link_lost_total{{peer="{B}"}}'] == 1
    assert values[shown] >= carried, "what the link carried is not forgotten with it"
    assert f'warren_link_round_trip_seconds{{peer="{B}"}}' not in values


def test_mirrors_are_counted_where_they_are_and_where_they_are_led(
    cluster: RunningCluster,
) -> None:
    a, b = cluster["a"], cluster["b"]
    declare(a, "ha.1", 5)
    declare(a, "plain")
    wait_until(lambda: of(a, f"{OWN}mirrors_in_sync") == 2)
    values = scrape(a.http_port)
    assert values[f"{OWN}queues_led"] == 1
    assert values["rabbitmq_queues"] == 2
    assert values[f"{OWN}queues_without_synchronised_mirror"] == 0
    assert values[f"{OWN}mirrors_out_of_sync"] == values[f"{OWN}syncs_running"] == 0
    assert values[f"{OWN}copies_in_sync"] == 0
    wait_until(lambda: of(b, f"{OWN}copies_in_sync") == 1)
    values = scrape(b.http_port)
    assert (values[f"{OWN}queues_led"], values[f"{OWN}copies_out_of_sync"]) == (0, 0)
    values = scrape(a.http_port, "/metrics/per-object")
    of_queue = 'vhost="/",queue="ha.1"'
    for mirror in (B, C):
        shown = f'{{{of_queue},mirror="{mirror}"}}'
        assert values[f"{OWN}mirrors_in_sync{shown}"] == 1
        assert values[f"{OWN}lag_batches{shown}"] == values[f"{OWN}lag_bytes{shown}"] == 0
    assert values[f"{OWN}queues_without_synchronised_mirror{{{of_queue}}}"] == 0
    assert f"{OWN}mirrors_in_sync" not in values
    detailed = "/metrics/detailed?family=mirroring_metrics&vhost="
    values = scrape(b.http_port, detailed + "%2F")
    assert values[f"warren_detailed_mirroring_copies_in_sync{{{of_queue}}}"] == 1
    assert not any("queue=" in name for name in scrape(b.http_port, detailed + "other"))


def test_synchronisations_and_lag_are_counted(cluster: RunningCluster) -> None:
    a = cluster["a"]
    body = {"pattern": "^none", "definition": {"ha-mode": "all"}}
    a.changes("policies", "/", "later", body=body)
    declare(a, "later.1", 20_000)
    a.changes("policies", "/", "later", body={**body, "pattern": "^later"})
    wait_until(lambda: of(a, f"{OWN}mirrors_out_of_sync") == 2)
    values = scrape(a.http_port)
    assert values[f"{OWN}queues_without_synchronised_mirror"] == 1
    assert values[f"{OWN}syncs_running"] == values[f"{OWN}sync_messages_left"] == 0
    wait_until(lambda: of(cluster["c"], f"{OWN}copies_out_of_sync") == 1)
    # A mirror that stands still owes what it was sent.
    cluster["c"].stand_still()
    publish(a.connect().channel(), "later.1", [b"x" * 1000] * 10)
    wait_until(lambda: of(a, f"{OWN}lag_bytes") > 10_000)
    assert of(a, f"{OWN}lag_batches") > 0
    cluster["c"].go_on()
    wait_until(lambda: of(a, f"{OWN}lag_bytes") == 0)
    wait_until(lambda: of(a, f"{OWN}mirrors_out_of_sync") == 2)
    a.does("POST", "queues", "/", "later.1", "actions", body={"action": "sync"})
    values = scrape(a.http_port)
    assert values[f"{OWN}syncs_running"] == 2
    assert 0 < values[f"{OWN}sync_messages_left"] <= 2 * 20_010
    wait_until(lambda: of(a, f"{OWN}mirrors_in_sync") == 2)
    assert of(a, f"{OWN}sync_messages_left") == 0


def test_quorum_queues_without_a_majority_are_counted_where_a_copy_is(
    cluster: RunningCluster,
) -> None:
    a = cluster["a"]
    channel = a.connect().channel()
    for kind in ("quorum", "stream"):
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
        a.until_queue(kind, lambda row: len(row.get("online", ())) == 3)
    declare(a, "ha.1")
    without = f"{OWN}copies_without_majority"
    wait_until(lambda: f'{without}{{vhost="/",queue="quorum"}}' in per_object(a))
    assert of(a, without) == 0
    cluster["b"].kill()
    wait_until(lambda: of(a, "warren_cluster_members_up") == 2)
    assert of(a, without) == 0
    cluster["c"].kill()
    wait_until(lambda: of(a, without) == 2)
    values = per_object(a)
    assert values[f'{without}{{vhost="/",queue="stream"}}'] == 1
    assert values[f'{without}{{vhost="/",queue="ha.1"}}'] == 0


def per_object(node: ClusterProcess) -> dict[str, float]:
    return scrape(node.http_port, "/metrics/per-object")


def test_promotions_are_counted_by_reason(cluster: RunningCluster) -> None:
    def reasons(node: ClusterProcess) -> dict[str, float]:
        values = scrape(node.http_port)
        found = re.compile(rf'{OWN}promotions_total{{reason="(\w+)"}}')
        return {match[1]: values[key] for key in values if (match := found.fullmatch(key))}

    declare(cluster["a"], "ha.1", 3)
    wait_until(lambda: of(cluster["a"], f"{OWN}mirrors_in_sync") == 2)
    before = {name: reasons(cluster[name]) for name in "bc"}
    none = {"leader_down", "leader_down_not_in_sync", "handed_over", "leader_back"}
    assert set(before["b"]) == none
    cluster["a"].kill()
    shown = cluster["b"].until_queue("ha.1", lambda row: row.get("promoted") == f"{A} is down")
    leader = shown["node"][0]
    wait_until(lambda: reasons(cluster[leader])["leader_down"] == before[leader]["leader_down"] + 1)
    values = scrape(cluster[leader].http_port)
    failovers = ("leader_down", "leader_down_not_in_sync")
    assert values[f"{OWN}failovers_total"] == sum(
        [values[f'{OWN}promotions_total{{reason="{why}"}}'] for why in failovers]
    )


def test_whether_etcd_can_be_reached_is_told(start_cluster: Callable[..., RunningCluster]) -> None:
    cluster = start_cluster("a", more="cluster_partition_handling = ignore\n")
    a = cluster["a"]
    cluster.etcd.kill()
    wait_until(lambda: of(a, "warren_cluster_etcd_reachable") == 0)
    wait_until(lambda: of(a, "warren_cluster_lease_held") == 0)
    cluster.etcd.start()
    wait_until(lambda: of(a, "warren_cluster_etcd_reachable") == 1)
    wait_until(lambda: of(a, "warren_cluster_lease_held") == 1)
