"""`warren dev-cluster`: a whole cluster with one command, and nothing left of it."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from running_cluster import EtcdServer
from server_process import PATIENCE_S

READY = re.compile(r"(warren\d@127\.0\.0\.1) ready: amqp://guest:guest@127\.0\.0\.1:(\d+) http://")


class DevCluster:
    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "warren", "dev-cluster", *arguments),
                *("--amqp-port", "0", "--http-port", "0"),
            ],
            cwd=directory,
            env={**os.environ, "TMPDIR": str(self.temporary), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Lines are waited for, so none may be read ahead.
            bufsize=0,
        )

    def line(self) -> str:
        output = self.process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], PATIENCE_S)
        return output.readline().decode() if readable else ""

    def ready(self) -> int:
        """The AMQP port of the next node that is ready."""
        line = self.line()
        found = READY.search(line)
        assert found is not None, line + self.rest()
        return int(found[2])

    def rest(self) -> str:
        """Stop it and return what it wrote to its error output."""
        self.process.terminate()
        return self.errors()

    def errors(self) -> str:
        """What it wrote to its error output, when it has ended."""
        return self.process.communicate(timeout=PATIENCE_S)[1].decode()

    def of(self, directory: str) -> list[int]:
        """The processes that were started with a directory in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                line = (entry / "cmdline").read_text("utf-8", "replace")
                state = (entry / "stat").read_text("utf-8").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if directory in line and state != "Z":
                found.append(int(entry.name))
        return found

    @property
    def children(self) -> list[int]:
        return self.of(str(self.temporary / "warren-cluster-"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DevCluster]]:
    started: list[DevCluster] = []

    def start(*arguments: str, **environment: str) -> DevCluster:
        started.append(DevCluster(tmp_path, *arguments, **environment))
        return started[-1]

    yield start
    for cluster in started:
        if cluster.process.poll() is None:
            cluster.process.terminate()
        cluster.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(autouse=True)
def expect_etcd() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed")


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/%2F"))


def test_one_command_starts_a_cluster_and_ctrl_c_leaves_nothing_of_it(
    start: Callable[..., DevCluster], until: Callable[[Callable[[], object]], None]
) -> None:
    cluster = start("2")
    first, second = cluster.ready(), cluster.ready()
    one = connect(first)
    one.channel().queue_declare("q", durable=True)
    other = connect(second)
    assert other.channel().queue_declare("q", durable=True, passive=True).method.queue == "q"
    one.close()
    other.close()
    assert len(cluster.children) == 3
    (victim,) = (pid for pid in cluster.of("warren2.conf") if pid in cluster.children)
    os.kill(victim, signal.SIGKILL)
    assert cluster.line().startswith("warren2@127.0.0.1 was ended by signal 9; its log is ")
    connect(first).close()
    cluster.process.send_signal(signal.SIGINT)
    assert (cluster.errors(), cluster.process.returncode) == ("", 0)
    assert cluster.children == []
    assert list(cluster.temporary.iterdir()) == []


def test_a_cluster_ends_when_who_started_it_is_killed(
    start: Callable[..., DevCluster], until: Callable[[Callable[[], object]], None]
) -> None:
    cluster = start("2")
    connection = connect(cluster.ready())
    cluster.ready()
    connection.channel().queue_declare("q", durable=True)
    assert len(cluster.children) == 3
    cluster.process.kill()
    cluster.process.wait(PATIENCE_S)
    until(lambda: not cluster.children)
    # They have stopped in order.
    with pytest.raises(ConnectionClosedByBroker, match="shutdown"):
        connection.process_data_events(time_limit=PATIENCE_S)
    (directory,) = cluster.temporary.iterdir()
    assert "node_stopped" in (directory / "warren1.log").read_text()


def test_an_etcd_that_is_there_already_is_used_and_left_as_it_was(
    start: Callable[..., DevCluster], tmp_path: Path
) -> None:
    with EtcdServer(tmp_path / "etcd") as etcd:
        cluster = start("1", "--etcd", etcd.url)
        connect(cluster.ready()).close()
        assert len(cluster.children) == 1
        assert cluster.rest() == ""
        everything = {"key": "AA==", "range_end": "AA==", "keys_only": True}
        request = urllib.request.Request(
            f"{etcd.url}/v3/kv/range", json.dumps(everything).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert "kvs" not in json.load(answer)


def test_what_is_kept_is_found_again(start: Callable[..., DevCluster], tmp_path: Path) -> None:
    arguments = ("1", "--data-dir", str(tmp_path / "kept"))
    cluster = start(*arguments)
    connection = connect(cluster.ready())
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    connection.close()
    assert cluster.rest() == ""
    cluster = start(*arguments)
    connection = connect(cluster.ready())
    _, _, body = connection.channel().basic_get("q", auto_ack=True)
    assert body == b"kept"
    connection.close()


def test_a_machine_without_etcd_is_told_what_to_install(start: Callable[..., DevCluster]) -> None:
    cluster = start("2", PATH="/nowhere")
    errors = cluster.errors()
    assert cluster.process.returncode == 1
    assert errors.startswith("warren: there is no etcd on this machine")
    assert "apt-get install etcd-server" in errors and errors.count("\n") == 1
    assert list(cluster.temporary.iterdir()) == []
