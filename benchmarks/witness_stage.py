"""A node for one scenario of the witness, and the clients that make it work hard.

The scenario has a virtual host of its own, so that what it does to it is not done to the witness.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from amqp_socket import AmqpSocket, Refused

VIRTUAL_HOST = "costly"
PATIENCE_S = 300.0
"""How long a scenario waits for one thing; then it has failed."""
ASK_EVERY_S = 0.02

DEFINITIONS = {
    "vhosts": [{"name": "/"}, {"name": VIRTUAL_HOST}],
    "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
    "permissions": [
        {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
        for name in ("/", VIRTUAL_HOST)
    ],
}
AUTHORIZATION = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode("ascii")}


class Stage:
    """A node that runs when constructed. `http_port` is 0 if it answers none."""

    def __init__(self, directory: Path, *, http: bool) -> None:
        self._clients: list[AmqpSocket] = []
        definitions = directory / "definitions.json"
        definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
        config = directory / "warren.conf"
        config.write_text(f"load_definitions = {definitions}\n", encoding="utf-8")
        command = [sys.executable, "-P", "-m", "warren", "server", "--data-dir", "data"]
        command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0" if http else "none"]
        with (directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(config)],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        found = re.search(r"ready: amqp (\d+)(?:, http (\d+))?", line)
        if found is None:
            self.end()
            raise SystemExit(f"the node does not start: {line!r}")
        self.port = int(found[1])
        self.http_port = int(found[2] or 0)
        if http:
            # The first request loads the HTTP server.
            self.http("GET", "/api/whoami")

    def client(self) -> AmqpSocket:
        client = AmqpSocket("127.0.0.1", self.port, virtual_host=VIRTUAL_HOST)
        client.socket.settimeout(PATIENCE_S)
        self._clients.append(client)
        return client

    def http(self, verb: str, path: str, body: object = None) -> None:
        """Ask, and pass over the answer. A body is JSON, or what makes it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
        try:
            octets = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(verb, path, octets, AUTHORIZATION)
            answer = connection.getresponse()
            while answer.read(1 << 20):
                pass
            if answer.status >= 400:
                raise Refused(f"{verb} {path}: {answer.status} {answer.reason}")
        finally:
            connection.close()

    def wait_for_ready(self, queue: str, count: int) -> None:
        """Wait until so many messages are ready in a queue."""
        client = self.client()
        self._wait_for(
            lambda: client.declare(queue, {}, passive=True) == count, f"{count} messages in {queue}"
        )
        client.close()

    def wait_until_gone(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self._wait_for(partial(self._is_gone, queue), f"the end of {queue}")

    def _is_gone(self, queue: str) -> bool:
        client = AmqpSocket("127.0.0.1", self.port, virtual_host=VIRTUAL_HOST)
        try:
            client.declare(queue, {}, passive=True)
        except Refused as answer:
            return "NOT_FOUND" in str(answer)
        finally:
            client.socket.close()
        return False

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
            time.sleep(ASK_EVERY_S)

    def end(self) -> None:
        for client in self._clients:
            client.socket.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
