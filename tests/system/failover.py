"""Fails the leader of a mirrored queue again and again, under load, and keeps book.

A publisher with confirms and unique numbers, and a consumer that acknowledges, are each at some
node that is up, and go elsewhere when they lose it. In the end every number that was confirmed has
been consumed, and whatever was consumed twice was marked as redelivered the second time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, NackError, UnroutableError
from running_cluster import ClusterProcess, RunningCluster, wait_until

from warren.mgmt.ctl.errors import CtlError

QUEUE = "ha.failover"
LASTING = pika.BasicProperties(delivery_mode=2)
PAUSE_S = 0.001
"""Between two publishes, so that a machine with few cores has time for the nodes, too."""


class _Worker(threading.Thread):
    """Works at some node until it is told to stop; a lost connection sends it to another one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.node: ClusterProcess | None = None
        self._ledger = ledger

    @property
    def shall_move(self) -> bool:
        """Whether its node is about to fail in a way that it would be long in noticing."""
        return self.node is not None and self.node is self._ledger.leave

    def run(self) -> None:
        while not self._ledger.over.is_set():
            node = self._ledger.choose()
            if node is None:
                time.sleep(0.05)
                continue
            try:
                connection = pika.BlockingConnection(
                    pika.URLParameters(f"{node.url}?heartbeat=2&blocked_connection_timeout=20")
                )
            except (AMQPError, AMQPConnectorException, OSError):
                time.sleep(0.05)
                continue
            self.node = node
            with suppress(AMQPError, OSError):
                self.work(connection)
            with suppress(AMQPError, OSError):
                connection.close()

    def work(self, connection: pika.BlockingConnection) -> None:
        raise NotImplementedError


class _Publisher(_Worker):
    def work(self, connection: pika.BlockingConnection) -> None:
        ledger = self._ledger
        channel = connection.channel()
        channel.confirm_delivery()
        while not (ledger.over.is_set() or ledger.published_enough.is_set() or self.shall_move):
            number = ledger.published = ledger.published + 1
            try:
                channel.basic_publish("", QUEUE, b"%d" % number, LASTING, mandatory=True)
            except (NackError, UnroutableError):
                continue
            ledger.confirmed.add(number)
            time.sleep(PAUSE_S)
        if ledger.published_enough.is_set():
            ledger.over.wait(0.2)


class _Consumer(_Worker):
    def work(self, connection: pika.BlockingConnection) -> None:
        ledger = self._ledger
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
            if ledger.over.is_set() or self.shall_move:
                return
            if method is None:
                if not channel.is_open:
                    return
                continue
            ledger.consumed(int(body), method.redelivered)
            channel.basic_ack(method.delivery_tag)


class Ledger:
    """What was published, confirmed and consumed, and at what time the last delivery came."""

    def __init__(self, cluster: RunningCluster, rng: random.Random) -> None:
        self.over = threading.Event()
        self.published_enough = threading.Event()
        self.published = 0
        self.confirmed: set[int] = set()
        self.seen: dict[int, int] = {}
        self.unmarked: list[int] = []
        self.avoid: ClusterProcess | None = None
        self.leave: ClusterProcess | None = None
        self.delivered_at = 0.0
        self._cluster = cluster
        self._rng = rng
        self._workers = [_Publisher(self), _Consumer(self)]

    def choose(self) -> ClusterProcess | None:
        """A node that is up; none while all are being started."""
        nodes = [n for n in self._cluster.nodes.values() if n.is_up and n is not self.avoid]
        return self._rng.choice(nodes) if nodes else None

    def consumed(self, number: int, redelivered: bool) -> None:
        self.delivered_at = time.monotonic()
        times = self.seen[number] = self.seen.get(number, 0) + 1
        if times > 1 and not redelivered:
            self.unmarked.append(number)

    def move_away(self, node: ClusterProcess) -> None:
        """Have no client at the node; return when there is none."""
        self.avoid = self.leave = node
        wait_until(lambda: not any(worker.shall_move for worker in self._workers))

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def finish(self, patience_s: float = 60) -> None:
        """Consume what is left, and end the clients."""
        self.published_enough.set()
        with suppress(AssertionError):
            wait_until(lambda: self.confirmed <= self.seen.keys(), patience_s)
        self.over.set()
        for worker in self._workers:
            worker.join(30)

    def complaints(self) -> list[str]:
        lost = sorted(self.confirmed - self.seen.keys())
        said = []
        if lost:
            said.append(f"{len(lost)} confirmed messages were lost: {lost[:10]}")
        if self.unmarked:
            said.append(
                f"{len(self.unmarked)} came twice and were not marked: {self.unmarked[:10]}"
            )
        return said


def leader_of(cluster: RunningCluster) -> ClusterProcess:
    """The node that leads the queue, when all others have copies in sync."""
    found: list[str] = []

    def known() -> bool:
        found.clear()
        try:
            row = next(node for node in cluster.nodes.values() if node.is_up).asks(
                "queues", "/", QUEUE
            )
        except (CtlError, StopIteration):
            return False
        found.append(row["node"])
        return len(row.get("synchronised_slave_nodes", ())) == len(cluster.nodes) - 1

    wait_until(known, 60)
    return next(node for node in cluster.nodes.values() if node.name == found[0])


def kill(node: ClusterProcess, lease_s: float) -> Callable[[], None]:
    node.kill()
    return node.start


def stop(node: ClusterProcess, lease_s: float) -> Callable[[], None]:
    node.stop()
    return node.start


def pause(node: ClusterProcess, lease_s: float) -> Callable[[], None]:
    """It stands still for longer than its lease lasts."""
    node.stand_still()
    began = time.monotonic()

    def go_on() -> None:
        time.sleep(max(0.0, began + 1.5 * lease_s - time.monotonic()))
        node.go_on()

    return go_on


FAULTS = {"kill": kill, "stop": stop, "pause": pause}


def fail_over(
    cluster: RunningCluster, ledger: Ledger, fault: str, lease_s: float, patience_s: float = 30
) -> float:
    """Fail the leader; returns how long it was until a message was delivered again."""
    leader = leader_of(cluster)
    ledger.avoid = leader
    if fault == "pause":
        # Whose node stands still is long in noticing, which is not what is measured.
        ledger.move_away(leader)
    began = time.monotonic()
    mend = FAULTS[fault](leader, lease_s)
    failed = time.monotonic() if fault != "stop" else began
    wait_until(lambda: ledger.delivered_at > failed + 0.005, patience_s)
    took = ledger.delivered_at - failed
    mend()
    ledger.avoid = ledger.leave = None
    return took


def prepare(cluster: RunningCluster) -> None:
    """The policy and the queue."""
    node = next(iter(cluster.nodes.values()))
    connection = node.connect()
    put_policy(node, "ha", "^ha", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    connection.channel().queue_declare(QUEUE, durable=True)
    connection.close()
    leader_of(cluster)


def put_policy(
    node: ClusterProcess, name: str, pattern: str, definition: dict[str, object]
) -> None:
    node.changes("policies", "/", name, body={"pattern": pattern, "definition": definition})
