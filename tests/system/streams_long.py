"""Streams under faults: python -P tests/system/streams_long.py [--seed 1] [--rounds 10].

Runs an etcd and three nodes, or five with `--nodes 5`. A publisher at each of them publishes to all
streams with confirms, and readers at each of them read from the beginning, from the end and from
offsets between. In each round some of the faults of `chaos/faults.py` happen, or some of those
here. Then everything is healed, and it must hold that

- no offset was ever read with two bodies, by any reader at any node;
- each reader got the next offset every time, unless messages before were removed from the stream;
- no reader was cancelled;
- what was confirmed is in the stream, or was removed from its front;
- no message has two offsets, and those of one connection come in order;
- all nodes have the same messages in the end, as `warren store dump` lists them.

A round with complaints keeps its directory. Ends with 1 if there were complaints.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from chaos import faults  # noqa: E402
from chaos.checks import Logs  # noqa: E402
from chaos.faults import Scene  # noqa: E402
from chaos.load import Client  # noqa: E402
from running_cluster import ClusterProcess, RunningCluster, wait_until  # noqa: E402

from warren.compat_tests.broker import parse_url  # noqa: E402
from warren.compat_tests.methods import Method  # noqa: E402
from warren.compat_tests.raw_client import RawChannel  # noqa: E402
from warren.compat_tests.raw_connection import Silence, SocketClosed, Surprise  # noqa: E402
from warren.mgmt.ctl.errors import CtlError  # noqa: E402
from warren.mirror.definitions.codec import UnreadableDefinition, decode_definition  # noqa: E402

STREAM = {"x-queue-type": "stream"}
WHOLE, TINY, LARGE = "s.whole", "s.tiny", "s.large"
POLICIES = {
    TINY: {"max-length-bytes": 60_000, "stream-max-segment-size-bytes": 5_000},
    LARGE: {"max-length-bytes": 4_000_000, "stream-max-segment-size-bytes": 700_000},
}
WINDOW = 60
PATIENCE_S = 90.0
AGAIN_S = 0.3

faults.MIRRORED = (WHOLE, TINY, LARGE)  # type: ignore[assignment, attr-defined]


def stamp() -> str:
    now = time.time()
    return f"{time.strftime('%H:%M:%S', time.gmtime(now))},{int(now * 1000) % 1000:03}"


class Book:
    """What was published, confirmed and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.streams: dict[str, dict[int, str]] = {}
        self.offsets: dict[str, int] = {}
        self.published: dict[str, str] = {}
        self.confirmed: set[str] = set()
        self.history: dict[str, list[str]] = {}
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()

    def complain(self, text: str) -> None:
        with self._lock:
            self.complaints.append(f"{stamp()} {text}")

    def publishes(self, name: str, stream: str) -> None:
        self.history[name] = [f"{stamp()} published to {stream}"]
        self.published[name] = stream

    def answered(self, name: str, how: str) -> None:
        self.history[name].append(f"{stamp()} {how}")
        self.counts[how] += 1
        if how == "confirmed":
            self.confirmed.add(name)

    def read(self, stream: str, offset: int, body: bytes, reader: str) -> None:
        name = body[:60].split(b" .")[0].decode()
        with self._lock:
            self.counts["read"] += 1
            known = self.streams.setdefault(stream, {})
            before = known.get(offset)
            if before == name:
                return
            if before is not None:
                self.complaints.append(
                    f"{stamp()} {stream}: {offset} is {name} for {reader}, and was {before}: "
                    f"{self.history.get(before)} {self.history.get(name)}"
                )
                return
            known[offset] = name
            if self.published.get(name) != stream:
                self.complaints.append(f"{stamp()} {stream}: nobody published {name}")
                return
            self.history[name].append(f"{stamp()} at {offset} for {reader}")
            other = self.offsets.setdefault(name, offset)
            if other != offset:
                self.complaints.append(
                    f"{stamp()} {stream}: {name} is at {other} and {offset}: {self.history[name]}"
                )


class Worker(threading.Thread):
    """Works at a node until it is told to stop, over as many connections as it takes."""

    def __init__(self, load: Load, node: ClusterProcess, seed: str, kind: str) -> None:
        self.known_as = f"{kind}@{node.name.partition('@')[0]}"
        super().__init__(daemon=True, name=self.known_as)
        self.load, self.node, self.book = load, node, load.book
        self.rng = random.Random(f"{seed}/{self.known_as}")

    def run(self) -> None:
        while not self.load.over.is_set():
            try:
                if self.node.is_up and self.shall_work():
                    self._connected()
            except (OSError, Silence, SocketClosed, Surprise):
                pass
            except Exception:
                self.book.complain(f"{self.known_as}: {traceback.format_exc()}")
            time.sleep(AGAIN_S)

    def _connected(self) -> None:
        client = Client(parse_url(self.node.url))
        try:
            client.open()
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            self.work(client)
        finally:
            client.abandon()
            self.lost()

    def shall_work(self) -> bool:
        return True

    def lost(self) -> None:
        pass

    def work(self, client: Client) -> None:
        raise NotImplementedError


class Publisher(Worker):
    """Publishes to all streams in turns, with confirms."""

    def __init__(self, load: Load, node: ClusterProcess, seed: str) -> None:
        super().__init__(load, node, seed, "publisher")
        self.confirms = 0
        self.lives = 0
        self.open: dict[int, str] = {}
        self.number = 0

    def shall_work(self) -> bool:
        return self.load.flows.is_set()

    def lost(self) -> None:
        for name in self.open.values():
            self.book.answered(name, "lost the connection")
        self.open = {}

    def work(self, client: Client) -> None:
        self.lives += 1
        channel = client.channel()
        channel.call("confirm.select")
        self.number = 0
        burst = 0
        while self.load.flows.is_set():
            if len(self.open) < WINDOW:
                if burst <= 0:
                    burst = self.rng.choice((1, 1, 3, 20))
                    stream = self.rng.choice(self.load.streams)
                while burst > 0 and len(self.open) < WINDOW:
                    self._publish(channel, stream)
                    burst -= 1
            if not self._listen(client, 0.01):
                return
        deadline = time.monotonic() + PATIENCE_S
        while self.open:
            if not self._listen(client, 0.1):
                return
            if time.monotonic() > deadline:
                first = next(iter(self.open.values()))
                self.book.complain(f"{len(self.open)} were not answered, first {first}")
                return
        client.close()

    def _publish(self, channel: RawChannel, stream: str) -> None:
        self.number += 1
        name = f"{self.known_as} {self.lives} {self.number}"
        self.open[self.number] = name
        self.book.publishes(name, stream)
        fate = self.rng.random()
        size = self.rng.randrange(600)
        if fate < (0.1 if stream == LARGE else 0.003):
            size = self.rng.randrange(100_000, 300_000)
        mode: dict[str, Any] = self.rng.choice(({}, {"delivery_mode": 1}, {"delivery_mode": 2}))
        channel.publish(f"{name} .".encode().ljust(size, b"."), stream, mandatory=True, **mode)

    def _listen(self, client: Client, patience_s: float) -> bool:
        while (method := client.next_any(patience_s)) is not None:
            patience_s = 0.0
            if method.name in ("connection.close", "channel.close"):
                if "CONNECTION_FORCED" not in str(method):
                    self.book.complain(f"{self.known_as}: {method}")
                return False
            if method.name == "basic.return":
                name = method.body[:60].split(b" .")[0].decode()
                self.book.answered(name, "returned")
                self.book.complain(f"{name} was returned")
            elif method.name in ("basic.ack", "basic.nack"):
                last = method["delivery_tag"]
                tags = [t for t in self.open if t <= last] if method["multiple"] else [last]
                how = "confirmed" if method.name == "basic.ack" else "refused"
                self.confirms += how == "confirmed"
                for tag in tags:
                    self.book.answered(self.open.pop(tag), how)
        return True


class Position:
    """Where a reader is in a stream."""

    def __init__(self, stream: str, channel: RawChannel, begins: str, prefetch: int) -> None:
        self.stream, self.channel, self.begins, self.prefetch = stream, channel, begins, prefetch
        self.last: int | None = None
        self.held: list[int] = []
        self.tx = False


class Reader(Worker):
    """Reads all streams, each by a channel of its own, some with two consumers."""

    def __init__(self, load: Load, node: ClusterProcess, seed: str) -> None:
        super().__init__(load, node, seed, "reader")
        # Where to go on, by stream, after this node was gone; forgotten now and then.
        self._last: dict[str, int] = {}

    def work(self, client: Client) -> None:
        positions: dict[int, Position] = {}
        until = time.monotonic() + self.rng.choice((5, 20, 60, 600))
        for stream in self.load.streams:
            kinds = ["go on" if stream in self._last else "first", "next"]
            if self.rng.random() < 0.3:
                kinds.append("first")
            if self.rng.random() < 0.3:
                kinds.append("last")
            for kind in kinds:
                self._begin(client, stream, kind, positions)
        while not self.load.over.is_set() and time.monotonic() < until:
            method = client.next_any(0.05)
            if method is None:
                for position in positions.values():
                    self._settle(position)
                self._flow(positions)
                continue
            if method.name == "connection.close":
                text = str(method)
                if "320" not in text:
                    self.book.complain(f"{self.known_as}: {text}")
                return
            position = positions[method.channel]
            if method.name == "basic.deliver":
                self._got(position, method)
                if len(position.held) >= max(1, position.prefetch // 2):
                    self._settle(position)
            elif method.name in ("basic.cancel", "channel.close"):
                if not self.load.is_deleting:
                    self.book.complain(f"{self.known_as} {position.stream}: {method}")
                return
            elif method.name == "channel.flow-ok" or method.name == "tx.commit-ok":
                pass
        with suppress(Silence, SocketClosed, Surprise, OSError):
            client.close()

    def _begin(
        self, client: Client, stream: str, kind: str, positions: dict[int, Position]
    ) -> None:
        prefetch = self.rng.choice((1, 5, 100, 2000))
        begins: Any = kind
        if kind == "go on":
            begins = self._last[stream] + 1
        channel = client.channel()
        position = Position(stream, channel, kind, prefetch)
        if self.rng.random() < 0.2:
            channel.call("tx.select")
            position.tx = True
        channel.call("basic.qos", prefetch_count=prefetch)
        channel.send(
            "basic.consume", queue=stream, consumer_tag="r", arguments={"x-stream-offset": begins}
        )
        if kind == "go on":
            position.last = begins - 1
        positions[channel.number] = position
        method = client.next_method(channel.number, 30)
        if method.name != "basic.consume-ok":
            raise Surprise(str(method))
        self.book.counts[f"began {kind}"] += 1

    def _flow(self, positions: dict[int, Position]) -> None:
        if self.rng.random() < 0.02:
            position = self.rng.choice(list(positions.values()))
            position.channel.send("channel.flow", active=True)

    def _got(self, position: Position, method: Method) -> None:
        offset = method.properties["headers"]["x-stream-offset"]
        stream, last = position.stream, position.last
        who = f"{self.known_as} ({position.begins}, {position.prefetch}, {position.channel.number})"
        if method["redelivered"]:
            self.book.complain(f"{stream} {offset} is redelivered for {who}")
        self.book.read(stream, offset, method.body, who)
        if last is not None and offset != last + 1:
            if offset <= last or stream not in POLICIES:
                self.book.complain(f"{stream}: {who} got {offset} after {last}")
        if last is None and position.begins == "first" and stream not in POLICIES and offset:
            self.book.complain(f"{stream}: {who} began at {offset}")
        position.last = offset
        if position.begins in ("first", "go on"):
            if self.rng.random() < 0.0003:
                self._last.pop(stream, None)
            else:
                self._last[stream] = max(offset, self._last.get(stream, -1))
        position.held.append(method["delivery_tag"])

    def _settle(self, position: Position) -> None:
        if position.held and self.rng.random() < 0.7:
            position.channel.send("basic.ack", delivery_tag=position.held[-1], multiple=True)
            position.held.clear()
            if position.tx:
                position.channel.send("tx.commit")


class Load:
    def __init__(self, cluster: RunningCluster, seed: str) -> None:
        self.book = Book()
        self.over = threading.Event()
        self.flows = threading.Event()
        self.is_deleting = False
        self.streams = [WHOLE, TINY, LARGE]
        nodes = cluster.nodes.values()
        self.publishers = [Publisher(self, node, seed) for node in nodes]
        self.readers = [Reader(self, node, seed) for node in nodes]

    def start(self) -> None:
        for worker in (*self.publishers, *self.readers):
            worker.start()

    def end(self) -> None:
        self.flows.clear()
        self.over.set()
        for worker in (*self.publishers, *self.readers):
            worker.join(10)


def _try(node: ClusterProcess, method: str, *path: str, body: Any = None) -> str:
    try:
        node.does(method, *path, body=body)
    except (CtlError, OSError) as error:
        return f" (refused: {str(error)[:60]})"
    return ""


def rebalance(scene: Scene) -> str:
    node = scene.any_node()
    return f"{faults.short(node)}{_try(node, 'POST', 'rebalance', 'queues')}" if node else ""


def drain_and_revive(scene: Scene) -> str:
    said = faults.drain_leader(scene)
    scene.pause(0.3, 3.0)
    return said


def away_for_long(scene: Scene) -> str:
    nodes = scene.working
    if not nodes:
        return ""
    node = scene.rng.choice(nodes)
    said = scene.kill(node) if scene.rng.random() < 0.5 else scene.stop(node)
    scene.pause(4.0, 10.0)
    return said


def kill_two(scene: Scene) -> str:
    nodes = scene.working
    scene.rng.shuffle(nodes)
    said = "".join(scene.kill(node) for node in nodes[:2])
    scene.pause(0, 5)
    return said


def kill_two_then_swap(scene: Scene) -> str:
    """Two die; one of them comes back, and the third dies."""
    nodes = scene.working
    if len(nodes) < 3:
        return ""
    scene.rng.shuffle(nodes)
    one, two, three = nodes[:3]
    scene.kill(one)
    scene.pause(0, 3)
    scene.kill(two)
    scene.pause(0, 2)
    one.launch()
    one.wait_until_ready()
    scene.pause(0, 3)
    scene.kill(three)
    scene.pause(0, 3)
    two.launch()
    scene.pause(0, 5)
    return "".join(map(faults.short, (one, two, three)))


def kill_repeatedly(scene: Scene) -> str:
    """A node dies as soon as it is back: while it is synchronised."""
    node = faults._leader_or_any(scene)
    if node is None:
        return ""
    for _ in range(3):
        scene.kill(node)
        scene.pause(0, 3)
        node.launch()
        node.wait_until_ready()
        scene.pause(0, 1.0)
    return faults.short(node)


def other_limits(scene: Scene) -> str:
    node = scene.any_node()
    if node is None:
        return ""
    factor = scene.rng.choice((0.3, 1, 3))
    body = {"pattern": f"^{TINY}$", "apply-to": "queues"}
    limits = {key: int(value * factor) for key, value in POLICIES[TINY].items()}
    if scene.rng.random() < 0.5:
        limits["max-age"] = "5s"  # type: ignore[assignment]
    body["definition"] = limits  # type: ignore[assignment]
    return f"{factor}{_try(node, 'PUT', 'policies', '/', TINY, body=body)}"


FAULTS: tuple[Callable[[Scene], str], ...] = (
    *faults.FAULTS,
    faults.kill_leader,
    faults.kill_mirror,
    rebalance,
    rebalance,
    drain_and_revive,
    drain_and_revive,
    away_for_long,
    away_for_long,
    kill_two,
    kill_two_then_swap,
    kill_repeatedly,
    other_limits,
    other_limits,
)


def happen(scene: Scene, load: Load) -> str:
    known = FAULTS if scene.cluster.network is None else (*FAULTS, *faults.CUTS)
    said = []
    for _ in range(scene.rng.choice((1, 2, 2, 3, 4))):
        fault = scene.rng.choice(known)
        try:
            said.append(f"{fault.__name__} {fault(scene)}".strip())
        except AssertionError as error:
            said.append(f"{fault.__name__} FAILED {str(error)[-300:]}")
        if scene.rng.random() < 0.3:
            said.append(new_stream(scene, load))
        scene.pause(0.0, 1.0)
    scene.pause(0.0, 4.0)
    return ", ".join(said)


def new_stream(scene: Scene, load: Load) -> str:
    """Declare another stream, perhaps while a node is down."""
    node = scene.any_node()
    if node is None or len(load.streams) > 6:
        return "no new stream"
    name = f"s.new{len(load.streams)}"
    try:
        declare(node, name)
    except (OSError, Silence, SocketClosed, Surprise) as error:
        return f"{name} not declared: {str(error)[:80]}"
    load.streams.append(name)
    return f"{name} declared at {faults.short(node)}"


def declare(node: ClusterProcess, name: str) -> None:
    client = Client(parse_url(node.url))
    try:
        client.open()
        client.channel().declare(name, durable=True, arguments=STREAM)
        client.close()
    finally:
        client.abandon()


class Trial:
    def __init__(self, directory: Path, seed: int, cuts: bool, nodes: int) -> None:
        self.directory = directory
        names = "abcde"[:nodes]
        network = None
        if cuts:
            from cut_network import CutNetwork

            network = CutNetwork(*names)
        self.cluster = RunningCluster(directory, *names, network=network)
        self.scene = Scene(self.cluster)
        self.logs = Logs(self.cluster)
        self.seed = seed
        self.load: Load | None = None

    def start(self, first: int) -> None:
        self.cluster.start()
        node = self.cluster["a"]
        for name, definition in POLICIES.items():
            body = {"pattern": f"^{name}$", "apply-to": "queues", "definition": definition}
            node.changes("policies", "/", name, body=body)
        for number, name in enumerate((WHOLE, TINY, LARGE)):
            declare(self.cluster["abc"[number]], name)
        self.load = Load(self.cluster, f"{self.seed}/{first}")
        self.load.start()

    def play(self, number: int) -> tuple[str, list[str]]:
        load, scene = self.load, self.scene
        assert load is not None
        scene.rng = random.Random(f"{self.seed}/{number}")
        before = {one: one.confirms for one in load.publishers}
        load.flows.set()
        with suppress(AssertionError):
            wait_until(lambda: all(one.confirms > 10 + before[one] for one in load.publishers), 30)
        happened = happen(scene, load)
        scene.heal()
        complaints = self.rest(number)
        complaints += load.book.complaints + scene.complaints + self.logs.complaints()
        load.book.complaints, scene.complaints = [], []
        book = load.book
        counts = f"{dict(book.counts)}"
        return f"{happened}; {counts}", complaints

    def rest(self, number: int) -> list[str]:
        load = self.load
        assert load is not None
        before = {one: one.confirms for one in load.publishers}

        def waits(problem: Callable[[], list[str]]) -> list[str]:
            deadline = time.monotonic() + PATIENCE_S
            while said := problem():
                if time.monotonic() > deadline:
                    return [f"after {PATIENCE_S:g} s: {one}" for one in said]
                time.sleep(0.1)
            return []

        said = waits(
            lambda: [f"{p.name} no confirms" for p, n in before.items() if p.confirms == n]
        )
        if said:
            return said
        load.flows.clear()
        said = waits(lambda: [f"{p.name} not answered" for p in load.publishers if p.open])
        if said:
            return said
        said = waits(self.restless)
        if said:
            return said
        time.sleep(0.5)
        said = self.audit()
        if said or number % 3 == 2:
            said += self.compare_disks()
        return said

    def restless(self) -> list[str]:
        load = self.load
        assert load is not None
        said = []
        for node in self.cluster.nodes.values():
            try:
                rows = {row["name"]: row for row in node.asks("queues", "/")}
            except (CtlError, OSError) as error:
                said.append(f"{node.name}: {error}")
                continue
            for stream in load.streams:
                row = rows.get(stream, {})
                if row.get("state") != "running":
                    said.append(f"{node.name} {stream}: {row}")
        try:
            known = records(self.cluster)
        except OSError as error:
            return [str(error)]
        for stream in load.streams:
            record = known.get(stream)
            if record is None or len(record.in_sync) != len(self.cluster.nodes) - 1:
                said.append(f"{stream}: {record}")
        return said

    def audit(self) -> list[str]:
        """Read every stream at every node, and compare with what is known."""
        load = self.load
        assert load is not None
        book = load.book
        said = []
        for stream in load.streams:
            ends: dict[str, tuple[int, int]] = {}
            for name, node in self.cluster.nodes.items():
                try:
                    ends[name] = self.read_all(node, stream)
                except Exception:
                    said.append(f"{name} {stream}: {traceback.format_exc()}")
            if len(set(ends.values())) > 1:
                said.append(f"{stream} is read differently: {ends}")
            if not ends:
                continue
            first, end = next(iter(ends.values()))
            known = book.streams.get(stream, {})
            if first > 0 and stream not in POLICIES:
                said.append(f"{stream} begins at {first}")
            missing = [at for at in range(first, end) if at not in known]
            if missing:
                said.append(f"{stream}: nothing at {missing[:20]}")
            beyond = [at for at in known if at >= end]
            if beyond:
                said.append(f"{stream} ends at {end}, and was read at {sorted(beyond)[:20]}")
            if stream not in POLICIES:
                lost = [
                    name
                    for name in book.confirmed
                    if book.published[name] == stream and name not in book.offsets
                ]
                if lost:
                    said.append(f"{stream}: {len(lost)} confirmed are lost")
                    said += [f"  {name}: {book.history[name]}" for name in sorted(lost)[:5]]
            else:
                # What was confirmed lately cannot have been removed: nothing of the end is.
                last: dict[str, int] = {}
                for at in range(first, end):
                    if at in known:
                        life, _, n = known[at].rpartition(" ")
                        last[life] = min(last.get(life, 1 << 60), int(n))
                for name in book.confirmed:
                    if book.published[name] != stream or name in book.offsets:
                        continue
                    life, _, n = name.rpartition(" ")
                    if life in last and int(n) > last[life]:
                        said.append(f"{stream}: {name} is lost: {book.history[name]}")
            order: dict[str, int] = {}
            for at in sorted(known):
                life, _, n = known[at].rpartition(" ")
                if int(n) < order.get(life, 0):
                    said.append(f"{stream}: {known[at]} at {at} comes after {order[life]}")
                order[life] = int(n)
        return said

    def read_all(self, node: ClusterProcess, stream: str) -> tuple[int, int]:
        """The first offset, and the one behind the last."""
        assert self.load is not None
        client = Client(parse_url(node.url))
        try:
            client.open()
            channel = client.channel()
            channel.call("basic.qos", prefetch_count=500)
            channel.send("basic.consume", queue=stream, arguments={"x-stream-offset": "first"})
            assert client.next_method(channel.number, 20).name == "basic.consume-ok"
            first = last = -1
            while True:
                method = client.next_any(1.5)
                if method is None:
                    return first, last + 1
                assert method.name == "basic.deliver", method
                offset = method.properties["headers"]["x-stream-offset"]
                self.load.book.read(stream, offset, method.body, f"audit@{node.name}")
                assert last in (-1, offset - 1), (last, offset)
                if first < 0:
                    first = offset
                last = offset
                if offset % 100 == 0 or offset - first < 2:
                    channel.ack(method["delivery_tag"], multiple=True)
        finally:
            client.abandon()

    def compare_disks(self) -> list[str]:
        """Stop all nodes, compare what they have, and start them again."""
        assert self.load is not None
        said = []
        nodes = list(self.cluster.nodes.values())
        self.scene.rng.shuffle(nodes)
        for node in nodes:
            self.scene.stop(node)
        for stream in self.load.streams:
            dumps = {}
            for node in nodes:
                done = subprocess.run(
                    [
                        *(sys.executable, "-P", "-m", "warren", "store", "dump"),
                        *(str(node.data_directory), "--queue", stream, "--json", "--bodies"),
                    ],
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    said.append(f"{node.name} {stream}: {done.stdout[-300:]}{done.stderr[-300:]}")
                dumps[node.name] = done.stdout
            if len({strip(dump) for dump in dumps.values()}) > 1:
                for name, dump in dumps.items():
                    (self.directory / f"dump.{stream}.{name}").write_text(dump)
                lines = {name: len(dump.splitlines()) for name, dump in dumps.items()}
                said.append(f"{stream}: disks differ: {lines}")
            times = [arrivals(dump) for dump in dumps.values()]
            for at in times[0]:
                seen = [there[at] for there in times if at in there]
                if max(seen) - min(seen) > 20:
                    said.append(f"{stream}: {at} arrived at {seen}")
                    break
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_ready()
        return said

    def end(self) -> None:
        if self.load is not None:
            self.load.end()
        self.scene.thaw()
        self.cluster.end()


def strip(dump: str) -> str:
    rows = [json.loads(line) for line in dump.splitlines()]
    return "\n".join(f"{row['position']} {row['body']} {row['damage']}" for row in rows)


def arrivals(dump: str) -> dict[int, float]:
    rows = [json.loads(line) for line in dump.splitlines()]
    return {row["position"]: row["enqueued_us"] / 1e6 for row in rows}


ASK_ETCD = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], sys.argv[2].encode(), timeout=5) as answer:
    print(answer.read().decode())
"""


def records(cluster: RunningCluster) -> dict[str, Any]:
    """The definitions of queues, from etcd, which may be in a network of its own."""
    every = base64.b64encode(b"\0").decode()
    asked = json.dumps({"key": every, "range_end": every})
    command = cluster.network.etcd.command if cluster.network is not None else ()
    url = f"{cluster.etcd.url}/v3/kv/range"
    done = subprocess.run(
        [*command, sys.executable, "-c", ASK_ETCD, url, asked], capture_output=True, text=True
    )
    if done.returncode:
        raise OSError(done.stderr[-200:])
    found: dict[str, Any] = {}
    for kv in json.loads(done.stdout).get("kvs", []):
        key, value = base64.b64decode(kv["key"]), base64.b64decode(kv["value"])
        _, there, path = key.partition(b"/definitions/")
        if not there:
            continue
        with suppress(UnreadableDefinition):
            change = decode_definition(path, value, 1)
            if change.key[0] == "queue" and change.stored is not None:
                found[change.key[2]] = change.stored.record
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--cuts", action="store_true")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    trial: Trial | None = None
    for number in range(chosen.first, chosen.first + chosen.rounds):
        began = time.monotonic()
        happened = "it did not get so far"
        complaints: list[str] = []
        try:
            if trial is None:
                directory = Path(tempfile.mkdtemp(prefix="warren-streams-", dir=chosen.dir))
                trial = Trial(directory, chosen.seed, chosen.cuts, chosen.nodes)
                trial.start(number)
            happened, complaints = trial.play(number)
        except Exception:
            complaints.append(traceback.format_exc())
            if trial is not None and trial.load is not None:
                complaints += trial.load.book.complaints
        except BaseException:
            if trial is not None:
                trial.end()
            raise
        took = time.monotonic() - began
        verdict = f"{len(complaints)} COMPLAINTS" if complaints else "ok"
        print(f"seed {chosen.seed} round {number}: {happened}; {took:.1f} s, {verdict}", flush=True)
        if complaints:
            failed += 1
            print(*complaints[:40], sep="\n")
            assert trial is not None
            trial.end()
            print(f"kept: {trial.directory}", flush=True)
            trial = None
    if trial is not None:
        trial.end()
        shutil.rmtree(trial.directory)
    print(f"{chosen.rounds} rounds, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
