"""Reading the queues of a cluster over HTTP: each from its leader, and once."""

from __future__ import annotations

from typing import Any

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from stream_batches import Query

from warren.spark_export.errors import StoreRefused
from warren.spark_export.remote import remote_node
from warren.spark_export.remote.remote_store import RemoteSnapshot
from warren.spark_export.source.source import BatchReader, MessageStoreSource

LEASES_END = True
"""Tests wait until the lease of a node ends."""

COUNT = 30


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> RunningCluster:
    running_cluster["a"].changes("policies", "/", "all", body=MIRRORED)
    return running_cluster


MIRRORED = {"pattern": "^m-", "definition": {"ha-mode": "all"}}


def url(node: ClusterProcess) -> str:
    return f"warren://127.0.0.1:{node.http_port}"


def fill(cluster: RunningCluster) -> dict[str, list[int]]:
    """Declare a mirrored queue at each node, which leads it, and one that only b has."""
    wanted = {}
    for first, (name, node) in enumerate(cluster.nodes.items()):
        numbers = [first * 1000 + number for number in range(COUNT)]
        for queue in [f"m-{name}", *(["b-only"] if name == "b" else [])]:
            wanted[queue] = numbers if queue != "b-only" else [9000]
            with node.connect() as connection:
                channel = connection.channel()
                channel.queue_declare(queue, durable=True)
                publish(channel, queue, [b"%d" % number for number in wanted[queue]])
            node.until_queue(queue, lambda row, node=node: row["node"] == node.name)  # type: ignore[misc]
    for name in cluster.nodes:
        wait_until(lambda name=name: len(cluster["a"].in_sync(f"m-{name}")) == 2)
    return wanted


def rows(path: str, **options: str) -> dict[str, list[int]]:
    source = MessageStoreSource({"path": path, "columns": "queue,seq,body", **options})
    reader: BatchReader = source.reader(source.schema())
    found: dict[str, list[int]] = {}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                found.setdefault(row["queue"], []).append(int(row["body"]))
    snapshot: Any = reader._place.open()
    assert isinstance(snapshot, RemoteSnapshot)
    snapshot.release()
    remote_node.close_connections()
    return found


def test_a_mirrored_queue_is_read_once_from_its_leader(cluster: RunningCluster) -> None:
    wanted = fill(cluster)
    for node in cluster.nodes.values():
        assert rows(url(node)) == wanted
    assert rows(url(cluster["a"]), queue="m-c") == {"m-c": wanted["m-c"]}
    assert rows(url(cluster["a"]), queues="m-b,b-only") == {
        "m-b": wanted["m-b"],
        "b-only": wanted["b-only"],
    }


def test_a_stream_goes_on_where_it_was_when_a_queue_gets_another_leader(
    cluster: RunningCluster,
) -> None:
    wanted = fill(cluster)
    query = Query(url(cluster["a"]), queuePattern="m-.*")
    everything = sorted(number for queue in wanted if queue != "b-only" for number in wanted[queue])
    assert query.batch() == everything
    cluster["b"].kill()
    others = {cluster["a"].name, cluster["c"].name}
    cluster["a"].until_queue("m-b", lambda row: row.get("node") in others)
    with cluster["a"].connect() as connection:
        publish(connection.channel(), "m-b", [b"5000"])
    assert query.batch() == [5000]
    # What only b has would be missing.
    with pytest.raises(StoreRefused, match=r"leads queue .b-only.|does not answer"):
        rows(url(cluster["a"]))
    remote_node.close_connections()
    cluster["b"].start()
