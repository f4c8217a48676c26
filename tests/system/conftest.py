"""What the system tests share: nodes as processes, raw clients that get closed, and waiting."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warren import Broker
from warren.compat_tests.broker import parse_url
from warren.compat_tests.raw_client import RawClient

PATIENCE_S = 30.0
"""How long a test waits for something that must come; the machine may be busy."""


class ServerProcess:
    """`warren server` as a process of its own, ready when constructed."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        command = [sys.executable, "-P", "-m", "warren", "server", *arguments]
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=directory, stdout=subprocess.PIPE, stderr=log
            )
        self.ready_line = self._first_line()
        ports = re.search(r"ready: amqp (\d+)(?:, amqps (\d+))?", self.ready_line)
        if ports is None:
            self.kill()
            raise AssertionError(f"no ready line but {self.ready_line!r}: {self.log}")
        self.port = int(ports[1])
        self.tls_port = int(ports[2]) if ports[2] else 0

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def rss_bytes(self) -> int:
        """The resident set of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def sockets(self) -> set[str]:
        """The sockets the process has open."""
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return {name for link in links if (name := _target(link)).startswith("socket:")}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        """Stop in order; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it as a power cut would, as far as the process goes."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def rest_of_output(self) -> str:
        """What it printed after the ready line; it must have ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()

    def _first_line(self) -> str:
        output = self.process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], PATIENCE_S)
        return output.readline().decode() if readable else ""


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts nodes on free loopback ports, outside the repository; kills what is left of them."""
    servers: list[ServerProcess] = []

    def start(
        *arguments: str,
        data_dir: Path | None = None,
        config: str | None = None,
        amqp: str | None = "127.0.0.1:0",
    ) -> ServerProcess:
        every = ["--data-dir", str(data_dir or tmp_path / f"data-{len(servers)}"), *arguments]
        if amqp is not None:
            every += ["--amqp", amqp]
        if config is not None:
            file = tmp_path / f"warren-{len(servers)}.conf"
            file.write_text(config, encoding="utf-8")
            every += ["--config", str(file)]
        servers.append(ServerProcess(every, tmp_path))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


class Clients:
    """Opens raw clients to anything that has a `url`, and closes their sockets in the end."""

    def __init__(self) -> None:
        self._clients: list[RawClient] = []

    def __call__(self, where: Any, *, handshake: bool = True, **options: Any) -> RawClient:
        client = RawClient(parse_url(where if isinstance(where, str) else where.url))
        self._clients.append(client)
        return client.open(**options) if handshake else client

    def abandon_all(self) -> None:
        for client in self._clients:
            client.abandon()


@pytest.fixture
def connect() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.abandon_all()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Polls until a condition holds; fails when it does not in a long while."""

    def wait(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, "what was waited for did not come"
            time.sleep(0.01)

    return wait


@pytest.fixture
def no_clients(until: Callable[..., None]) -> Callable[[Broker], None]:
    """Waits until the broker has forgotten every client."""

    def wait(broker: Broker) -> None:
        until(lambda: broker.call(lambda node: len(node.clients)) == 0)

    return wait


def _target(link: Path) -> str:
    """Where a link leads; nowhere when it is gone by now."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""
