"""What nodes do that have lost what they share, as `cluster_partition_handling` says."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest
from failover import LASTING
from pika.exceptions import AMQPError
from running_cluster import LEASE_TTL_S, RunningCluster, wait_until


def paused(cluster: RunningCluster, name: str) -> bool:
    return "node_pausing" in cluster[name].log


@pytest.mark.parametrize("mode", ["ignore", "autoheal"])
def test_nodes_that_ignore_partitions_go_on_without_etcd(tmp_path: Path, mode: str) -> None:
    more = f"cluster_partition_handling = {mode}\n"
    cluster = RunningCluster(tmp_path, "a", "b", more=more)
    try:
        cluster.start()
        definition = {"ha-mode": "all"}
        body = {"pattern": "^ha", "definition": definition}
        cluster["a"].changes("policies", "/", "ha", body=body)
        a, b = cluster["a"].connect().channel(), cluster["b"].connect().channel()
        a.queue_declare("ha.q", durable=True)
        wait_until(lambda: cluster["a"].in_sync("ha.q") == ["b@127.0.0.1"])
        cluster.etcd.kill()
        wait_until(lambda: all("cluster_lost_going_on" in cluster[n].log for n in "ab"))
        b.confirm_delivery()
        for number in range(10):
            b.basic_publish("", "ha.q", b"%d" % number, LASTING, mandatory=True)
        assert a.queue_declare("ha.q", passive=True).method.message_count == 10
        assert not any(paused(cluster, name) for name in "ab")
        cluster.etcd.start()
        # Definitions can be changed again, from either side.
        b.queue_declare("ha.later", durable=True)
        a.queue_declare("ha.later", durable=True, passive=True)
    finally:
        cluster.end()


def test_a_node_pauses_unless_it_reaches_one_that_was_named(tmp_path: Path) -> None:
    more = (
        "cluster_partition_handling = pause_if_all_down\n"
        "cluster_partition_handling.pause_if_all_down.nodes.1 = a@127.0.0.1\n"
    )
    cluster = RunningCluster(tmp_path, "a", "b", more=more)
    try:
        cluster.start()
        cluster.etcd.kill()
        wait_until(lambda: all("cluster_lost_going_on" in cluster[n].log for n in "ab"))
        cluster.etcd.start()
        cluster.wait_until_linked("a", "b")
        # It may pause as soon as it does not reach the other any more.
        connection = cluster["b"].connect()
        cluster["a"].kill()
        cluster.etcd.kill()
        wait_until(lambda: paused(cluster, "b"))
        deadline = time.monotonic() + 10 * LEASE_TTL_S
        with pytest.raises(AMQPError):
            while time.monotonic() < deadline:
                connection.process_data_events(0.1)
        with pytest.raises((AMQPError, OSError)):
            pika.BlockingConnection(pika.URLParameters(cluster["b"].url))
    finally:
        cluster.end()
