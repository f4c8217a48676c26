"""From end to end exactly once: Spark's sink into a queue that takes each message id once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from broker_channel import open_channel
from pika.adapters.blocking_connection import BlockingChannel
from pinned_messages import bodies_of
from server_process import ServerProcess
from sink_driver import start_publishing

import warren.spark_export
from warren import Broker
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import check
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW = {"x-message-deduplication-window": 20_000}
ARGUMENTS = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]
PATIENCE_S = 120


def test_ids_are_no_messages_for_readers_of_the_store(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker, open_channel(broker) as channel:
        channel.queue_declare("q", durable=True, arguments=WINDOW)
        for message_id in "abac":
            properties = pika.BasicProperties(delivery_mode=2, message_id=message_id)
            channel.basic_publish("", "q", message_id.encode(), properties)
        with create(tmp_path / "data", QueueSelector()) as snapshot:
            assert snapshot.rows == 3
            found = bodies_of(snapshot, "/", "q")
            assert [body for _, body in sorted(found.items())] == [b"a", b"b", b"c"]
    report = check(RealFileSystem(), tmp_path / "data", pause=time.sleep)
    assert [(at.name, at.messages) for at in report.queues] == [("q", 3)]


FILES, ROWS = 2, 1500


class Publishing:
    """A broker with two queues of all messages, one of which takes ids once; and the files."""

    def __init__(self, directory: Path, worker_python: str) -> None:
        self._directory = directory
        self._worker_python = worker_python
        self._checkpoint = directory / "checkpoint"
        self._log = directory / "driver-log"
        self._files = directory / "files"
        self._files.mkdir()
        for number in range(FILES):
            rows = range(number * ROWS, (number + 1) * ROWS)
            text = "".join(f"{row}\n" for row in rows)
            (self._files / f"{number}.txt").write_text(text, encoding="ascii")
        self.server = ServerProcess(ARGUMENTS, directory)

    def declare(self) -> None:
        with self.channel() as channel:
            channel.exchange_declare("all", "fanout", durable=True)
            for name, arguments in (("once", WINDOW), ("plain", {})):
                channel.queue_declare(name, durable=True, arguments=arguments)
                channel.queue_bind(name, "all")

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        parameters = pika.URLParameters(self.server.url)
        parameters.heartbeat = 0
        with pika.BlockingConnection(parameters) as connection:
            yield connection.channel()

    def start(self, spark: SparkSession) -> StreamingQuery:
        told = map(str, (self._files, self._checkpoint, self.server.url))
        return start_publishing(spark, *told)

    def start_driver(self) -> subprocess.Popen[bytes]:
        """A process with a Spark of its own."""
        driver = self._directory / "driver"
        driver.mkdir()
        script = Path(__file__).parents[2] / "support" / "sink_driver.py"
        told = [driver, self._worker_python, self._files, self._checkpoint, self.server.url]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(script), *map(str, told)],
                cwd=driver,
                stderr=log,
                stdout=log,
                start_new_session=True,
                env=os.environ,
            )

    def wait_for(self, count: int, goes_on: Callable[[], bool]) -> None:
        """Return when so many have arrived in the plain queue."""
        deadline = time.monotonic() + PATIENCE_S
        with self.channel() as channel:
            while channel.queue_declare("plain", passive=True).method.message_count < count:
                assert goes_on() and time.monotonic() < deadline, self._log.read_text()
                # To ask without a pause would take a core from Spark.
                time.sleep(0.05)

    def restart_broker(self) -> None:
        self.server.kill()
        self.server = ServerProcess(ARGUMENTS, self._directory)

    def drain(self, queue: str) -> Counter[int]:
        with self.channel() as channel:
            count = channel.queue_declare(queue, passive=True).method.message_count
            found: Counter[int] = Counter()
            for _, _, body in channel.consume(queue, auto_ack=True):
                found[int(body)] += 1
                if found.total() == count:
                    break
        return found


def end(driver: subprocess.Popen[bytes]) -> None:
    """With the JVM and the workers, which are of its group."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.timeout(400)
def test_spark_and_the_broker_are_killed_in_turn_and_each_message_is_there_once(
    spark: SparkSession, tmp_path: Path, worker_python: str
) -> None:
    publishing = Publishing(tmp_path, worker_python)
    driver = None
    try:
        publishing.declare()
        killed = driver = publishing.start_driver()
        publishing.wait_for(300, lambda: killed.poll() is None)
        end(driver)
        # The same batch once more; this time the broker goes in the middle of it.
        warren.spark_export.register(spark, pushdown=False)
        query = publishing.start(spark)
        publishing.wait_for(900, lambda: query.isActive)
        publishing.restart_broker()
        with pytest.raises(Exception, match="PublishFailed"):
            query.awaitTermination()
        publishing.start(spark).awaitTermination()
        plain, once = publishing.drain("plain"), publishing.drain("once")
    finally:
        if driver is not None:
            end(driver)
        publishing.server.kill()
    assert once == Counter(range(FILES * ROWS))
    assert plain.keys() == once.keys() and plain.total() > once.total() + 500
