"""A broker of several processes, as a process of its own, and what tests ask of it."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pika
from api_client import ApiClient
from pika.adapters.blocking_connection import BlockingChannel
from server_process import ServerProcess

from warren import Broker

Until = Callable[..., Any]


class Processes:
    """One broker, and what is asked of it."""

    def __init__(self, start: Callable[..., ServerProcess], data_dir: Path, until: Until) -> None:
        self._start = start
        self._until = until
        self._connections: list[pika.BlockingConnection] = []
        self.data_dir = data_dir
        self.server: ServerProcess
        self.http_port = 0
        self.api: ApiClient

    def start(self, *more: str, processes: int = 3, name: str | None = "warren@here") -> None:
        arguments = ["--processes", str(processes), "--http", "127.0.0.1:0"]
        arguments += ["--node-name", name] if name is not None else []
        self.server = self._start(*arguments, *more, data_dir=self.data_dir)
        found = re.search(r"http (\d+)", self.server.ready_line)
        assert found is not None
        self.http_port = int(found[1])
        broker = cast(Broker, SimpleNamespace(host="127.0.0.1", http_port=self.http_port))
        self.api = ApiClient(broker)

    def stop(self) -> None:
        self.hang_up()
        assert self.server.terminate() == 0

    def connect(self) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self.server.url)
        connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection

    def hang_up(self) -> None:
        for connection in self._connections:
            # Where a process was killed, the client may not know yet.
            with suppress(pika.exceptions.AMQPError):
                connection.close()
        self._connections.clear()

    def channels(self) -> dict[str, BlockingChannel]:
        """A channel at each process, by its name."""
        found: dict[str, BlockingChannel] = {}
        nodes = {node["name"] for node in self.nodes() if node["running"]}

        def has_all() -> bool:
            connection = self.connect()
            node = self._node_of(connection)
            found.setdefault(node, connection.channel())
            return set(found) == nodes

        self._until(has_all)
        for channel in found.values():
            channel.confirm_delivery()
        return found

    def _node_of(self, connection: pika.BlockingConnection) -> str:
        port = connection._impl._transport._sock.getsockname()[1]
        shown: list[str] = []

        def is_shown() -> bool:
            status, rows = self.api.get("/connections")
            assert status == 200
            shown[:] = [row["node"] for row in rows if row.get("peer_port") == port]
            return bool(shown)

        self._until(is_shown)
        return shown[0]

    def get(self, path: str) -> tuple[int, bytes]:
        """What is at a path that is not below the API's."""
        login = b64encode(b"guest:guest").decode()
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def nodes(self) -> list[dict[str, Any]]:
        status, rows = self.api.get("/nodes")
        assert status == 200
        return cast(list[dict[str, Any]], rows)

    def pid(self, name: str) -> int:
        return int(next(node["os_pid"] for node in self.nodes() if node["name"] == name))

    def queues(self) -> dict[str, str]:
        """Where each queue is."""
        return {row["name"]: row["node"] for row in self.api.get("/queues")[1]}

    def states(self) -> dict[str, str]:
        """None while it was a process that was killed just then that took the question."""
        with suppress(ConnectionError):
            return {node["name"]: node["state"] for node in self.nodes()}
        return {}
