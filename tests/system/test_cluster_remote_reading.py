"""Reading the queues of a cluster over HTTP: each from its leader, and once."""

from __future__ import annotations

from typing import Any

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from stream_batches import Query

from warren.mirror.replication.levels.hand_outs import AHEAD_MIN
from warren.spark_export.errors import StoreRefused
from warren.spark_export.remote import remote_node
from warren.spark_export.remote.remote_store import RemoteSnapshot
from warren.spark_export.source.source import BatchReader, MessageStoreSource

LEASES_END = True
"""Tests wait until the lease of a node ends."""

COUNT = 30
MANY = 80


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
    found: dict[str, list[int]] = {}
    for row in read(path, columns="queue,seq,body", **options):
        found.setdefault(row["queue"], []).append(int(row["body"]))
    return found


def read(path: str, **options: str) -> list[dict[str, Any]]:
    source = MessageStoreSource({"path": path, **options})
    reader: BatchReader = source.reader(source.schema())
    found = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    snapshot: Any = reader._place.open()
    assert isinstance(snapshot, RemoteSnapshot) == path.startswith("warren:")
    snapshot.release()
    remote_node.close_connections()
    return found


def has_all_copies(row: dict[str, Any]) -> bool:
    return len(row.get("synchronised_slave_nodes", ())) == 2 or len(row.get("online", ())) == 3


def states(path: object, queue: str) -> list[tuple[int, str | None, bool | None]]:
    """The number, `state` and `redelivered` of each message."""
    found = read(str(path), queue=queue)
    return sorted((int(row["body"]), row["state"], row["redelivered"]) for row in found)


def test_a_mirrored_queue_is_read_once_from_its_leader(cluster: RunningCluster) -> None:
    wanted = fill(cluster)
    for node in cluster.nodes.values():
        assert rows(url(node)) == wanted
    assert rows(url(cluster["a"]), queue="m-c") == {"m-c": wanted["m-c"]}
    assert rows(url(cluster["a"]), queues="m-b,b-only") == {
        "m-b": wanted["m-b"],
        "b-only": wanted["b-only"],
    }


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_clients_have_is_told_by_the_leader_and_by_its_mirrors(
    cluster: RunningCluster, kind: str
) -> None:
    with cluster["a"].connect() as connection:
        channel = connection.channel()
        channel.queue_declare("m-had", durable=True, arguments={"x-queue-type": kind})
        publish(channel, "m-had", [b"%d" % number for number in range(MANY)])
        cluster["a"].until_queue("m-had", has_all_copies)
        # The first one is acknowledged.
        for acknowledged in (True, False):
            method, _, _ = channel.basic_get("m-had", auto_ack=acknowledged)
            assert method is not None
        out = [(1, "unacked", True)]
        ready = [(number, "ready", False) for number in range(2, MANY)]
        # The leader announces more than it hands out: a client of it may have had those.
        announced = [(number, "ready", number < AHEAD_MIN) for number in range(2, MANY)]
        of_mirror = [*out, *announced]
        if kind == "quorum":
            of_mirror = [(number, None, None) for number in range(1, MANY)]
        for name, node in cluster.nodes.items():
            wait_until(lambda node=node: states(url(node), "m-had") == [*out, *ready])
            in_files = of_mirror if name != "a" else [*out, *ready]
            wait_until(
                lambda node=node, in_files=in_files: (
                    states(node.data_directory, "m-had") == in_files
                )
            )


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
