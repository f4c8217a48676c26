"""A RabbitMQ and a Warren with data of their own, for scripts that are run by hand.

As root, RabbitMQ runs as the user `rabbitmq`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from server_process import ServerProcess

from warren.mgmt.ctl.errors import CtlError
from warren.mgmt.migrate.side import Side, side

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PATIENCE_S = 90.0


class Rabbitmq:
    """A RabbitMQ of the script's own."""

    def __init__(
        self,
        server: str,
        directory: Path,
        ports: list[int],
        plugins: Sequence[str] = ("rabbitmq_management",),
    ) -> None:
        self._server = server
        self._directory = directory
        self.port, self.http_port, dist, epmd = ports
        self._name = f"by-hand{os.getpid()}-{self.port}@localhost"
        self._environment = {
            **os.environ,
            "HOME": str(directory / "home"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist),
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        for name in ("home", "mnesia", "log"):
            (directory / name).mkdir()
        (directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            "management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self.http_port}\n"
        )
        if os.geteuid() == 0:
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, "rabbitmq", "rabbitmq")
        self.start()

    @property
    def management(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.http_port}"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def config(self) -> Path:
        return self._directory / "rabbitmq.conf"

    def start(self) -> None:
        (self._directory / "pid").unlink(missing_ok=True)
        command = ["bash", "-c", f"ulimit -Sn 20000; exec {self._server}"]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "rabbitmq", "--", *command]
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdout=output, stderr=output
            )
        eventually(lambda: bool(self._side().get("overview")["listeners"]))

    def kill(self) -> None:
        """End it as a power cut would, as far as the process goes."""
        os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            os.kill(int((self._directory / "pid").read_text()), signal.SIGTERM)
            self._process.wait()
        subprocess.run(["epmd", "-port", self._environment["ERL_EPMD_PORT"], "-kill"],
                       capture_output=True, check=False)  # fmt: skip

    def _side(self) -> Side:
        return side("source", self.management)


class Warren:
    """A Warren whose data outlives it."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self._directory = directory
        self.port, self.http_port = ports
        self.start()

    @property
    def management(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.http_port}"

    @property
    def url(self) -> str:
        return self._process.url

    def start(self) -> None:
        self._process = ServerProcess(
            [
                *("--data-dir", str(self._directory / "data")),
                *("--amqp", f"127.0.0.1:{self.port}"),
                *("--http", f"127.0.0.1:{self.http_port}"),
                *("--node-name", f"by-hand-{self.port}@localhost"),
            ],
            self._directory,
        )

    def kill(self) -> None:
        self._process.kill()


def eventually(found: Callable[[], bool]) -> None:
    """Wait until it is so. What cannot be asked yet is not so."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if found():
                return
        except (CtlError, AMQPError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"not so after {PATIENCE_S:g} s")


def free_ports(count: int) -> list[int]:
    """None that the kernel gives to clients: one that connects over and over to a broker that is
    away would get the broker's own port in the end, and be connected with itself."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


@contextmanager
def channel_at(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    yield connection.channel()
    connection.close()


def publish(url: str, name: str, start: int, stop: int, **properties: Any) -> None:
    with channel_at(url) as channel:
        channel.tx_select()
        for number in range(start, stop):
            channel.basic_publish(
                "",
                name,
                b"%d" % number,
                pika.BasicProperties(
                    message_id=f"id-{number}", delivery_mode=2, headers={"n": number}, **properties
                ),
            )
        channel.tx_commit()


def step(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
