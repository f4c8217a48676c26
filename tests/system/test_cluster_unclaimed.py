"""What a member has on disk and no definition names: copies go, messages of lost queues stay."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Callable

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until

from warren.core.ports import Key
from warren.mirror.definitions.codec import Keys

BODIES = [b"message %05d" % number + bytes(400) for number in range(2000)]


def mirror(node: ClusterProcess, pattern: str) -> None:
    """Have mirrors everywhere of the queues with such names, and of no other."""
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
    node.changes("policies", "/", "ha", body=body)


def fill(node: ClusterProcess, queue: str) -> None:
    channel = node.connect().channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    publish(channel, queue, BODIES)
    channel.tx_commit()


def in_sync(node: ClusterProcess, queue: str) -> set[str]:
    return set(node.asks("queues", "/", queue).get("synchronised_slave_nodes", ()))


def put_raw(cluster: RunningCluster, key: Key, value: bytes) -> None:
    """Write into etcd what no node would."""
    place = Keys("/warren/default").key(key)
    body = {"key": base64.b64encode(place).decode(), "value": base64.b64encode(value).decode()}
    request = urllib.request.Request(
        f"{cluster.etcd.url}/v3/kv/put", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def expect_nothing_unclaimed(node: ClusterProcess) -> None:
    assert node.asks("unclaimed-messages") == []
    assert "messages_unclaimed" not in node.log


@pytest.mark.slow
def test_copies_of_queues_that_were_deleted_or_were_never_whole_are_dropped(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a", "b", "c")
    a, b, c = cluster.nodes.values()
    mirror(a, "^ha")
    fill(b, "own")
    fill(a, "ha.deleted")
    wait_until(lambda: in_sync(a, "ha.deleted") == {b.name, c.name})
    b.kill()
    a.connect().channel().queue_delete("ha.deleted")
    b.start()
    expect_nothing_unclaimed(b)
    # Copies that are being made.
    fill(a, "ha.other")
    for _ in range(2):
        mirror(a, "^none")
        wait_until(lambda: not a.asks("queues", "/", "ha.other").get("slave_nodes"))
        mirror(a, "^ha")
        wait_until(lambda: b.name in a.asks("queues", "/", "ha.other").get("slave_nodes", ()))
        b.kill()
        b.start()
        wait_until(lambda: b.name in in_sync(a, "ha.other"))
        expect_nothing_unclaimed(b)
    assert take(b.connect().channel(), "own", len(BODIES)) == BODIES


@pytest.mark.slow
def test_messages_of_a_queue_whose_definition_in_etcd_is_damaged_are_kept(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a", "b")
    a, b = cluster.nodes.values()
    fill(b, "own")
    b.stop()
    put_raw(cluster, ("queue", "/", "own"), b"\x94\x01\xc2\xc2" + b"\x91" * 5000 + b"\xc0")
    wait_until(lambda: len(a.asks("unreadable-definitions")) == 1)
    # Nothing hangs by it.
    a.connect().channel().queue_declare("another", durable=True)
    b.start()
    # What it knew of the queue counts on.
    assert take(b.connect().channel(), "own", 500) == BODIES[:500]
    b.stop()
    # From now on it knows what etcd has, and nothing else.
    b.start()
    (row,) = b.asks("unclaimed-messages")
    assert row["messages"] == len(BODIES) - 500
    assert len(b.asks("unreadable-definitions")) == 1
    channel = b.connect().channel()
    channel.queue_declare("own", durable=True)
    assert b.asks("unreadable-definitions") == []
    b.ctl("recover_messages", row["id"], "own")
    assert take(channel, "own", len(BODIES) - 500) == BODIES[500:]
    assert b.asks("unclaimed-messages") == []


def test_a_directory_is_of_no_other_node(running_cluster: RunningCluster) -> None:
    """No definition says that the other node has these queues, so their messages were dropped."""
    c = running_cluster["c"]
    channel = c.connect().channel()
    channel.queue_declare("alone", durable=True)
    channel.confirm_delivery()
    publish(channel, "alone", [b"0", b"1", b"2"])
    c.stop()
    name, c.name = c.name, "other@127.0.0.1"
    try:
        said = c.fails()
    finally:
        c.name = name
    assert f"is of node {name} of cluster" in said
    assert f"--node-name {name}" in said
    c.start()
    running_cluster.wait_until_linked()
    assert take(c.connect().channel(), "alone", 3) == [b"0", b"1", b"2"]


def test_a_member_does_not_start_without_its_cluster(running_cluster: RunningCluster) -> None:
    """Clients would find nothing of what they have there."""
    c = running_cluster["c"]
    c.stop()
    config, c.config = c.config, "heartbeat = 60\n"
    try:
        said = c.fails()
    finally:
        c.config = config
    assert "the configuration does not say where its etcd is" in said
    c.start()
    running_cluster.wait_until_linked()
