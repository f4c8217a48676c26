"""On a file system that is full publishers wait, nothing that was confirmed is lost, and it ends.

On a small tmpfs, which takes root to mount.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_client import (
    DELIVER,
    PUBLISHER_ACK,
    QUEUE_DECLARE_OK,
    BulkClient,
    Closed,
    ack,
    content,
    delivery,
    method,
    publish,
    short,
    table,
)
from warren_command import run_warren

from warren.mgmt.exit_codes import EXIT_UNWRITTEN

FILE_SYSTEM = "40m"
BALLAST_BYTES = 16 << 20
NO_LIMIT = "1"
"""The disk alarm comes when there is nothing left."""
BODY_BYTES = 2000
BATCH = 50
MORE = 2000
"""Messages to be confirmed after there is space again."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM},mode=700", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        # The fixtures of the nodes end after this one: what still runs holds on to its files.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class Publisher:
    """Publishes numbered messages to a queue in a thread, in confirm mode, until stopped.

    `sent_max` can be set to end at a number of messages.
    """

    def __init__(self, port: int, queue: str) -> None:
        self.sent = 0
        self.confirmed: set[int] = set()
        self.sent_max = sys.maxsize
        self.error: Exception | None = None
        self._client = BulkClient(port).open()
        self._client.confirm_select()
        self._publish = publish("", queue)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping and self.sent < self.sent_max:
                octets = b""
                for number in range(self.sent + 1, self.sent + BATCH + 1):
                    body = b"%08d" % number + bytes(BODY_BYTES - 8)
                    octets += self._publish + content(body, persistent=True, priority=0)
                self.sent += BATCH
                self._client.send(octets)
        except Closed as error:
            self.error = error

    def _read(self) -> None:
        upto = 0
        try:
            while True:
                for said in self._client.receive():
                    assert said.name == PUBLISHER_ACK, said
                    tag = int.from_bytes(said.fields[:8], "big")
                    first = upto + 1 if said.fields[8] else tag
                    self.confirmed.update(range(first, tag + 1))
                    upto = max(upto, tag) if said.fields[8] else upto
        except (Closed, AssertionError) as error:
            self.error = self.error or error

    @property
    def told_blocked(self) -> int:
        return self._client.told_blocked

    @property
    def told_unblocked(self) -> int:
        return self._client.told_unblocked

    def stop(self) -> None:
        self._stopping = True
        self._client.close()
        self._thread.join(30)
        self._reader.join(30)


def numbers_in(port: int, queue: str) -> list[int]:
    """What is in the queue; it is empty afterwards."""
    client = BulkClient(port).open()
    count = client.ready(queue)
    client.consume(queue)
    numbers: list[int] = []
    tag = 0
    while len(numbers) < count:
        for said in client.receive():
            if said.name == DELIVER:
                tag, _, body = delivery(said)
                assert len(body) == BODY_BYTES
                numbers.append(int(body[:8]))
    if numbers:
        client.send(ack(tag, multiple=True))
    client.close()
    return numbers


def declare_bytes(queue: str) -> bytes:
    return method(50, 10, b"\0\0" + short(queue) + b"\2" + table({}))


@pytest.mark.parametrize(
    ("limit", "mode"), [(NO_LIMIT, "default"), (NO_LIMIT, "lazy"), ("8000000", "default")]
)
def test_a_full_disk_blocks_publishers_and_loses_nothing(
    small_disk: Path,
    start_server: Callable[..., Any],
    until: Callable[..., None],
    limit: str,
    mode: str,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    data_dir = small_disk / "data"
    server = start_server(data_dir=data_dir, config=f"disk_free_limit.absolute = {limit}")
    other = BulkClient(server.port).open()
    other.declare("q", {"x-queue-mode": mode})
    publisher = Publisher(server.port, "q")
    try:
        until(lambda: publisher.told_blocked or publisher.error)
        assert publisher.error is None
        # Everything but publishing goes on.
        assert other.ready("q") > 0
        assert server.process.poll() is None
        other.send(declare_bytes("late"))

        before = len(publisher.confirmed)
        # The disk shall not be full again: the node is to start on it.
        publisher.sent_max = publisher.sent + MORE
        ballast.unlink()
        until(lambda: publisher.told_unblocked or publisher.error)
        until(lambda: len(publisher.confirmed) >= before + MORE or publisher.error)
        assert publisher.error is None
        other.expect(QUEUE_DECLARE_OK)
        assert server.process.poll() is None
    finally:
        publisher.stop()
        other.close()
    assert "Traceback" not in server.log
    # With next to no limit the disk is really full before anybody is blocked.
    assert limit != NO_LIMIT or "storage_write_failed" in server.log
    server.kill()

    server = start_server(data_dir=data_dir, config=f"disk_free_limit.absolute = {limit}")
    check_contents(server.port, publisher)
    assert numbers_in(server.port, "late") == []
    server.kill()


@pytest.mark.parametrize("pages_left", range(5))
def test_a_start_on_a_full_disk_says_so_and_leaves_nothing(
    small_disk: Path, pages_left: int
) -> None:
    """LMDB maps a file of locks: where that has no room the system ends a process that uses it."""
    ballast = small_disk / "ballast"
    fill_up(ballast)
    os.truncate(ballast, ballast.stat().st_size - pages_left * os.sysconf("SC_PAGE_SIZE"))
    data = small_disk / "data"
    started = run_warren("server", "--amqp", "127.0.0.1:0", "--http", "none", "--data-dir", data)
    told = f"warren: nothing can be written to {data}: no space left on its disk\n"
    assert (started.returncode, started.stderr.splitlines(True)[-1:]) == (1, [told])
    assert list(small_disk.iterdir()) == [ballast]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_node_that_ends_on_a_full_disk_is_back_when_there_is_space(
    small_disk: Path,
    start_server: Callable[..., Any],
    until: Callable[..., None],
    stop: signal.Signals,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    data_dir = small_disk / "data"
    config = f"disk_free_limit.absolute = {NO_LIMIT}"
    server = start_server(data_dir=data_dir, config=config)
    publisher, code = fill_and_end(server, small_disk, until, stop)
    assert "Traceback" not in server.log
    if stop is signal.SIGTERM:
        assert "messages_unwritten" in server.log
        assert code == EXIT_UNWRITTEN
    fill_up(small_disk / "rest")
    # It may start or say that it cannot; either way what there is stays.
    with contextlib.suppress(AssertionError):
        start_server(data_dir=data_dir, config=config).kill()
    ballast.unlink()
    server = start_server(data_dir=data_dir, config=config)
    check_contents(server.port, publisher)
    server.kill()


def test_the_exit_code_of_a_broker_of_processes_tells_that_one_could_not_write_all(
    small_disk: Path, start_server: Callable[..., Any], until: Callable[..., None]
) -> None:
    config = f"disk_free_limit.absolute = {NO_LIMIT}\nprocesses = 2"
    server = start_server(data_dir=small_disk / "data", config=config)
    _, code = fill_and_end(server, small_disk, until, signal.SIGTERM)
    assert server.log.count("messages_unwritten") == 1
    assert code == EXIT_UNWRITTEN


def test_processes_go_on_while_a_definition_waits_for_space(
    small_disk: Path, start_server: Callable[..., Any], until: Callable[..., None]
) -> None:
    ttl_s = 2
    config = f"disk_free_limit.absolute = {NO_LIMIT}\nprocesses = 2\ncluster.lease_ttl = {ttl_s}"
    server = start_server(data_dir=small_disk / "data", config=config)
    clients = [BulkClient(server.port).open() for _ in range(4)]
    for number, client in enumerate(clients):
        client.declare(f"q{number}")
    fill_up(small_disk / "more")
    clients[0].send(declare_bytes("waits"))
    until(lambda: "shared_definitions_write_failed" in server.log)
    # Three times as long as a lease lasts.
    end = time.monotonic() + 3 * ttl_s
    while time.monotonic() < end:
        for number, client in enumerate(clients[1:], 1):
            assert client.ready(f"q{number}") == 0
        time.sleep(0.1)
    assert "cluster_lease_lost" not in server.log
    (small_disk / "more").unlink()
    clients[0].expect(QUEUE_DECLARE_OK)
    for client in clients:
        client.close()
    assert server.terminate() == 0


def fill_and_end(
    server: Any, disk: Path, until: Callable[..., None], stop: signal.Signals
) -> tuple[Publisher, int]:
    """Publish until the disk is full and the publisher is blocked; end the node; its exit code."""
    other = BulkClient(server.port).open()
    other.declare("q")
    other.close()
    publisher = Publisher(server.port, "q")
    try:
        until(lambda: publisher.told_blocked or publisher.error)
        assert publisher.error is None
        fill_up(disk / "more")
        server.signal(stop)
        return publisher, server.wait()
    finally:
        publisher.stop()


def fill_up(path: Path) -> None:
    """Take what space there is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def check_contents(port: int, publisher: Publisher) -> None:
    numbers = numbers_in(port, "q")
    assert numbers == sorted(set(numbers))
    assert publisher.confirmed <= set(numbers)
    assert numbers[-1] <= publisher.sent
