"""With few file descriptors strangers cannot take those that the node needs for its own files."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from warren.compat_tests.raw_client import RawClient

LIMIT = 100
STRANGERS = 150


class Strangers:
    """Connections that say nothing."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def crowd(self, port: int) -> None:
        for _ in range(STRANGERS):
            self._sockets.append(socket.create_connection(("127.0.0.1", port), timeout=30))

    def connected(self) -> int:
        """How many have not been refused."""
        count = 0
        for one in self._sockets:
            one.settimeout(0)
            try:
                one.recv(1)
            except BlockingIOError:
                count += 1
            except OSError:
                continue
        return count

    def leave(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    crowd = Strangers()
    yield crowd
    crowd.leave()


def open_files(server: Any) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def shown(port: int) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/nodes")
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        (node,) = json.load(answer)
    return node


def test_strangers_leave_descriptors_to_the_files_of_the_node(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    until: Callable[..., None],
    strangers: Strangers,
    tmp_path: Path,
) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    config = "\n".join(
        (
            "msg_store_file_size_limit = 2000000",
            "listeners.ssl.1 = 127.0.0.1:0",
            f"ssl_options.certfile = {tmp_path / 'cert.pem'}",
            f"ssl_options.keyfile = {tmp_path / 'key.pem'}",
        )
    )
    server = start_server("--http", "127.0.0.1:0", config=config, descriptors=LIMIT)
    ports = re.search(r"http (\d+)", server.ready_line)
    assert ports is not None
    http_port = int(ports[1])
    channel = connect(server).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    other = channel.client.channel()
    before = shown(http_port)
    assert before["fd_total"] == LIMIT
    assert before["sockets_used"] == 1 < before["sockets_total"] < LIMIT - 25
    for port in (server.port, http_port, server.tls_port):
        strangers.crowd(port)
        until(lambda: 0 < strangers.connected() < STRANGERS)
        assert open_files(server) < LIMIT - 15
        # The journal writes, also to new files, and definitions are written.
        for number in range(20):
            channel.publish(bytes(1 << 20), "q", delivery_mode=2)
            other.declare(f"q{number}-{port}", durable=True)
        assert channel.confirms(20)
        strangers.leave()
        until(lambda: open_files(server) < LIMIT // 2)
    connect(server).close()
    log = server.log
    assert "storage_write_failed" not in log and "Traceback" not in log
    assert 1 <= log.count("connections_refused") <= 2, log
    connect(server)


def test_nearly_all_sockets_that_are_promised_can_be_had(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server("--http", "127.0.0.1:0", descriptors=LIMIT)
    ports = re.search(r"http (\d+)", server.ready_line)
    assert ports is not None
    total = shown(int(ports[1]))["sockets_total"]
    with ExitStack() as stack:
        for _ in range(total - 3):
            client = connect(server)
            stack.callback(client.abandon)
        assert shown(int(ports[1]))["sockets_used"] == total - 3
