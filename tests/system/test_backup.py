"""Backups beside a node under load, and nodes that start from them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from api_client import ApiClient
from warren_command import run_warren

from warren import Broker
from warren.backup.archive import Archive
from warren.backup.restore import restore
from warren.compat_tests.raw_client import RawClient
from warren.mgmt.restored_queues import restore_aside
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import check

Start = Callable[..., Any]
Connect = Callable[..., RawClient]

SMALL = "msg_store_file_size_limit = 65536\n"
"""Log files are combined and go all the time."""

PERSISTENT = pika.BasicProperties(delivery_mode=2)

BACKUPS = 6


class Load:
    """Publishes each number to queue `first`, and when that is confirmed to `second`; and consumes
    most of what is in a third queue as fast as it comes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed = -1
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish),
            threading.Thread(target=self._churn),
        ]
        self._started = threading.Barrier(3)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for queue in ("first", "second"):
                channel.queue_declare(queue, durable=True)
            self._started.wait(30)
            number = 0
            while not self._stop.is_set():
                for queue in ("first", "second"):
                    body = b"%d " % number + bytes(300)
                    channel.basic_publish("", queue, body, PERSISTENT)
                self.confirmed = number
                number += 1

    def _churn(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.queue_declare("churned", durable=True)
            self._started.wait(30)
            while not self._stop.is_set():
                for _ in range(50):
                    channel.basic_publish("", "churned", bytes(2000), PERSISTENT)
                for method, _, _ in channel.consume("churned", inactivity_timeout=0.1):
                    if method is None:
                        break
                    channel.basic_ack(method.delivery_tag)
                channel.cancel()


def numbers(client: RawClient, queue: str) -> list[int]:
    channel = client.channel()
    found = []
    while (message := channel.get(queue)) is not None:
        found.append(int(message.body.split(b" ")[0]))
    return found


def test_a_backup_has_one_moment_of_a_node_under_load(
    start_server: Start, connect: Connect, tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data", config=SMALL)
    archive = Archive.open(tmp_path / "backups", create=True)
    before = []
    with Load(server.url) as load:
        for _ in range(BACKUPS):
            before.append(load.confirmed)
            archive.create(tmp_path / "data")
    server.kill()

    made = archive.backups()
    assert len(made) == BACKUPS and made[-1].new_bytes < made[-1].size
    for number, (backup, confirmed) in enumerate(zip(made, before, strict=True)):
        directory = tmp_path / f"restored-{number}"
        restore(archive, backup, directory)
        report = check(RealFileSystem(), directory, pause=lambda seconds: None)
        assert not report.damage, report
        if number not in (0, BACKUPS - 1):
            continue
        client = connect(start_server("--node-name", "another@host", data_dir=directory))
        first, second = numbers(client, "first"), numbers(client, "second")
        assert first == list(range(len(first))) and second == list(range(len(second)))
        # Everything that was confirmed is there, and of the last one perhaps the first half.
        assert len(second) > confirmed
        assert len(second) <= len(first) <= len(second) + 1


def test_a_node_that_has_stopped_is_backed_up_as_it_is(
    start_server: Start, connect: Connect, tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    channel.publish(b"0 ", "q", delivery_mode=2)
    assert channel.confirms(1) == [("ack", 1)]
    server.terminate()
    archive = Archive.open(tmp_path / "backups", create=True)
    restore(archive, archive.create(tmp_path / "data"), tmp_path / "restored")
    assert json.loads((tmp_path / "restored/identity.json").read_text()) == json.loads(
        (tmp_path / "data/identity.json").read_text()
    )
    client = connect(start_server(data_dir=tmp_path / "restored"))
    message = client.channel().get("q")
    # It stopped in order: nobody had it.
    assert message is not None and not message["redelivered"]


def restored_queues(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_warren("restore-queues", *arguments)


def test_chosen_queues_are_brought_into_a_broker_that_runs(
    connect: Connect, tmp_path: Path
) -> None:
    """They come behind what is there; a queue that is not there is declared as it was."""
    archive = Archive.open(tmp_path / "backups", create=True)
    with Broker(data_dir=tmp_path / "data", http_port=0) as broker:
        channel = connect(broker).channel()
        channel.call("confirm.select")
        limited = {"x-max-length": 500}
        queues = ("orders.eu", "orders.us", "other")
        for queue in queues:
            channel.declare(queue, durable=True, arguments=limited if queue == queues[0] else {})
        for queue in queues:
            for number in range(300):
                channel.publish(b"%d" % number, queue, delivery_mode=2)
        channel.confirms(900)
        backup = archive.create(tmp_path / "data")
        channel.call("queue.delete", queue="orders.eu")
        assert len(channel.bodies("orders.us")) == 300
        channel.publish(b"newer", "orders.us", delivery_mode=2)
        channel.confirms(1)
        channel.call("queue.purge", queue="other")

        target = f"http://guest:guest@127.0.0.1:{broker.http_port}"
        done = restored_queues(tmp_path / "backups", target, "--queue", "orders.*")
        assert done.returncode == 0, done
        assert "600 moved" in done.stdout
        expected = [b"%d" % number for number in range(300)]
        assert channel.bodies("orders.eu") == expected
        assert channel.bodies("orders.us") == [b"newer", *expected]
        assert channel.ready("other") == 0
        # It has the arguments it had.
        channel.declare("orders.eu", durable=True, arguments=limited)
    assert not archive.verify(backup)


def test_what_a_broker_does_not_take_is_kept_and_brought_over_later(
    connect: Connect, tmp_path: Path
) -> None:
    archive = Archive.open(tmp_path / "backups", create=True)
    through = tmp_path / "through"
    with Broker(data_dir=tmp_path / "data", http_port=0) as broker:
        channel = connect(broker).channel()
        channel.call("confirm.select")
        channel.declare("q", durable=True)
        for number in range(50):
            channel.publish(b"%d" % number, "q", delivery_mode=2)
        channel.confirms(50)
        archive.create(tmp_path / "data")
        target = f"http://guest:guest@127.0.0.1:{broker.http_port}"
        broker.set_policy("full", "q", {"max-length": 70, "overflow": "reject-publish"})
        arguments = (tmp_path / "backups", target, "--queue", "q", "--through", through)
        done = restored_queues(*arguments)
        assert done.returncode == 1 and str(through) in done.stdout, done
        assert channel.ready("q") == 70
        broker.clear_policy("full")
        done = restored_queues(*arguments)
        assert done.returncode == 0, done
        assert channel.bodies("q") == [b"%d" % number for number in range(50)] * 2


def test_shovels_of_a_backup_take_nothing_elsewhere(connect: Connect, tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "backups", create=True)
    with Broker() as elsewhere:
        port = elsewhere.port
    with Broker(data_dir=tmp_path / "data", http_port=0) as broker:
        channel = connect(broker).channel()
        channel.call("confirm.select")
        channel.declare("q", durable=True)
        for number in range(50):
            channel.publish(b"%d" % number, "q", delivery_mode=2)
        channel.confirms(50)
        shovel = {
            "src-uri": "amqp://",
            "src-queue": "q",
            "dest-uri": f"amqp://127.0.0.1:{port}",
            "dest-queue": "leak",
            "reconnect-delay": 3600,
        }
        put = ApiClient(broker).put("/parameters/shovel/%2F/away", {"value": shovel})
        assert put[0] == 201, put
        archive.create(tmp_path / "data")
    with Broker(port=port) as elsewhere, Broker(http_port=0) as target:
        url = f"http://guest:guest@127.0.0.1:{target.http_port}"
        done = restored_queues(tmp_path / "backups", url, "--queue", "q")
        assert done.returncode == 0 and "50 moved" in done.stdout, done
        assert elsewhere.queue("leak") is None
        target.wait_until(queue="q", ready=50)


def test_messages_leave_no_directory_but_that_of_the_backup(
    connect: Connect, tmp_path: Path
) -> None:
    archive = Archive.open(tmp_path / "backups", create=True)
    with Broker(data_dir=tmp_path / "data", http_port=0) as broker:
        channel = connect(broker).channel()
        channel.call("confirm.select")
        channel.declare("q", durable=True)
        channel.publish(b"1", "q", delivery_mode=2)
        channel.confirms(1)
        first = archive.create(tmp_path / "data")
        second = archive.create(tmp_path / "data")
    assert first.id != second.id
    through = tmp_path / "through"
    restore_aside(archive, first, through, lambda progress: None)
    with Broker(http_port=0) as target:
        url = f"http://guest:guest@127.0.0.1:{target.http_port}"
        common = (tmp_path / "backups", url, "--queue", "q", "--through")
        for directory, told in (
            (tmp_path / "data", "is the data directory of a node"),
            (through, f"has what is left of backup {first.id}"),
        ):
            done = restored_queues(*common, directory)
            assert (done.returncode, told in done.stderr) == (1, True), done
        with Broker(data_dir=through):
            done = restored_queues(*common, through, "--backup", first.id)
            assert done.returncode == 1 and "Traceback" not in done.stderr, done
        assert target.queue("q") is None
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.wait_until(queue="q", ready=1)


def test_what_cannot_be_restored_is_told_in_a_line(tmp_path: Path) -> None:
    for arguments, told in (
        ((tmp_path, "http://localhost:1", "--queue", "q"), "is no directory of backups"),
        ((tmp_path, "ftp://localhost", "--queue", "q"), "http"),
    ):
        done = restored_queues(*arguments)
        assert done.returncode and told in done.stderr and "Traceback" not in done.stderr
