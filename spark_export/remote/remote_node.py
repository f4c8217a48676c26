"""Requests to a node over HTTP: one connection for each thread and node, with retries.

Every request here may be sent twice: files never change, and if the answer with a new snapshot is
lost, that snapshot is removed when its lease ends.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

from warren.spark_export import errors
from warren.spark_export.errors import NodeSilent, SparkExportError, StoreRefused
from warren.spark_export.node_urls import NodeAddress

TIMEOUT_S: Final = 60.0
"""The time for one answer. Making a snapshot of a large store takes seconds."""

CONNECT_TIMEOUT_S: Final = 5.0
"""The time for a connection, with its handshake: a host that is down may drop what it is sent."""

WAITS_S: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
"""The pauses before further tries: a node that restarts is back by then."""

PIECE_BYTES: Final = 1 << 20
"""Octets asked for at once; a node sends no more."""

BUSY: Final = (429, 500, 502, 503, 504)


class NodeClient:
    """Sends requests to one node, with a login or the token of a snapshot. Can be pickled."""

    def __init__(self, address: NodeAddress, authorization: str) -> None:
        self.address = address
        self._authorization = authorization

    def ask(self, method: str, *path: str, body: Any = None, once: bool = False) -> Any:
        """Send a request; returns the JSON of the answer, None if it is empty.

        The parts of the path are encoded here. With `once` there are no further tries. Raises the
        `SparkExportError` that the node names; `StoreRefused` for other refusals, `NodeSilent` if
        the node does not answer.
        """
        octets = None if body is None else json.dumps(body).encode()
        waits_s = () if once else WAITS_S
        answer = self._answer(method, path, octets, {"Content-Type": "application/json"}, waits_s)
        return json.loads(answer.body) if answer.body else None

    def read(self, *path: str, start: int, size: int) -> bytes:
        """Octets of a file from `start` on: up to `size`, at most `PIECE_BYTES`, none at its end.

        Raises FileNotFoundError, and what `ask` raises.
        """
        last = start + min(size, PIECE_BYTES) - 1
        answer = self._answer("GET", path, None, {"Range": f"bytes={start}-{last}"}, WAITS_S)
        return b"" if answer.status == 416 else answer.body

    def _answer(
        self,
        method: str,
        path: tuple[str, ...],
        body: bytes | None,
        headers: Mapping[str, str],
        waits_s: Sequence[float],
    ) -> _Answer:
        target = f"{self.address.prefix}/api/snapshots"
        target += "".join(f"/{quote(part, safe='')}" for part in path)
        sent = {**headers, "Authorization": self._authorization, "Accept-Encoding": "identity"}
        for wait_s in (*waits_s, None):
            try:
                answer = _answered(self.address, method, target, body, sent)
                if answer.status not in BUSY:
                    break
                reason = f"{answer.status} {answer.body.decode(errors='replace')[:200]}"
            except (OSError, HTTPException) as error:
                never = _why_never(error)
                if never is not None:
                    raise StoreRefused(f"{self.address.url}: {never}") from error
                reason = str(error) or type(error).__name__
            if wait_s is None:
                raise NodeSilent(f"{self.address.url} does not answer: {reason}")
            time.sleep(wait_s)
        if answer.status >= 400 and answer.status != 416:
            raise _refusal(self.address, answer)
        return answer


def ask_one(clients: Sequence[NodeClient], *path: str) -> tuple[NodeClient, Any]:
    """Ask nodes one after the other until one answers; if none does, again after a pause.

    Returns the client that got the answer, and its JSON. Raises what `ask` raises.
    """
    for wait_s in (*WAITS_S, None):
        refusals: list[StoreRefused] = []
        for client in clients:
            try:
                return client, client.ask("GET", *path, once=True)
            except StoreRefused as refusal:
                refusals.append(refusal)
        final = [refusal for refusal in refusals if not isinstance(refusal, NodeSilent)]
        if final or wait_s is None:
            raise (final or refusals)[-1]
        time.sleep(wait_s)
    raise AssertionError("the last round returns or raises")


class _Answer(NamedTuple):
    status: int
    body: bytes


class _Connections(threading.local):
    """The connections of this thread. Those opened before the process was forked are not used."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.open: dict[NodeAddress, HTTPConnection] = {}

    def close(self) -> None:
        for connection in self.open.values():
            connection.close()
        self.open.clear()


# Shared by the whole process: a task reads many files of one node.
_connections = _Connections()


def close_connections() -> None:
    """Close the connections of this thread, before it ends."""
    _connections.close()


def _answered(
    address: NodeAddress, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
) -> _Answer:
    """The answer to one request. Raises OSError, HTTPException; then the connection is closed."""
    if _connections.pid != os.getpid():
        _connections.__init__()  # type: ignore[misc]
    connection = _connections.open.get(address)
    if connection is None or connection.sock is None:
        # There is none, or its last answer ended it.
        connection = _connections.open[address] = _connect(address)
    try:
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        octets = response.read()
        _check_octets(response, octets)
        return _Answer(response.status, octets)
    except (OSError, HTTPException):
        connection.close()
        _connections.open.pop(address, None)
        raise


def _why_never(error: Exception) -> str | None:
    """Why a further try would fail, too; None if it may not."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error)
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "no TLS is spoken there; without it, a URL begins with warren:// or http://"
    if not isinstance(error, BadStatusLine) or isinstance(error, RemoteDisconnected):
        return None
    line = str(error.args[0])
    if line.startswith("AMQP"):
        return "AMQP is spoken there, and not HTTP; the port of the HTTP API is 15672 in most cases"
    # A connection may have been cut in the middle of the line.
    return None if "HTTP/".startswith(line[:5]) else f"no HTTP is spoken there: {line[:80]!r}"


def _check_octets(response: HTTPResponse, octets: bytes) -> None:
    """Raise HTTPException if these are not the octets sent, or if that cannot be checked."""
    if response.length is None and not response.chunked:
        # Without its length, an answer cannot be told from one that was cut off.
        raise HTTPException("an answer whose head is not whole")
    wanted = response.headers.get("Warren-Crc32")
    if wanted is None and response.status == 206:
        raise HTTPException("an answer without a checksum")
    if wanted is not None and int(wanted, 16) != crc32(octets):
        raise HTTPException("an answer that is not what was sent, by its checksum")


def _connect(address: NodeAddress) -> HTTPConnection:
    host, port = address.host, address.port
    connection = HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
    if address.tls:
        context = ssl.create_default_context(cafile=address.ca_file)
        connection = HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
    connection.connect()
    connection.sock.settimeout(TIMEOUT_S)
    return connection


def _refusal(address: NodeAddress, answer: _Answer) -> Exception:
    try:
        told = json.loads(answer.body)
        error, reason = str(told["error"]), str(told["reason"])
    except (ValueError, KeyError, TypeError):
        error, reason = "", answer.body.decode(errors="replace")[:200]
    if error == "FileNotFound":
        return FileNotFoundError(reason)
    kind = getattr(errors, error, None)
    if isinstance(kind, type) and issubclass(kind, SparkExportError):
        return kind(reason)
    if answer.status == 404 and not error.startswith("FileNot"):
        reason = f"{reason}; is it a Warren node of this version?"
    return StoreRefused(f"{address.url} refuses: {answer.status} {reason}")
