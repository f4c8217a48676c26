"""Fails the leader of a mirrored queue again and again, under load, and keeps book.

A publisher with confirms and unique numbers, and a consumer that acknowledges, are each at some
node that is up, and go elsewhere when they lose it. In the end every number that was confirmed has
been consumed, and whatever was consumed twice was marked as redelivered the second time. A leader
that is cut off has clients of its own meanwhile, to which it must confirm nothing.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import pika
from cut_off_clients import CutOffClients
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, NackError, UnroutableError
from running_cluster import ClusterProcess, RunningCluster, wait_until

from warren.mgmt.ctl.errors import CtlError

QUEUE = "ha.failover"
LASTING = pika.BasicProperties(delivery_mode=2)
PAUSE_S = 0.001
"""Between two publishes, so that a machine with few cores has time for the nodes, too."""


def _connect(node: ClusterProcess) -> pika.BlockingConnection | None:
    try:
        connection = pika.BlockingConnection(
            pika.URLParameters(f"{node.url}?heartbeat=2&blocked_connection_timeout=20")
        )
    except (AMQPError, AMQPConnectorException, OSError):
        return None
    except ValueError as error:
        # What pika says of a socket that is reset in the moment in which it is connected.
        _close_what_is_open(error)
        return None
    if connection.is_open:
        return connection
    # A node that stops has closed it in the octets that opened it: pika takes note of that before
    # it listens to it, and would never close its own sockets.
    connection._cleanup()
    return None


def _close_what_is_open(error: ValueError) -> None:
    """pika does not."""
    traceback = error.__traceback__
    while traceback is not None:
        for value in traceback.tb_frame.f_locals.values():
            if isinstance(value, (socket.socket, IOLoop)):
                value.close()
        traceback = traceback.tb_next


class _Worker(threading.Thread):
    """Works at some node until it is told to stop; a lost connection sends it to another one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.node: ClusterProcess | None = None
        self._ledger = ledger

    @property
    def at(self) -> str:
        """The node it is at, for people."""
        return self.node.name if self.node is not None else "no node"

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
            connection = _connect(node)
            if connection is None:
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
            number = ledger.next_number()
            ledger.note(number, f"published at {self.at}")
            try:
                channel.basic_publish("", QUEUE, b"%d" % number, LASTING, mandatory=True)
            except (NackError, UnroutableError) as error:
                ledger.note(number, f"refused: {type(error).__name__}")
                continue
            ledger.note(number, "confirmed")
            ledger.confirmed.add(number)
            ledger.confirms.happened()
            time.sleep(PAUSE_S)
        if ledger.published_enough.is_set():
            ledger.published_all.set()
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
            ledger.consumed(int(body), method.redelivered, self.at)
            channel.basic_ack(method.delivery_tag)


class Course:
    """Something that goes on all the time, and how long it did not."""

    def __init__(self) -> None:
        self.last = self.longest_s = self.resumed_at = 0.0

    def watch(self) -> None:
        """What was before does not count any more."""
        self.last, self.longest_s, self.resumed_at = time.monotonic(), 0.0, 0.0

    def happened(self) -> None:
        now = time.monotonic()
        if now - self.last > self.longest_s:
            self.longest_s = now - self.last
            self.resumed_at = now
        self.last = now


class Ledger:
    """What was published, confirmed and consumed; confirms and deliveries take their course."""

    def __init__(self, cluster: RunningCluster, rng: random.Random) -> None:
        self.over = threading.Event()
        self.published_enough = threading.Event()
        self.published_all = threading.Event()
        self.published = 0
        self.confirmed: set[int] = set()
        self.confirmed_cut_off: list[int] = []
        self.published_cut_off = 0
        self.cuts = 0
        self.seen: dict[int, int] = {}
        self.unmarked: list[int] = []
        self.avoid: ClusterProcess | None = None
        self.leave: ClusterProcess | None = None
        self.confirms = Course()
        self.deliveries = Course()
        self._cluster = cluster
        self._rng = rng
        self._lock = threading.Lock()
        self._history: dict[int, list[str]] = {}
        self._workers = [_Publisher(self), _Consumer(self)]

    def choose(self) -> ClusterProcess | None:
        """A node that is up; none while all are being started."""
        nodes = [n for n in self._cluster.nodes.values() if n.is_up and n is not self.avoid]
        return self._rng.choice(nodes) if nodes else None

    def next_number(self) -> int:
        with self._lock:
            self.published += 1
            return self.published

    def consumed(self, number: int, redelivered: bool, at: str) -> None:
        self.deliveries.happened()
        self.saw(number, redelivered, at)

    def saw(self, number: int, redelivered: bool, at: str) -> None:
        """It was delivered, if only to a client of a node that is cut off."""
        self.note(number, f"{'redelivered' if redelivered else 'delivered'} at {at}")
        with self._lock:
            times = self.seen[number] = self.seen.get(number, 0) + 1
        if times > 1 and not redelivered:
            self.unmarked.append(number)

    def note(self, number: int, what: str) -> None:
        """For whoever looks for the reason of a complaint."""
        now = time.time()
        stamp = f"{time.strftime('%H:%M:%S', time.localtime(now))},{int(now * 1000) % 1000:03}"
        self._history.setdefault(number, []).append(f"{stamp} {what}")

    def move_away(self, node: ClusterProcess) -> None:
        """Have no client at the node; return when there is none."""
        self.avoid = self.leave = node
        wait_until(lambda: not any(worker.shall_move for worker in self._workers))

    def wait_for_confirms(self, count: int) -> None:
        """Until so many more publishes were confirmed."""
        wanted = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= wanted)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def finish(self, patience_s: float = 60) -> None:
        """Consume what is left, and end the clients."""
        self.published_enough.set()
        assert self.published_all.wait(patience_s), "a publish was not answered"
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
        if self.confirmed_cut_off:
            said.append(
                f"a leader that was cut off confirmed {len(self.confirmed_cut_off)} messages:"
                f" {self.confirmed_cut_off[:10]}"
            )
        for number in (*lost[:10], *self.unmarked[:10], *self.confirmed_cut_off[:10]):
            said.append(f"{number}: {'; '.join(self._history[number])}")
        return said


def leader_of(cluster: RunningCluster, queue: str = QUEUE) -> ClusterProcess:
    """The node that leads a queue, when all nodes say so and all others have copies in sync."""
    found: set[str] = set()

    def known() -> bool:
        found.clear()
        for node in cluster.nodes.values():
            said = _asked(node, queue)
            if said is None or len(said[1]) != len(cluster.nodes) - 1:
                return False
            found.add(said[0])
        return len(found) == 1

    wait_until(known, 60)
    (name,) = found
    return next(node for node in cluster.nodes.values() if node.name == name)


def _asked(node: ClusterProcess, queue: str = QUEUE) -> tuple[str, list[str]] | None:
    """Who leads a queue as the node knows it, and who is in sync; None if it does not say."""
    if not node.is_up:
        return None
    try:
        row = node.asks("queues", "/", queue)
    except CtlError:
        return None
    return row["node"], row.get("synchronised_slave_nodes", [])


Mend: TypeAlias = Callable[[], None]


class Failing(NamedTuple):
    """Who is to fail, in which cluster."""

    node: ClusterProcess
    cluster: RunningCluster
    ledger: Ledger
    lease_s: float

    def wait(self, began: float) -> None:
        """Until its lease has run out, and somewhat longer."""
        time.sleep(max(0.0, began + 1.5 * self.lease_s - time.monotonic()))


def kill(failing: Failing) -> Mend:
    failing.node.kill()
    return failing.node.start


def stop(failing: Failing) -> Mend:
    failing.node.stop()
    return failing.node.start


def pause(failing: Failing) -> Mend:
    """It stands still for longer than its lease lasts."""
    failing.node.stand_still()
    began = time.monotonic()

    def go_on() -> None:
        failing.wait(began)
        failing.node.go_on()

    return go_on


def cut(failing: Failing) -> Mend:
    """Its peers and etcd are out of reach: in turns until another node leads, and for longer than
    its lease lasts."""
    node, network, ledger = failing.node, failing.cluster.network, failing.ledger
    assert network is not None
    name = node.name.partition("@")[0]
    clients = CutOffClients(node, QUEUE, ledger)
    clients.begin()
    network.cut(name)
    clients.is_cut()
    began = time.monotonic()
    ledger.cuts += 1
    is_long = ledger.cuts % 2 == 0

    def restore() -> None:
        if is_long:
            failing.wait(began)
        clients.is_restored()
        network.restore(name)
        failing.cluster.wait_until_linked(*failing.cluster.nodes)
        clients.finish()
        ledger.published_cut_off += clients.published

    return restore


FAULTS: dict[str, Callable[[Failing], Mend]] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "cut": cut,
}


def fail_over(
    cluster: RunningCluster, ledger: Ledger, fault: str, lease_s: float, patience_s: float = 30
) -> float:
    """Fail the leader; returns how long it was until a message was delivered again."""
    leader = leader_of(cluster)
    ledger.avoid = leader
    if fault in ("pause", "cut"):
        # Whose node stands still is long in noticing, which is not what is measured.
        ledger.move_away(leader)
    ledger.deliveries.watch()
    began = time.monotonic()
    mend = FAULTS[fault](Failing(leader, cluster, ledger, lease_s))
    failed = time.monotonic() if fault != "stop" else began
    other = next(node for node in cluster.nodes.values() if node is not leader)

    def led_by_another() -> bool:
        said = _asked(other)
        return said is not None and said[0] != leader.name

    wait_until(led_by_another, patience_s)
    # Messages that were on their way come after the fault, too.
    known = time.monotonic()
    wait_until(lambda: ledger.deliveries.last > known, patience_s)
    took = max(0.0, ledger.deliveries.resumed_at - failed)
    mend()
    ledger.avoid = ledger.leave = None
    return took


def prepare(cluster: RunningCluster, more: Mapping[str, object] | None = None) -> None:
    """The policy, with `more` in it, and the queue."""
    node = next(iter(cluster.nodes.values()))
    connection = node.connect()
    put_policy(node, "ha", "^ha", {"ha-mode": "all", "ha-sync-mode": "automatic", **(more or {})})
    connection.channel().queue_declare(QUEUE, durable=True)
    connection.close()
    leader_of(cluster)


def put_policy(
    node: ClusterProcess, name: str, pattern: str, definition: dict[str, object]
) -> None:
    node.changes("policies", "/", name, body={"pattern": pattern, "definition": definition})
