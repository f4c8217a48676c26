"""What waits while etcd keeps its connections and says nothing: definitions, and no other work."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_cluster import RunningCluster, wait_until

from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import Silence

NODES = "abc"
SILENCE_S = 3.0
CONFIRM_S = 2.0
"""A confirm that takes longer has waited for etcd."""
PAUSE_S = 0.02
LASTING = {"delivery_mode": 2}


def declares_a_durable_queue(cluster: RunningCluster, channel: RawChannel) -> Callable[[], object]:
    channel.send("queue.declare", queue="new", durable=True)
    return lambda: channel.expect("queue.declare-ok")


def declares_an_exclusive_queue(
    cluster: RunningCluster, channel: RawChannel
) -> Callable[[], object]:
    channel.send("queue.declare", queue="new", exclusive=True)
    return lambda: channel.expect("queue.declare-ok")


def deletes_a_queue(cluster: RunningCluster, channel: RawChannel) -> Callable[[], object]:
    channel.send("queue.delete", queue="old")
    return lambda: channel.expect("queue.delete-ok")


def sets_a_policy(cluster: RunningCluster, channel: RawChannel) -> Callable[[], object]:
    pool = ThreadPoolExecutor(1)
    body = {"pattern": "^x", "definition": {"max-length": 1}}
    answer = pool.submit(lambda: cluster["a"].changes("policies", "/", "new", body=body))
    pool.shutdown(wait=False)
    assert not answer.done()
    return answer.result


class Publisher:
    """Publishes to queues of one leader, at some node, and waits for each confirm."""

    def __init__(self, channel: RawChannel, leader: str) -> None:
        self._channel = channel
        self._queues = [f"plain.{leader}", f"ha.{leader}"]
        self._published = 0
        self._unconfirmed: set[int] = set()
        channel.call("confirm.select")

    def publish(self) -> None:
        for queue in self._queues:
            self._channel.publish(b"message", queue, **LASTING)
            self._published += 1
            self._unconfirmed.add(self._published)

    def confirms(self) -> None:
        """Within `CONFIRM_S` for all that was published."""
        while self._unconfirmed:
            ack = self._channel.expect("basic.ack", CONFIRM_S)
            tag = ack["delivery_tag"]
            self._unconfirmed -= set(range(tag + 1)) if ack["multiple"] else {tag}


@pytest.mark.parametrize(
    "changes",
    [declares_a_durable_queue, declares_an_exclusive_queue, deletes_a_queue, sets_a_policy],
)
def test_a_definition_that_waits_for_etcd_lets_publishes_to_other_queues_be_confirmed(
    running_cluster: RunningCluster,
    connect: Callable[..., RawClient],
    changes: Callable[[RunningCluster, RawChannel], Callable[[], object]],
) -> None:
    cluster = running_cluster
    everywhere = {"pattern": "^ha", "definition": {"ha-mode": "all"}}
    cluster["a"].changes("policies", "/", "ha", body=everywhere)
    for name in NODES:
        for kind in ("plain", "ha"):
            connect(cluster[name]).channel().declare(f"{kind}.{name}", durable=True)
    changing = connect(cluster["a"]).channel()
    changing.declare("old", durable=True)
    for name in NODES:
        wait_until(lambda: len(cluster["a"].in_sync(f"ha.{name}")) == 2)  # noqa: B023
    publishers = [
        Publisher(connect(cluster[node]).channel(), leader) for node in NODES for leader in NODES
    ]
    cluster.etcd.stand_still()
    answered = changes(cluster, changing)
    deadline = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline:
        for publisher in publishers:
            publisher.publish()
        for publisher in publishers:
            publisher.confirms()
        # To publish without a pause would take all cores, and says no more.
        time.sleep(PAUSE_S)
    with pytest.raises(Silence):
        changing.next_method(0.05)
    cluster.etcd.go_on()
    answered()
