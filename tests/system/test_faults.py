"""After an exception that nobody expected a node is not half alive: it says so, and it stops."""

from __future__ import annotations

import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_node import FAULT
from server_process import PATIENCE_S

from warren import Broker
from warren.amqp.heartbeat import Heartbeat
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import Silence, SocketClosed
from warren.core.backing.paging import Pager
from warren.core.resources.alarms import Resource
from warren.faults import NodeFailed
from warren.persist.definitions.database import Database
from warren.persist.disk.filesystem import RealFile
from warren.persist.index.queue_index import QueueIndex
from warren.persist.storage import checkpoint

Connect = Callable[..., RawClient]
Until = Callable[..., None]

LASTING = {"delivery_mode": 2}


def publisher(broker: Any, connect: Connect) -> RawChannel:
    """A channel with a durable queue in which one persistent message is safe."""
    channel = connect(broker).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    channel.publish(b"safe", "q", **LASTING)
    assert channel.confirms(1)
    return channel


def expect_sent_away(channel: RawChannel) -> None:
    """The client hears of the fault, and nothing of what it has published: neither ack nor nack."""
    said = channel.client.next_method(0)
    if said.name == "connection.blocked":
        assert said["reason"] == "internal error"
        said = channel.client.next_method(0)
    assert said.name == "connection.close" and said["reply_code"] == 320
    assert "internal error" in said["reply_text"]
    with pytest.raises((SocketClosed, Silence)):
        channel.client.next_method(channel.number, timeout_s=0.1)
    channel.client.abandon()


class Journal:
    """The thread that writes messages meets it."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RealFile, "write_synced", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        channel.publish(b"unsafe", "q", **LASTING)


class Gathering:
    """The loop meets it in the middle of putting a batch together."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(QueueIndex, "emit", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        channel.publish(b"unsafe", "q", **LASTING)


class Synced:
    """The loop meets it when a batch is on the disk."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("warren.persist.log.journal.Journal._written", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        channel.publish(b"unsafe", "q", **LASTING)


class Paging:
    """The thread that writes what is paged out meets it."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RealFile, "write", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        other = channel.client.channel()
        other.declare("lazy", arguments={"x-queue-mode": "lazy"})
        other.publish(b"paged out", "lazy")


class Tidying:
    """The thread that may take its time meets it."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(checkpoint, "write_whole", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        storage = broker._running.messages.storage  # type: ignore[union-attr]
        broker.call(lambda node: storage.checkpointer.request())


class Definitions:
    """The thread that writes definitions meets it."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Database, "_write_once", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        channel.send("queue.declare", queue="never", durable=True)


class Watching:
    """A callback of the loop that looks after the node meets it."""

    def break_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Pager, "_visit_all", _fail)

    def provoke(self, broker: Broker, channel: RawChannel) -> None:
        # It looks by itself.
        return


def _fail(*_: Any, **__: Any) -> None:
    raise ValueError(FAULT)


@pytest.mark.parametrize(
    "where", [Journal, Gathering, Synced, Paging, Tidying, Definitions, Watching]
)
def test_a_fault_stops_the_node_confirms_nothing_and_leaves_the_process(
    where: Callable[[], Any],
    connect: Connect,
    until: Until,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker(data_dir=tmp_path / "data").start()
    try:
        channel = publisher(broker, connect)
        with monkeypatch.context() as patch:
            fault = where()
            fault.break_in(patch)
            fault.provoke(broker, channel)
            if where is Definitions:
                # The reply is held back until the definition is safe, and what follows with it.
                with pytest.raises(SocketClosed):
                    channel.client.next_method(1)
            else:
                expect_sent_away(channel)
            until(lambda: broker.failure)
    finally:
        broker.stop()
    assert isinstance(broker.failure, NodeFailed) and FAULT in str(broker.failure)
    faults = [record for record in caplog.records if record.exc_info is not None]
    assert [record.getMessage() for record in faults] == ["node_fault action=stopping"]
    with broker:
        assert broker.failure is None
        bodies = connect(broker).channel().bodies("q")
        assert bodies[:1] == [b"safe"] and set(bodies[1:]) <= {b"unsafe"}


def test_the_alarm_of_a_fault_is_shown_until_the_node_has_stopped(
    connect: Connect, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        monkeypatch.setattr(RealFile, "write", _fail)
        channel = connect(broker).channel()
        channel.declare("q", durable=True)
        broker.call(lambda node: node.alarms.subscribe(lambda: seen.append(node.alarms.reason())))
        seen: list[str] = []
        channel.publish(b"unsafe", "q", **LASTING)
        until(lambda: seen)
        assert seen == ["internal error"]


def test_a_publisher_is_told_of_a_fault(connect: Connect) -> None:
    with Broker() as broker:
        broker.call(lambda node: node.alarms.report(Resource.FAULT, True))
        channel = connect(broker).channel()
        channel.publish(b"x", "q")
        assert channel.client.expect("connection.blocked")["reason"] == "internal error"


def test_a_fault_in_the_callbacks_of_a_connection_ends_that_connection_only(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker() as broker:
        other = connect(broker).channel()
        monkeypatch.setattr(Heartbeat, "_send_first", _fail)
        client = connect(broker, heartbeat=1)
        closed = client.expect("connection.close")
        assert closed["reply_code"] == 541
        other.ping()
        assert broker.failure is None
    (fault,) = [record for record in caplog.records if record.exc_info is not None]
    assert fault.getMessage().startswith("internal_error peer=")


@pytest.fixture
def faulty_server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """A node as a process, the file that makes it fail, and its log."""
    trigger, log = tmp_path / "fail", tmp_path / "log"
    program = str(Path(__file__).parents[1] / "support" / "faulty_node.py")
    command = [sys.executable, "-P", program, str(trigger), "server", "--http", "none"]
    command += ["--data-dir", str(tmp_path / "data"), "--amqp", "127.0.0.1:0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=file)
    assert process.stdout is not None
    try:
        yield process, trigger, log
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_server_says_what_happened_and_ends_with_an_exit_code_of_its_own(
    faulty_server: tuple[subprocess.Popen[bytes], Path, Path],
    connect: Connect,
    start_server: Callable[..., Any],
    tmp_path: Path,
) -> None:
    process, trigger, log = faulty_server
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    port = re.search(rb"amqp (\d+)", process.stdout.readline() if readable else b"")
    assert port is not None, log.read_text()
    channel = publisher(f"amqp://guest:guest@127.0.0.1:{int(port[1])}/%2F", connect)
    trigger.touch()
    for _ in range(100):
        channel.publish(b"unsafe", "q", **LASTING)
    expect_sent_away(channel)
    assert process.wait(PATIENCE_S) == 70
    said = log.read_text()
    assert said.count("Traceback") == 1 and "node_fault" in said
    assert "alarm_raised resource=internal_error" in said
    assert said.splitlines()[-1].startswith("warren: a fault ended the node: ValueError")
    server = start_server(data_dir=tmp_path / "data")
    assert connect(server).channel().bodies("q") == [b"safe"]
