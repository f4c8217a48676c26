"""Clients at every node, and the book of what they published and were delivered.

At each node a publisher sends to all queues with confirms, never twice the same, and a consumer
takes from all of them, acknowledges, requeues, rejects, and vanishes now and then. Who loses its
node tries it again. `Book` is told everything; `checks.py` judges it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from running_cluster import ClusterProcess, RunningCluster

from warren.compat_tests.broker import parse_url
from warren.compat_tests.methods import Method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import Silence, SocketClosed, Surprise

MORTAL, GRAVES, LOST_AND_FOUND = "ha.mortal", "ha.graves", "lost+found"
SAFE = "safe"
"""Mirrored, and only a mirror in sync may take its lead."""
LOGGED = "log.1"
"""Mirrored, and its batches are carried by a log."""
QUORUM = "quorum.1"
"""A quorum queue with three members."""
ORDERED = ("ha.2", "plain.a")
"""Have one consumer, to which first deliveries come in order. With more of them, what one has
not been sent when it goes is delivered to another one, later and still for the first time."""
MIRRORED = ("ha.1", "ha.2", SAFE, MORTAL, GRAVES, LOGGED, QUORUM)

WINDOW = 50
"""Publishes that may be unconfirmed at a publisher."""
PREFETCH = 20
PACE_S = 0.01
AGAIN_S = 0.3
"""How long a client waits after a refusal."""
SETTLE_S = 40.0
"""How long an answer to a publish may take when nothing fails any more."""


class Message:
    """One publish, and everything that is known of it."""

    __slots__ = ("history", "queue", "settled", "unmarked", "verdict")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.verdict = "unanswered"
        self.settled = False
        """Acknowledged where nothing brings it back, or found in `lost+found`."""
        self.unmarked: Counter[str] = Counter()
        """How often each queue delivered it as if for the first time."""
        self.history: list[str] = []


class Book:
    """All messages by their names, "PUBLISHER NUMBER"; what is wrong at once is a complaint."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.complaints: list[str] = []
        self.deliveries = 0
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str, str], int] = {}

    def note(self, name: str, what: str) -> None:
        now = time.time()
        stamp = f"{time.strftime('%H:%M:%S', time.gmtime(now))},{int(now * 1000) % 1000:03}"
        self.messages[name].history.append(f"{stamp} {what}")

    def published(self, name: str, queue: str) -> None:
        with self._lock:
            self.messages[name] = Message(queue)
            self.note(name, f"published to {queue}")

    def answered(self, name: str, verdict: str) -> None:
        with self._lock:
            message = self.messages[name]
            if message.verdict == "unanswered":
                message.verdict = verdict
            self.note(name, verdict)

    def delivered(self, name: str, queue: str, redelivered: bool, consumer: str) -> bool:
        """Whether anybody has published it to this queue, or to one whose dead letters it has."""
        with self._lock:
            self.deliveries += 1
            message = self.messages.get(name)
            if message is None or (
                queue not in (message.queue, LOST_AND_FOUND)
                and (message.queue, queue) != (MORTAL, GRAVES)
            ):
                self.complaints.append(f"{queue} has a message that nobody published: {name!r}")
                return False
            how = "redelivered" if redelivered else "delivered"
            self.note(name, f"{how} by {queue} to {consumer}")
            if not redelivered and queue != LOST_AND_FOUND:
                self._first_time(name, message, queue, consumer)
            return True

    def _first_time(self, name: str, message: Message, queue: str, consumer: str) -> None:
        message.unmarked[queue] += 1
        if queue not in ORDERED:
            return
        publisher, number = name.split()
        order = (consumer, queue, publisher)
        last = self._last.get(order, 0)
        self._last[order] = max(last, int(number))
        if int(number) < last:
            history = "; ".join(message.history)
            text = f"{queue} delivered {name} to {consumer} after number {last}: {history}"
            self.complaints.append(text)

    def settled(self, name: str, how: str, *, is_over: bool = True) -> None:
        with self._lock:
            self.messages[name].settled |= is_over
            self.note(name, how)

    def open(self) -> list[str]:
        """The confirmed messages that are still to come, or lost."""
        with self._lock:
            return [
                name
                for name, message in self.messages.items()
                if message.verdict == "confirmed" and not message.settled
            ]

    def count(self, verdict: str) -> int:
        with self._lock:
            return sum(message.verdict == verdict for message in self.messages.values())


class Client(RawClient):
    """One that listens on all its channels."""

    def next_any(self, patience_s: float) -> Method | None:
        """What comes next on any channel, if something comes in time."""
        while not (waiting := next((box for box in self._inbox.values() if box), None)):
            if not self.has_more(patience_s):
                return None
            self._take_in(self.read_frame())
        method: Method = waiting.popleft()
        return method


class Worker(threading.Thread):
    """Works at a node until it is told to stop, over as many connections as it takes."""

    kind = "worker"

    def __init__(self, load: Load, node: ClusterProcess, seed: str) -> None:
        name = f"{self.kind}-{node.name.partition('@')[0]}"
        super().__init__(name=name, daemon=True)
        self.load = load
        self.book = load.book
        self.rng = random.Random(f"{seed}/{name}")
        self.lives = 0
        self._node = node

    @property
    def known_as(self) -> str:
        return f"{self.name}-{self.lives}"

    def run(self) -> None:
        while not self.load.over.is_set():
            if self._node.is_up and self.shall_work():
                self.lives += 1
                with suppress(SocketClosed, Silence, Surprise, OSError):
                    self._live()
            self.load.over.wait(AGAIN_S)

    def _live(self) -> None:
        client = Client(parse_url(self._node.url))
        try:
            client.open()
            self.work(client)
            if not self.load.over.is_set():
                client.close()
        finally:
            client.abandon()
            self.lost()

    def shall_work(self) -> bool:
        return True

    def lost(self) -> None:
        """The connection is gone."""

    def work(self, client: Client) -> None:
        raise NotImplementedError


class Publisher(Worker):
    """Publishes to all queues in turns while there is to be load."""

    kind = "publisher"

    def __init__(self, load: Load, node: ClusterProcess, seed: str) -> None:
        super().__init__(load, node, seed)
        self.confirms = 0
        self._open: dict[int, str] = {}
        self._tag = 0

    @property
    def is_idle(self) -> bool:
        return not self._open

    def shall_work(self) -> bool:
        return self.load.flows.is_set()

    def lost(self) -> None:
        for name in self._open.values():
            self.book.answered(name, "not known: the connection was lost")
        self._open = {}

    def work(self, client: Client) -> None:
        channel = client.channel()
        channel.call("confirm.select")
        self._tag = 0
        while self.load.flows.is_set():
            if len(self._open) < WINDOW:
                self._publish(channel)
            if not self._listen(client, PACE_S):
                return
        deadline = time.monotonic() + SETTLE_S
        while self._open:
            if not self._listen(client, 0.1):
                return
            if time.monotonic() > deadline:
                first = next(iter(self._open.values()))
                self.book.complaints.append(f"{len(self._open)} were not answered, first {first}")
                return

    def _publish(self, channel: RawChannel) -> None:
        queue = self.rng.choice(self.load.published_to)
        self._tag += 1
        name = f"{self.known_as} {self._tag}"
        self._open[self._tag] = name
        self.book.published(name, queue)
        size = 150_000 if self.rng.random() < 0.005 else self.rng.randrange(2000)
        body = f"{name} ".encode().ljust(size, b".")
        channel.publish(body, queue, mandatory=True, delivery_mode=2)

    def _listen(self, client: Client, patience_s: float) -> bool:
        """Take what has come; False at the end."""
        while (method := client.next_any(patience_s)) is not None:
            patience_s = 0.0
            if method.name in ("connection.close", "channel.close"):
                return False
            if method.name == "basic.return":
                self.book.answered(_name_in(method.body), "returned")
            elif method.name in ("basic.ack", "basic.nack"):
                self._answered(method)
        return True

    def _answered(self, method: Method) -> None:
        last = method["delivery_tag"]
        tags = [tag for tag in self._open if tag <= last] if method["multiple"] else [last]
        confirmed = method.name == "basic.ack"
        for tag in tags:
            self.confirms += confirmed
            self.book.answered(self._open.pop(tag), "confirmed" if confirmed else "refused")


class Consumer(Worker):
    """Consumes from all queues or all but the `ORDERED` ones, each on a channel of its own."""

    kind = "consumer"

    def __init__(self, load: Load, node: ClusterProcess, seed: str, *, of_all: bool) -> None:
        super().__init__(load, node, seed)
        queues = load.consumed_from
        self._consumed_from = [queue for queue in queues if of_all or queue not in ORDERED]

    def work(self, client: Client) -> None:
        channels = {queue: client.channel() for queue in self._consumed_from}
        queues = {channel.number: queue for queue, channel in channels.items()}
        for channel in channels.values():
            channel.call("basic.qos", prefetch_count=PREFETCH)
        due = dict.fromkeys(channels, 0.0)
        """When to subscribe to a queue again."""
        held: list[tuple[RawChannel, int, str]] = []
        while not self.load.over.is_set():
            now = time.monotonic()
            for queue in [queue for queue, at in due.items() if at <= now]:
                channels[queue].send("basic.consume", queue=queue)
                del due[queue]
            works = self.load.drains.is_set()
            method = client.next_any(0.0 if held and works else 0.05)
            if works and (method is None or len(held) > 10):
                self._settle(held)
            if method is None:
                continue
            if method.name == "connection.close":
                return
            queue = queues.get(method.channel, "")
            if method.name == "basic.deliver":
                name = _name_in(method.body)
                redelivered = method["redelivered"]
                if self.book.delivered(name, queue, redelivered, self.known_as):
                    held.append((channels[queue], method["delivery_tag"], name))
                    if self.rng.random() < 0.0005:
                        return
                else:
                    channels[queue].ack(method["delivery_tag"])
            elif method.name in ("basic.cancel", "channel.close"):
                # It cannot be used now: its only node is down.
                held = [one for one in held if one[0] is not channels[queue]]
                if method.name == "channel.close":
                    channels[queue].send("channel.close-ok")
                    channels[queue].send("channel.open")
                    channels[queue].send("basic.qos", prefetch_count=PREFETCH)
                due[queue] = now + AGAIN_S

    def _settle(self, held: list[tuple[RawChannel, int, str]]) -> None:
        for channel, tag, name in held:
            queue = self._consumed_from[channel.number - 1]
            fate = self.rng.random()
            if queue == MORTAL and fate < 0.6:
                self.book.settled(name, "rejected", is_over=False)
                channel.reject(tag, requeue=False)
            elif fate > 0.95:
                self.book.settled(name, "requeued", is_over=False)
                channel.reject(tag)
            else:
                self.book.settled(name, "acknowledged")
                channel.ack(tag)
        held.clear()


class Load:
    """All clients of a cluster. Publishers publish while it `flows`, consumers settle what they
    have while it `drains`."""

    def __init__(self, cluster: RunningCluster, seed: str) -> None:
        self.book = Book()
        self.over = threading.Event()
        self.flows = threading.Event()
        self.drains = threading.Event()
        plain = [f"plain.{name}" for name in cluster.nodes]
        self.published_to = [queue for queue in (*MIRRORED, *plain) if queue != GRAVES]
        self.consumed_from = [*MIRRORED, *plain]
        nodes = cluster.nodes.values()
        self.publishers = [Publisher(self, node, seed) for node in nodes]
        last = list(nodes)[-1]
        self._consumers = [Consumer(self, node, seed, of_all=node is last) for node in nodes]

    @property
    def _workers(self) -> Iterable[Worker]:
        return (*self.publishers, *self._consumers)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def end(self) -> None:
        self.flows.clear()
        self.over.set()
        for worker in self._workers:
            worker.join(10)

    def take_lost_and_found(self, node: ClusterProcess) -> int:
        """Empty it; how many of its messages nobody has had yet, and were confirmed."""
        found = 0
        client = Client(parse_url(node.url)).open()
        try:
            channel = client.channel()
            while (got := channel.get(LOST_AND_FOUND)) is not None:
                name = _name_in(got.body)
                if self.book.delivered(name, LOST_AND_FOUND, got["redelivered"], "the audit"):
                    message = self.book.messages[name]
                    found += message.verdict == "confirmed" and not message.settled
                    self.book.settled(name, f"found in {LOST_AND_FOUND}")
            client.close()
        finally:
            client.abandon()
        return found


def prepare(cluster: RunningCluster, *, plain_at_first: bool = False) -> None:
    """The policies and the queues. Queues without mirrors are one at each node, or all at the
    first one."""
    first = next(iter(cluster.nodes.values()))
    everywhere = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    two = {
        "ha-mode": "exactly",
        "ha-params": 2,
        "ha-sync-mode": "automatic",
        "ha-promote-on-failure": "when-synced",
    }
    logged = {**everywhere, "ha-replication": "log"}
    policies = (("ha", "^ha", everywhere), (SAFE, "^safe", two), ("log", "^log", logged))
    for name, pattern, definition in policies:
        body = {"pattern": pattern, "definition": definition}
        first.changes("policies", "/", name, body=body)
    for name, node in cluster.nodes.items():
        client = Client(parse_url((first if plain_at_first else node).url)).open()
        channel = client.channel()
        channel.declare(f"plain.{name}", durable=True)
        if node is first:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVES}
            arguments = {MORTAL: dead, QUORUM: {"x-queue-type": "quorum"}}
            for queue in MIRRORED:
                channel.declare(queue, durable=True, arguments=arguments.get(queue, {}))
        client.close()
        client.abandon()


def _name_in(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split(" ", 2)[:2])
