"""The conformance suite, which passes on RabbitMQ 3.10.8, passes on Warren.

The suite's administrator speaks RabbitMQ's management API. Until Warren does, as much of it as the
suite asks for is served here over an embedded broker, so that the tests of permissions, limits,
policies and forced closes run on Warren too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from warren import Broker
from warren.core.errors import BrokerError
from warren.core.node import Node
from warren.core.validation import NotThere, ValidationFailed

Answer = Callable[[Node, list[str], dict[str, Any], str | None], Any]


def put_vhost(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> None:
    (name,) = path
    if name not in node.vhosts:
        node.add_vhost(name)
        node.access.set_permissions("guest", name, ".*", ".*", ".*")
    node.trace(name, bool(body.get("tracing")))


def put_user(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> None:
    node.access.put_user(path[0], body["tags"].split(","), password=body.get("password"))


def put_permissions(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> None:
    vhost, user = path
    node.access.set_permissions(user, vhost, body["configure"], body["write"], body["read"])


def put_topic(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> None:
    vhost, user = path
    node.access.set_topic_permissions(user, vhost, body["exchange"], body["write"], body["read"])


def put_policy(operator: bool) -> Answer:
    def answer(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> None:
        vhost, name = path
        node.policies.set(
            vhost,
            name,
            body.get("pattern"),
            body.get("definition"),
            body.get("priority", 0),
            body.get("apply-to", "all"),
            operator=operator,
        )

    return answer


def get_queue(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> Any:
    vhost, name = path
    if name not in node.vhosts[vhost].queues:
        raise NotThere("no such queue")
    definition = node.policies.applied(vhost, name, "queue").definition
    return {"effective_policy_definition": dict(definition)}


def get_connections(node: Node, path: list[str], body: dict[str, Any], reason: str | None) -> Any:
    clients: list[Any] = list(node.clients)
    return [
        {"name": client.peer.name, "client_properties": {"connection_name": client.name}}
        for client in clients
    ]


def delete_connection(
    node: Node, path: list[str], body: dict[str, Any], reason: str | None
) -> None:
    clients: list[Any] = list(node.clients)
    for client in clients:
        if client.peer.name == path[0]:
            client.force_close(reason or "Closed via management plugin")


ANSWERS: dict[tuple[str, str], Answer] = {
    ("PUT", "vhosts"): put_vhost,
    ("DELETE", "vhosts"): lambda node, path, body, reason: node.delete_vhost(path[0]),
    ("PUT", "users"): put_user,
    ("DELETE", "users"): lambda node, path, body, reason: node.access.delete_user(path[0]),
    ("PUT", "permissions"): put_permissions,
    ("DELETE", "permissions"): lambda node, path, body, reason: node.access.clear_permissions(
        path[1], path[0]
    ),
    ("PUT", "topic-permissions"): put_topic,
    ("PUT", "vhost-limits"): lambda node, path, body, reason: node.vhost_limits.put(
        path[0], path[1], body["value"]
    ),
    ("PUT", "user-limits"): lambda node, path, body, reason: node.access.set_user_limits(
        path[0], {path[1]: body["value"]}
    ),
    ("PUT", "policies"): put_policy(False),
    ("PUT", "operator-policies"): put_policy(True),
    ("DELETE", "policies"): lambda node, path, body, reason: node.policies.clear(*path),
    ("GET", "queues"): get_queue,
    ("GET", "connections"): get_connections,
    ("DELETE", "connections"): delete_connection,
    ("GET", "overview"): lambda node, path, body, reason: {"node": node.name},
}


class Administrator:
    """Serves the API of one broker on a free port, as a context manager."""

    def __init__(self, broker: Broker) -> None:
        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                _, _, resource, *path = (unquote(part) for part in self.path.split("/"))
                answer = ANSWERS[self.command, resource]
                reason = self.headers.get("X-Reason")
                status, text = 204, b""
                try:
                    result = broker.call(lambda node: answer(node, path, body, reason))
                    if self.command == "GET":
                        status, text = 200, json.dumps(result).encode()
                except NotThere as error:
                    status, text = 404, str(error).encode()
                except ValidationFailed as error:
                    why = f"Validation failed\n\n{error.text}\n"
                    if resource == "policies":
                        why = re.sub("<", "&lt;", why).replace(">", "&gt;")
                    status = 400
                    text = json.dumps({"error": "bad_request", "reason": why}).encode()
                except BrokerError as error:
                    status, text = 400, error.text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PUT = do_DELETE = serve

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Administrator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_conformance_suite_passes(warren_broker: Broker, tmp_path: Path) -> None:
    with Administrator(warren_broker) as administrator:
        suite = subprocess.run(
            [
                *(sys.executable, "-m", "warren", "conformance", warren_broker.url),
                *("--management", administrator.url, "-m", "not slow"),
            ],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert suite.returncode == 0, suite.stdout[-8000:] + suite.stderr[-2000:]
    passed = re.search(r"The broker conforms: (\d+) passed, 0 failed", suite.stdout)
    assert passed is not None, suite.stdout[-3000:]
    assert int(passed[1]) > 700


def test_slow_part_of_the_suite_passes(warren_broker: Broker, tmp_path: Path) -> None:
    """Heartbeats, handshake delays and the like, which wait for clocks on both sides."""
    suite = subprocess.run(
        [sys.executable, "-m", "warren", "conformance", warren_broker.url, "-m", "slow"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert suite.returncode == 0, suite.stdout[-8000:] + suite.stderr[-2000:]
