"""Snapshots beside a broker that works: is what they have right, and is all of it there?

    python benchmarks/spark_chaos.py [-s 60] [--directory DIR]

Starts `warren server` in a directory of its own. One client publishes to three queues, another
consumes and keeps every 97th message for a while, so that files of the log become mostly dead, are
written anew and go. Meanwhile another process takes snapshots and reads them, one after the other.
Bodies say which message they are and have their own SHA-256. For each snapshot, from what the
clients know:

- every row is a message that was published, whole, and none is there twice;
- every message confirmed before the snapshot and not acknowledged when it was read is there.

In the end publishing stops, and the last snapshot must have as many messages as the broker counts,
ready and unacknowledged. Prints one JSON line; fails unless all of that is so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from amqp_socket import AmqpSocket, method, persistent_publish
from restart import Server

from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector, plan_units
from warren.spark_export.snapshot.snapshot import Snapshot, create

QUEUES = ("orders", "0123", "a=b")
BATCH = 300
"""Messages published between two waits for their confirms."""

LARGE_EVERY = 40
LARGE_BYTES = 6000
SMALL_BYTES = 2500
KEPT_EVERY = 97
KEPT_MAX = 400
"""Messages of each queue a consumer has and does not acknowledge yet."""

ACK_EVERY = 100
CONFIG = "msg_store_file_size_limit = 1048576\n"
"""Small files: more of them go."""

HEAD = struct.Struct(">BQ")
OPTIONS = parse_options({"mode": "FAILFAST", "columns": "seq,body"})
SCHEMA = pa.schema([("seq", pa.int64()), ("body", pa.binary())])
POLL_S = 0.05
PATIENCE_S = 60.0


class Progress(NamedTuple):
    """How far one queue is: numbers below `confirmed` are on disk, those below `received` were
    delivered, and of these all but the `kept` are acknowledged."""

    confirmed: int
    received: int
    kept: frozenset[int]


class Broker(Server):
    """The broker, and what it is asked."""

    def __init__(self, directory: Path) -> None:
        config = directory / "warren.conf"
        config.write_text(CONFIG, "utf-8")
        super().__init__(directory, 0, "--config", str(config))
        self.data_directory = directory / "data"
        self.port, _ = self.wait_until_ready()

    def counts(self) -> dict[str, int]:
        """Ready and unacknowledged messages by queue."""
        command = [sys.executable, "-P", "-m", "warren", "ctl", "--data-dir"]
        command += [str(self.data_directory), "list_queues", "name", "messages"]
        output = subprocess.run(
            [*command, "--formatter", "json"], check=True, capture_output=True
        ).stdout
        return {row["name"]: row["messages"] for row in json.loads(output)}

    def log_files(self) -> set[str]:
        return set(os.listdir(self.data_directory / "store" / "log"))

    def end(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


def body_of(queue: int, number: int) -> bytes:
    size = SMALL_BYTES if number % LARGE_EVERY else LARGE_BYTES
    content = HEAD.pack(queue, number) + b"%d." % number * (size // 8)
    return sha256(content).digest() + content


def read_body(body: bytes) -> tuple[int, int] | None:
    """Queue and number; None when it is not what was published."""
    if len(body) < 32 + HEAD.size or sha256(body[32:]).digest() != body[:32]:
        return None
    queue, number = HEAD.unpack_from(body, 32)
    return queue, number


class Publisher:
    """Publishes to all queues in turn. `confirmed`: numbers below are on disk, by queue."""

    def __init__(self, port: int) -> None:
        self.confirmed = [0] * len(QUEUES)
        self._socket = AmqpSocket("127.0.0.1", port)
        for name in QUEUES:
            self._socket.declare(name, {})
        self._socket.call(method(85, 10, b"\0"), 85, 11)
        self._tag = 0

    def publish(self) -> None:
        """One batch to each queue; returns when it is confirmed."""
        for queue, name in enumerate(QUEUES):
            first = self.confirmed[queue]
            bodies = [body_of(queue, number) for number in range(first, first + BATCH)]
            self._socket.socket.sendall(b"".join(persistent_publish(name, one) for one in bodies))
            self._wait(BATCH)
            self.confirmed[queue] = first + BATCH

    def _wait(self, count: int) -> None:
        open_tags = set(range(self._tag + 1, self._tag + count + 1))
        self._tag += count
        while open_tags:
            tag, multiple = struct.unpack_from(">QB", self._socket.expect(60, 80), 4)
            open_tags = {at for at in open_tags if at > tag} if multiple else open_tags - {tag}

    def close(self) -> None:
        self._socket.close()


class Consumer:
    """Consumes one queue. `received` counts, and `kept` are those it has not acknowledged."""

    def __init__(self, port: int, queue: int) -> None:
        import pika

        self.received = 0
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, int]] = deque()
        self._waiting: list[tuple[int, int]] = []
        self._stopping = False
        self._queue = queue
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=2 * KEPT_MAX)
        self._channel.basic_consume(QUEUES[queue], self._deliver)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def state(self) -> tuple[int, frozenset[int]]:
        """How many messages were received, and which of them are not acknowledged."""
        with self._lock:
            held = [number for number, _ in (*self._kept, *self._waiting)]
            return self.received, frozenset(held)

    def stop(self) -> None:
        self._connection.add_callback_threadsafe(self._stop)
        self._thread.join()
        self._connection.close()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            self._connection.process_data_events(0.1)

    def _deliver(self, channel: object, deliver: object, properties: object, body: bytes) -> None:
        tag: int = deliver.delivery_tag  # type: ignore[attr-defined]
        told = read_body(body)
        assert told is not None and told[0] == self._queue, "a message that was never published"
        number = told[1]
        acked: list[int] = []
        with self._lock:
            assert number == self.received, f"message {number} where {self.received} is next"
            self.received += 1
            if number % KEPT_EVERY:
                self._waiting.append((number, tag))
            else:
                self._kept.append((number, tag))
                if len(self._kept) > KEPT_MAX:
                    acked.append(self._kept.popleft()[1])
            if len(self._waiting) >= ACK_EVERY:
                acked += [at for _, at in self._waiting]
                self._waiting = []
        for one in acked:
            self._channel.basic_ack(one)


def take(data_directory: Path) -> tuple[Snapshot, float]:
    """A snapshot, and how many seconds it took."""
    began = time.perf_counter()
    snapshot = create(data_directory, QueueSelector())
    return snapshot, time.perf_counter() - began


class Findings(NamedTuple):
    rows: int
    wrong: int
    twice: int
    missing: int


def check(snapshot: Snapshot, progress: list[Progress]) -> Findings:
    """`progress`: confirmed before the snapshot, received and kept when it was read."""
    rows = wrong = twice = missing = 0
    found: list[set[int]] = [set() for _ in QUEUES]
    whole = [(queue, Interval()) for queue in snapshot.queues]
    for unit in plan_units(snapshot, whole, max_bytes=32 << 20, min_units=1):
        for batch in decode_unit(unit, SCHEMA, OPTIONS):
            rows += batch.num_rows
            for body in batch.column("body").to_pylist():
                told = None if body is None else read_body(body)
                if told is None or QUEUES[told[0]] != unit.queue:
                    wrong += 1
                    continue
                twice += told[1] in found[told[0]]
                found[told[0]].add(told[1])
    for queue, known in enumerate(progress):
        wanted = set(range(known.received, known.confirmed))
        wanted |= {number for number in known.kept if number < known.confirmed}
        missing += len(wanted - found[queue])
    return Findings(rows, wrong, twice, missing)


def run(directory: Path, go_on: Callable[[int, int], bool]) -> dict[str, object]:
    """Until `go_on` says no, which is told how many batches and snapshots there were."""
    server = Broker(directory)
    consumers: list[Consumer] = []
    failures: list[BaseException] = []
    batches, over = 0, threading.Event()
    worker: Executor | None = None
    try:
        publisher = Publisher(server.port)
        consumers = [Consumer(server.port, queue) for queue in range(len(QUEUES))]

        def publish() -> None:
            nonlocal batches
            try:
                while not over.is_set():
                    publisher.publish()
                    batches += 1
            except BaseException as failure:
                failures.append(failure)

        publishing = threading.Thread(target=publish)
        publishing.start()
        worker = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        # Imports are no part of what is measured.
        worker.submit(take, server.data_directory).result()[0].release()
        pins_s: list[float] = []
        totals = Findings(0, 0, 0, 0)
        gone = damaged = 0
        try:
            while not failures and go_on(batches, len(pins_s)):
                confirmed = list(publisher.confirmed)
                snapshot, pin_s = worker.submit(take, server.data_directory).result()
                pins_s.append(pin_s)
                totals = _read(worker, snapshot, confirmed, consumers, totals)
                gone += len(set(os.listdir(snapshot.directory / "log")) - server.log_files())
                damaged += snapshot.damage
                snapshot.release()
        finally:
            over.set()
            publishing.join()
        if failures:
            raise failures[0]
        _wait_until_received(consumers, publisher.confirmed)
        counts = server.counts()
        counted: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        # What was acknowledged a moment ago may not be in the journal yet.
        while counted != counts and time.monotonic() < deadline:
            with create(server.data_directory, QueueSelector()) as last:
                totals = _read(worker, last, list(publisher.confirmed), consumers, totals)
                counted = {queue.name: queue.rows for queue in last.queues}
        publisher.close()
        return {
            "snapshots": len(pins_s) + 1,
            "published": sum(publisher.confirmed),
            "rows_checked": totals.rows,
            "wrong": totals.wrong,
            "twice": totals.twice,
            "missing": totals.missing,
            "damaged": damaged,
            "pin_ms_median": round(1000 * statistics.median(pins_s), 1),
            "pin_ms_max": round(1000 * max(pins_s), 1),
            "files_gone_after_pinning": gone,
            "counts_snapshot": counted,
            "counts_broker": counts,
        }
    finally:
        if worker is not None:
            worker.shutdown()
        for consumer in consumers:
            consumer.stop()
        server.end()


def _read(
    worker: Executor,
    snapshot: Snapshot,
    confirmed: list[int],
    consumers: list[Consumer],
    totals: Findings,
) -> Findings:
    """What a snapshot has that is there, beside what was `confirmed` before it was taken."""
    known = [
        Progress(count, *consumer.state())
        for count, consumer in zip(confirmed, consumers, strict=True)
    ]
    found = worker.submit(check, snapshot, known).result()
    return Findings(*(one + more for one, more in zip(totals, found, strict=True)))


def _wait_until_received(consumers: list[Consumer], confirmed: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while [consumer.received for consumer in consumers] != confirmed:
        if time.monotonic() > deadline:
            raise SystemExit("the consumers do not come to an end")
        time.sleep(POLL_S)


def is_good(result: dict[str, object]) -> bool:
    none = all(not result[name] for name in ("wrong", "twice", "missing", "damaged"))
    return none and result["counts_snapshot"] == result["counts_broker"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-s", "--seconds", type=float, default=60.0)
    parser.add_argument("--directory", type=Path, help="where to make a directory for the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-chaos-", dir=options.directory) as path:
        deadline = time.monotonic() + options.seconds
        result = run(Path(path), lambda batches, snapshots: time.monotonic() < deadline)
    print(json.dumps(result))
    if not is_good(result):
        raise SystemExit("the snapshots are not right")


if __name__ == "__main__":
    main()
