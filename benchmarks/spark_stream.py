"""A queue followed as a stream: does Spark keep up, how late is it, and is every message there?

    python benchmarks/spark_stream.py [-s 60] [-r 10000] [--body 200] [--directory DIR]

Starts `warren server` in a directory of its own, and publishes persistent messages at a steady
rate, with confirms. Spark (local[2]) follows the queue into Parquet meanwhile, by a named cursor,
batch after batch. Every body says which message it is and when it was published. Lateness is from
there to the end of the batch that wrote it. In the end each message must be in the files once.
Prints one JSON line; fails unless that is so.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import threading
import time
import warnings
from bisect import bisect_right
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from amqp_socket import AmqpSocket, method, persistent_publish
from local_spark import new_spark
from spark_chaos import Broker

import warren.spark_export

QUEUE = "followed"
TICK_S = 0.02
"""The publisher sends what is due so often."""

HEAD = struct.Struct(">Qd")
UNCONFIRMED_MAX = 20_000
WARM_MESSAGES = 2_000
"""Published, and waited for, before anything is measured: Spark's first batches take seconds."""


class Publisher:
    """Publishes at a rate. `sent_at`: when each message was."""

    def __init__(self, port: int, body_bytes: int) -> None:
        self.sent_at: list[float] = []
        self._body_bytes = body_bytes
        self._socket = AmqpSocket("127.0.0.1", port)
        self._socket.declare(QUEUE, {})
        self._socket.call(method(85, 10, b"\0"), 85, 11)
        self._confirmed = 0

    def publish(self, count: int) -> None:
        now = time.time()
        first = len(self.sent_at)
        bodies = (
            HEAD.pack(number, now).ljust(self._body_bytes, b".")
            for number in range(first, first + count)
        )
        self._socket.socket.sendall(b"".join(persistent_publish(QUEUE, body) for body in bodies))
        self.sent_at += [now] * count
        if len(self.sent_at) - self._confirmed > UNCONFIRMED_MAX:
            self._wait(len(self.sent_at) - UNCONFIRMED_MAX)

    def publish_for(self, seconds: float, rate: int) -> None:
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * rate) - sent
            if due:
                self.publish(due)
                sent += due
            time.sleep(TICK_S)

    def finish(self) -> None:
        """Return when all is confirmed."""
        self._wait(len(self.sent_at))

    def _wait(self, count: int) -> None:
        while self._confirmed < count:
            tag, multiple = struct.unpack_from(">QB", self._socket.expect(60, 80), 4)
            self._confirmed = tag if multiple else self._confirmed + 1

    def close(self) -> None:
        self._socket.close()


def follow(directory: Path, data: Path) -> tuple[Any, Any]:
    """Spark, and the query that is under way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = new_spark(directory)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    warren.spark_export.register(spark, pushdown=False)
    query = (
        spark.readStream.format("warren")
        .option("queue", QUEUE)
        .option("columns", "queue,seq,body")
        .option("cursor", "benchmark")
        .load(str(data))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start(str(directory / "output"))
    )
    return spark, query


def wait_for(query: Any, rows: int) -> None:
    """Return when the query has written so many."""
    while sum(one["numInputRows"] for one in query.recentProgress) < rows:
        if not query.isActive:
            query.awaitTermination()
            raise SystemExit("the query has ended")
        time.sleep(0.1)


def lateness(progress: list[Any], sent_at: list[float]) -> tuple[list[float], list[int]]:
    """The seconds from each publish to the end of its batch, and the rows of each batch."""
    batches = [one for one in progress if one["numInputRows"]]
    ends = [
        datetime.fromisoformat(one["timestamp"]).timestamp()
        + one["durationMs"]["triggerExecution"] / 1000
        for one in batches
    ]
    rows = [one["numInputRows"] for one in batches]
    upto = list(accumulate(rows))
    late = [
        ends[bisect_right(upto, number)] - sent_at[number]
        for number in range(WARM_MESSAGES, len(sent_at))
    ]
    return late, rows


def check(output: Path, count: int) -> tuple[int, int]:
    """How many rows there are in the files, and how many messages; Spark's log names the files."""
    numbers: list[int] = []
    for path in output.glob("*.parquet"):
        for body in pq.read_table(path, columns=["body"]).column("body").to_pylist():
            numbers.append(HEAD.unpack_from(body)[0])
    return len(numbers), len(set(numbers) & set(range(count)))


def run(directory: Path, seconds: float, rate: int, body_bytes: int) -> dict[str, object]:
    server = Broker(directory)
    spark = None
    try:
        publisher = Publisher(server.port, body_bytes)
        publisher.publish(WARM_MESSAGES)
        publisher.finish()
        spark, query = follow(directory, server.data_directory)
        wait_for(query, WARM_MESSAGES)
        began = time.monotonic()
        thread = threading.Thread(target=publisher.publish_for, args=(seconds, rate))
        thread.start()
        thread.join()
        publisher.finish()
        took_s = time.monotonic() - began
        count = len(publisher.sent_at)
        wait_for(query, count)
        progress = list(query.recentProgress)
        query.stop()
        publisher.close()
    finally:
        if spark is not None:
            spark.stop()
        server.end()
    late, rows = lateness(progress, publisher.sent_at)
    written, messages = check(directory / "output", count)
    late.sort()
    return {
        "published": count,
        "published_per_s": round((count - WARM_MESSAGES) / took_s),
        "rows": written,
        "messages": messages,
        "batches": len(rows),
        "rows_a_batch": round(sum(rows) / len(rows)),
        "late_s_p50": round(late[len(late) // 2], 2),
        "late_s_p99": round(late[len(late) * 99 // 100], 2),
        "late_s_max": round(late[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-s", "--seconds", type=float, default=60.0)
    parser.add_argument("-r", "--rate", type=int, default=10_000, help="messages a second")
    parser.add_argument("--body", type=int, default=200, help="octets of a body")
    parser.add_argument("--directory", type=Path, help="where to make a directory for the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-stream-", dir=options.directory) as path:
        result = run(Path(path), options.seconds, options.rate, max(options.body, HEAD.size))
    print(json.dumps(result))
    if not result["rows"] == result["messages"] == result["published"]:
        raise SystemExit("not every message is there once")


if __name__ == "__main__":
    main()
