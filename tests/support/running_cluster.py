"""A cluster of real processes: an etcd and nodes that can be killed, stopped and started again.

    cluster = RunningCluster(directory, "a", "b", "c")
    cluster["a"].kill()

Nodes keep their data directories and their ports.
"""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
from cut_network import CutNetwork, Place
from etcd_server import EtcdServer
from fork_server import ForkedProcess
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from reserved_port import reserve_port
from server_process import PATIENCE_S
from warren_command import run_warren

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget
from warren.mgmt.ctl.errors import CtlError, RequestRefused

SECRET = "a secret of the tests"
LEASE_TTL_S = 2
"""The shortest there is, for tests that wait until a lease ends."""

PATIENT = "cluster.lease_ttl = 30\n"
"""For tests in which no lease is to end, however long a node stands still."""

NOT_FOUND = 404

HERE = Place()

READY = re.compile(r"ready: amqp (\d+).*http (\d+)")


NodeProcess = ForkedProcess | subprocess.Popen[bytes]
"""Forked off the fork server; or started, where the node is in a network of its own."""


class ClusterProcess:
    """One node of the cluster; `start` it."""

    def __init__(self, name: str, directory: Path, config: str, place: Place = HERE) -> None:
        self.name = f"{name}@{place.host}"
        self.data_directory = directory / name
        self.config = config
        # In another network they are chosen there, and kept.
        self.amqp_port = reserve_port(self) if place is HERE else 0
        self.http_port = reserve_port(self) if place is HERE else 0
        self._directory = directory
        self._place = place
        self._log = directory / f"{name}.log"
        self._process: NodeProcess | None = None
        self._connections: list[pika.BlockingConnection] = []

    # Its process

    def launch(self) -> NodeProcess:
        """Start it without waiting."""
        config = self._directory / f"{self._log.stem}.conf"
        config.write_text(self.config, encoding="utf-8")
        host = self._place.client_host
        arguments = ["server", "--config", str(config)]
        arguments += ["--data-dir", str(self.data_directory), "--node-name", self.name]
        arguments += ["--amqp", f"{host}:{self.amqp_port}"]
        arguments += ["--http", f"{host}:{self.http_port}"]
        with self._log.open("ab") as log:
            if self._place is HERE:
                self._process = ForkedProcess(arguments, self._directory, log)
            else:
                self._process = subprocess.Popen(
                    [*self._place.command, sys.executable, "-P", "-m", "warren", *arguments],
                    cwd=self._directory,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                )
        return self._process

    def wait_until_ready(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        line = self._process.stdout.readline().decode() if readable else ""
        ports = READY.search(line)
        assert ports is not None, self.log
        self.amqp_port, self.http_port = int(ports[1]), int(ports[2])

    def start(self) -> None:
        """Return when it serves clients."""
        self.launch()
        self.wait_until_ready()

    def fails(self) -> str:
        """Start it, expecting that it ends by itself with exit code 1; what it says then."""
        size = self._log.stat().st_size if self._log.exists() else 0
        process = self.launch()
        assert process.wait(PATIENCE_S) == 1
        self._forget()
        lines = self._log.read_text("utf-8")[size:].splitlines()
        said = [line for line in lines if line.startswith("warren: ")]
        assert len(said) == 1 and "Traceback" not in "\n".join(lines), lines
        return said[0]

    def stop(self) -> None:
        """As SIGTERM does."""
        self.signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        """Wait until it has ended in order."""
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self.log
        self._forget()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def stand_still(self) -> None:
        self.signal(signal.SIGSTOP)
        wait_until(lambda: "State:\tT" in self._status)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def launched(self) -> NodeProcess:
        """Its process, which may have ended by itself."""
        assert self._process is not None
        return self._process

    @property
    def can_be_told_to_stop(self) -> bool:
        """Whether it stops in order on SIGTERM. A process that was launched just now would end at
        once: its interpreter is still loading."""
        caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", self._status, re.MULTILINE)
        assert caught is not None
        return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    @property
    def _status(self) -> str:
        """What the system says of its process."""
        return Path(f"/proc/{self.launched.pid}/status").read_text(encoding="ascii")

    @property
    def exit_code(self) -> int | None:
        """With what it has ended by itself."""
        return self._process.poll() if self._process is not None else None

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _forget(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    # Its users

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self._place.client_host}:{self.amqp_port}/%2F"

    def connect(self) -> pika.BlockingConnection:
        """A client, which is closed in the end if it is open then."""
        connection = pika.BlockingConnection(pika.URLParameters(f"{self.url}?heartbeat=0"))
        self._connections.append(connection)
        return connection

    def close_connections(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                with suppress(AMQPError):
                    connection.close()
        self._connections.clear()

    def asks(self, *path: str, **query: str) -> Any:
        """The answer of its HTTP API, by way of the control socket."""
        client = ControlClient(LocalTarget(self.data_directory), PATIENCE_S)
        try:
            return client.get(*path, **query)
        finally:
            client.close()

    def queue(self, name: str) -> dict[str, Any]:
        """What it shows of a queue of the virtual host "/"; nothing before it has heard of it."""
        try:
            row: dict[str, Any] = self.asks("queues", "/", name)
        except RequestRefused as refused:
            if refused.status != NOT_FOUND:
                raise
            return {}
        return row

    def in_sync(self, queue: str) -> list[str]:
        """The mirrors of a queue that are in sync, as this node shows them."""
        return sorted(self.queue(queue).get("synchronised_slave_nodes", ()))

    def until_queue(self, name: str, condition: Callable[[dict[str, Any]], object]) -> Any:
        """Wait for a state of a queue; returns the row that shows it."""
        row: dict[str, Any] = {}

        def is_shown() -> object:
            nonlocal row
            row = self.queue(name)
            return condition(row)

        wait_until(is_shown)
        return row

    def changes(self, *path: str, body: dict[str, Any]) -> None:
        """A PUT to its HTTP API, by way of the control socket."""
        self.does("PUT", *path, body=body)

    def does(self, method: str, *path: str, body: Any = None) -> Any:
        """Any request to its HTTP API, by way of the control socket."""
        client = ControlClient(LocalTarget(self.data_directory), PATIENCE_S)
        try:
            return client.request(method, *path, body=body)
        finally:
            client.close()

    def ctl(self, *arguments: str) -> str:
        """What `warren ctl` prints; it has to succeed."""
        done = run_warren("ctl", "--data-dir", self.data_directory, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def linked(self) -> set[str]:
        """The nodes it can talk to; none while it does not serve."""
        try:
            return set(self.asks("control", "members")["linked"])
        except CtlError:
            return set()


class RunningCluster:
    """All nodes are up and linked when it has been started. With a `network` they are in it."""

    def __init__(
        self, directory: Path, *names: str, more: str = "", network: CutNetwork | None = None
    ) -> None:
        self.network = network
        etcd = network.etcd if network is not None else HERE
        self.etcd = EtcdServer(
            directory / "etcd", host=etcd.host, health_host=etcd.client_host, command=etcd.command
        )
        self._directory = directory
        interface = "127.0.0.1" if network is None else "0.0.0.0"
        self.config = (
            f"cluster_formation.etcd.endpoints.1 = {self.etcd.url}\n"
            f"cluster.secret = {SECRET}\n"
            f"cluster.lease_ttl = {LEASE_TTL_S}\n"
            "cluster_formation.discovery_retry_limit = 3\n"
            "cluster_formation.discovery_retry_interval = 100\n"
            f"distribution.listener.interface = {interface}\n"
            "distribution.listener.port_range.min = 0\n" + more
        )
        if network is not None:
            self.config += "loopback_users = none\n"
        self.all_nodes: list[ClusterProcess] = []
        self.nodes = {name: self.new_node(name) for name in names}
        self._first = tuple(self.all_nodes)

    def __getitem__(self, name: str) -> ClusterProcess:
        return self.nodes[name]

    def new_node(self, name: str, config: str | None = None) -> ClusterProcess:
        """A further node, not started; it is ended with the others."""
        place = self.network.place(name) if self.network is not None else HERE
        config = self.config if config is None else config
        node = ClusterProcess(name, self._directory, config, place)
        self.all_nodes.append(node)
        return node

    def start(self) -> None:
        self.etcd.start()
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()
        self.wait_until_linked(*self.nodes)

    def wait_until_linked(self, *names: str) -> None:
        """Until each of these nodes is linked with exactly the others of them."""
        wanted = {self.nodes[name].name for name in names}
        for name in names:
            wait_until(lambda: self.nodes[name].linked() == wanted)  # noqa: B023

    def tidy_up(self) -> None:
        """Be what it was in the beginning, but for what definitions other than queues there are."""
        for node in self.all_nodes:
            if node.is_up:
                node.close_connections()
            if node not in self._first:
                node.kill()
        self.nodes = {node.name.partition("@")[0]: node for node in self._first}
        self.all_nodes = list(self._first)
        for node in self._first:
            if not node.is_up:
                node.start()
        self.wait_until_linked(*self.nodes)
        for node in self._first:
            wait_until(lambda: self._is_without_queues(node))  # noqa: B023

    def _is_without_queues(self, node: ClusterProcess) -> bool:
        """Delete the queues that the node shows; whether there were none."""
        rows = node.asks("queues", columns="name,vhost")
        for row in rows:
            # Those of connections that were closed just now go by themselves, and others are
            # with a node that has only just come back: the next look tells.
            with suppress(RequestRefused):
                node.does("DELETE", "queues", row["vhost"], row["name"])
        return not rows

    def end(self) -> None:
        for node in self.all_nodes:
            if node.is_up:
                node.close_connections()
            node.kill()
        self.etcd.end()
        if self.network is not None:
            self.network.remove()


def wait_until(condition: Any, patience_s: float = PATIENCE_S) -> None:
    """Look less often the longer it takes: for most looks a node has to work."""
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < patience_s, "what was waited for did not come"
        time.sleep(min(0.02 + waited_s / 20, 0.1))


def take(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Consume so many messages, acknowledging them."""
    bodies: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE_S):
        assert body is not None, f"{count - len(bodies)} messages did not come"
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def publish(channel: BlockingChannel, queue: str, bodies: Iterable[bytes]) -> None:
    """Persistent; with confirms where they were selected."""
    lasting = pika.BasicProperties(delivery_mode=2)
    for body in bodies:
        channel.basic_publish("", queue, body, lasting, mandatory=True)
