"""Nodes that go on without etcd keep what ends with a node, until one of them is really away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from proxied_node import proxied
from raw_clients import RawClients
from reserved_port import reserve_port
from running_cluster import LEASE_TTL_S, ClusterProcess, RunningCluster, wait_until

from warren.cluster import FOUND_S
from warren.mgmt.ctl.errors import RequestRefused

NODES = "abc"
KINDS = {
    "exclusive": {"exclusive": True},
    "transient": {},
    "auto": {"auto_delete": True},
}
UNACKED, READY = 1, 2
PAUSE_S = 0.05


class Owner:
    """A client of one node, with queues that end with the node: three messages in each.

    One message of each is out at a consumer.
    """

    def __init__(self, node: ClusterProcess, connect: RawClients) -> None:
        self.name = node.name[0]
        self.queues = {f"{kind}.{self.name}" for kind in KINDS}
        self._tags: dict[str, int] = {}
        self.channel = connect(node).channel()
        self.channel.call("basic.qos", prefetch_count=UNACKED)
        for kind, arguments in KINDS.items():
            queue = f"{kind}.{self.name}"
            self.channel.declare(queue, **arguments)
            self.channel.publish(queue.encode(), queue)
            self.channel.consume(queue, tag=queue)
            self._tags[queue] = self.channel.delivery(queue.encode())["delivery_tag"]
            for _ in range(READY):
                self.channel.publish(queue.encode(), queue)
            self.channel.becomes_ready(queue, READY)

    def has_all(self) -> None:
        for queue in self.queues:
            assert self.channel.ready(queue) == READY, queue
        self.channel.ping()

    def is_served(self) -> None:
        """What was ready comes, and what was unacknowledged can be acknowledged."""
        for queue in sorted(self.queues):
            for left in (1, 0):
                self.channel.ack(self._tags[queue])
                delivery = self.channel.delivery(queue.encode())
                assert delivery["consumer_tag"] == queue
                self._tags[queue] = delivery["delivery_tag"]
                assert self.channel.ready(queue) == left


def is_usable_from(owner: Owner, node: ClusterProcess, connect: RawClients) -> None:
    """Whoever is at another node counts and publishes; the queues are as before then."""
    channel = connect(node).channel()
    channel.call("confirm.select")
    for queue in sorted(owner.queues):
        channel.publish(b"from afar", queue, mandatory=True)
        channel.expect("basic.ack")
        owner.channel.becomes_ready(queue, READY + 1)
        if not queue.startswith("exclusive"):
            assert channel.ready(queue) == READY + 1
    for queue in sorted(owner.queues):
        # The newest goes again: those before are put back in their places.
        taken = [owner.channel.got(queue, no_ack=False) for _ in range(READY + 1)]
        owner.channel.ack(taken[-1]["delivery_tag"])
        for one in taken[:-1]:
            owner.channel.reject(one["delivery_tag"])
        owner.channel.becomes_ready(queue, READY)


Logs: TypeAlias = dict[str, int]
"""How much of its log each node had written."""


def logs(cluster: RunningCluster) -> Logs:
    return {name: len(cluster[name].log) for name in NODES}


def go_on(cluster: RunningCluster, since: Logs) -> None:
    for name in NODES:
        wait_until(lambda: "cluster_lost_going_on" in cluster[name].log[since[name] :])  # noqa: B023


def is_killed(cluster: RunningCluster) -> None:
    """The leases last, for etcd, until some time after its start."""
    since = logs(cluster)
    cluster.etcd.kill()
    go_on(cluster, since)
    since = logs(cluster)
    cluster.etcd.start()
    joined_again(cluster, since)


def stands_still(cluster: RunningCluster) -> None:
    """The leases have ended, for etcd, when it goes on."""
    since = logs(cluster)
    cluster.etcd.stand_still()
    go_on(cluster, since)
    since = logs(cluster)
    cluster.etcd.go_on()
    joined_again(cluster, since)


def joined_again(cluster: RunningCluster, since: Logs) -> None:
    """All nodes know that all have joined again, and have done what they do about it."""
    for name in NODES:
        for other in NODES.replace(name, ""):
            wanted = f"cluster_node_up node={cluster[other].name} "
            wait_until(lambda: wanted in cluster[name].log[since[name] :])  # noqa: B023


def names(node: ClusterProcess) -> set[str]:
    return {row["name"] for row in node.asks("queues", columns="name")}


def tidied(cluster: RunningCluster, name: str) -> int:
    """How often any node has tidied up after this one."""
    line = f"cluster_node_tidied_up node={cluster[name].name} "
    return sum(node.log.count(line) for node in cluster.all_nodes)


def goes_with_its_node(cluster: RunningCluster, owners: dict[str, Owner], name: str) -> None:
    """After a kill, exactly its queues are gone, after which the others serve on."""
    others = owners.keys() - {name}
    before = {other: names(cluster[other]) for other in others}
    cluster[name].kill()
    for other in others:
        left = before[other] - owners[name].queues
        assert left < before[other]
        wait_until(lambda: names(cluster[other]) == left, 10 * LEASE_TTL_S)  # noqa: B023
        owners[other].is_served()
    assert tidied(cluster, name) == 1
    assert not any(tidied(cluster, other) for other in others)


@pytest.mark.parametrize(
    ("killed", "etcd", "mode"),
    [
        ("a", is_killed, "ignore"),
        ("a", stands_still, "autoheal"),
        ("b", is_killed, "autoheal"),
        ("b", stands_still, "ignore"),
    ],
)
def test_what_ends_with_a_node_outlives_its_lease(
    start_cluster: Callable[..., RunningCluster],
    connect: RawClients,
    mode: str,
    etcd: Callable[[RunningCluster], None],
    killed: str,
) -> None:
    cluster = start_cluster(*NODES, more=f"cluster_partition_handling = {mode}\n")
    owners = {name: Owner(cluster[name], connect) for name in NODES}
    etcd(cluster)
    for name in NODES:
        # Whatever a node had under way is done when this is.
        connect(cluster[name]).channel().declare(f"later.{name}", durable=True)
    for name in NODES:
        wait_until(lambda: {f"later.{other}" for other in NODES} <= names(cluster[name]))  # noqa: B023
    for name, owner in owners.items():
        owner.has_all()
        for other in NODES.replace(name, ""):
            is_usable_from(owner, cluster[other], connect)
    cluster.wait_until_linked(*NODES)
    goes_with_its_node(cluster, owners, killed)


@pytest.fixture(params=["ignore", "autoheal"])
def lost(
    tmp_path: Path, connect: RawClients, request: pytest.FixtureRequest
) -> Iterator[tuple[RunningCluster, dict[str, Owner]]]:
    """A cluster where b alone has lost etcd for so long that a and c see no presence of it."""
    more = f"cluster_partition_handling = {request.param}\n"
    cluster = RunningCluster(tmp_path, "c", more=more)
    # The others find it there when it is started again.
    port = reserve_port(cluster)
    at_port = cluster.config.replace("range.min = 0", f"range.min = {port}")
    cluster.nodes["a"] = cluster.new_node("a", at_port)
    with proxied(cluster.etcd.port) as proxy:
        b = cluster.new_node("b", cluster.config.replace(cluster.etcd.url, proxy.url))
        cluster.nodes["b"] = b
        try:
            cluster.start()
            owners = {name: Owner(cluster[name], connect) for name in NODES}
            queues = set[str]().union(*[owner.queues for owner in owners.values()])
            # Without etcd, b would never hear of the last one.
            wait_until(lambda: names(b) == queues)
            proxy.cut_off()  # type: ignore[attr-defined]
            for name in "ac":
                wanted = f"cluster_node_down node={b.name}"
                wait_until(lambda: wanted in cluster[name].log)  # noqa: B023
            yield cluster, owners
        finally:
            cluster.end()


def test_a_node_without_a_lease_is_tidied_up_after_when_its_link_breaks(
    lost: tuple[RunningCluster, dict[str, Owner]], connect: RawClients
) -> None:
    cluster, owners = lost
    for name, owner in owners.items():
        owner.has_all()
        for other in NODES.replace(name, ""):
            is_usable_from(owner, cluster[other], connect)
    with pytest.raises(RequestRefused, match="is running"):
        cluster["a"].does("DELETE", "control", "members", cluster["b"].name)
    goes_with_its_node(cluster, owners, "b")


def test_a_node_that_stops_takes_no_other_for_dead(
    lost: tuple[RunningCluster, dict[str, Owner]],
) -> None:
    cluster, owners = lost
    cluster["a"].stop()
    gone = owners.pop("a").queues
    wait_until(lambda: not gone & names(cluster["c"]))
    for owner in owners.values():
        owner.has_all()
    goes_with_its_node(cluster, owners, "b")


@pytest.mark.slow
def test_a_node_that_starts_takes_no_other_for_dead(
    lost: tuple[RunningCluster, dict[str, Owner]],
) -> None:
    cluster, owners = lost
    cluster["a"].stop()
    gone = owners.pop("a").queues
    wait_until(lambda: not gone & names(cluster["c"]))
    cluster["a"].start()
    cluster.wait_until_linked(*NODES)
    deadline = time.monotonic() + FOUND_S + 1
    while time.monotonic() < deadline:
        for owner in owners.values():
            owner.has_all()
        # To ask without a pause would take all cores, and says no more.
        time.sleep(PAUSE_S)
    goes_with_its_node(cluster, owners, "b")


def test_a_node_that_pauses_is_dead_when_its_lease_has_ended(
    start_cluster: Callable[..., RunningCluster], connect: RawClients
) -> None:
    cluster = start_cluster("a", "b", more="net_ticktime = 60\n")
    owners = {name: Owner(cluster[name], connect) for name in "ab"}
    cluster["b"].stand_still()
    wait_until(lambda: names(cluster["a"]) == owners["a"].queues)
    assert tidied(cluster, "b") == 1
    owners["a"].has_all()
    cluster["b"].go_on()
    wait_until(lambda: "node_pausing" in cluster["b"].log)
    cluster.wait_until_linked("a", "b")
    owners["a"].is_served()
