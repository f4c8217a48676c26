"""Requests to a node's HTTP API, through its control socket or over the network.

The control socket is in the node's data directory. The user who can open it may do everything, so
there is no password. Over the network requests have a user's login, and that user's rights.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from warren.mgmt.ctl.errors import (
    CtlError,
    Exit,
    NeedsLocal,
    NodeUnreachable,
    RequestRefused,
    WrongUsage,
)
from warren.persist.disk.control_socket import ControlConnection
from warren.persist.disk.data_directory import CONTROL_SOCKET

API = "/api"
PAUSED_HEADER = "Warren-Paused"
HTTP_PORTS = {"http": 15672, "https": 15671}
LOCAL_PATHS = "/control/"
REMOTE_PATHS = ("/control/status", "/control/cluster-status", "/control/members")
"""The control paths that monitors may use over the network."""
DEFAULT_TIMEOUT_S = 60.0

PEER_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end of a Unix socket, as Linux gives them."""


class NodeTarget(Protocol):
    """How a node is reached."""

    @property
    def local(self) -> bool: ...

    @property
    def prefix(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def connection(self, timeout_s: float | None) -> http.client.HTTPConnection: ...

    def describe(self) -> str: ...

    def advice(self) -> str: ...


@dataclass(frozen=True)
class LocalTarget:
    """The control socket of the node with this data directory."""

    data_directory: Path

    local = True
    prefix = ""

    @property
    def headers(self) -> Mapping[str, str]:
        return {}

    def connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        return ControlConnection(self.data_directory, timeout_s)

    def describe(self) -> str:
        return f"the control socket {self.data_directory.absolute() / CONTROL_SOCKET}"

    def advice(self) -> str:
        processes = self.data_directory / "processes"
        if processes.is_dir():
            return (
                "This is the first process of a broker. Does the broker run?"
                f" --data-dir {processes / '2'} asks its second one."
            )
        return (
            "Is the node running? --data-dir says where its data directory is,"
            " --url http://HOST:15672 asks a node over the network."
        )


@dataclass(frozen=True)
class RemoteTarget:
    """A node's HTTP listener, and the user of the requests."""

    url: str
    username: str
    password: str
    cacert: str | None = None
    insecure: bool = False

    local = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in HTTP_PORTS and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise CtlError(
                f"http://HOST:PORT or https://HOST:PORT was wanted, not {self.url!r}", Exit.USAGE
            )

    @property
    def prefix(self) -> str:
        return urlsplit(self.url).path.rstrip("/")

    @property
    def headers(self) -> Mapping[str, str]:
        token = b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")
        return {"Authorization": f"Basic {token}"}

    def connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or HTTP_PORTS[parts.scheme]
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls())

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.cacert)
        except (OSError, ssl.SSLError) as error:
            raise CtlError(f"--cacert {self.cacert}: {error}", Exit.USAGE) from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def describe(self) -> str:
        return f"{self.url} as user {self.username}"

    def advice(self) -> str:
        return "Is the node running, and does it listen for HTTP there?"


class ControlClient:
    """Sends requests to one node, over one connection that is kept open.

    `warn` is called once if the node has paused, with a text that says why and what its answers
    are worth.
    """

    def __init__(
        self,
        target: NodeTarget,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.target = target
        self._warn: Callable[[str], None] | None = warn
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self, *path: str, **query: str) -> Any:
        return self.request("GET", *path, query=query)

    def find(self, *path: str, **query: str) -> Any:
        """The answer of `get`, or None if the object does not exist."""
        if "" in path:
            # No object has an empty name: the node would answer with the list of all.
            return None
        try:
            return self.get(*path, **query)
        except RequestRefused as refused:
            if refused.status == 404:
                return None
            raise

    def put(self, *path: str, body: Any = None) -> Any:
        return self.request("PUT", *path, body={} if body is None else body)

    def post(self, *path: str, body: Any = None) -> Any:
        return self.request("POST", *path, body={} if body is None else body)

    def delete(self, *path: str, query: Mapping[str, str] | None = None, **headers: str) -> None:
        named = {f"X-{name.capitalize()}": value for name, value in headers.items()}
        self.request("DELETE", *path, query=query or {}, headers=named)

    def request(
        self,
        method: str,
        *path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request; returns the JSON of the answer, None if it is empty.

        Raises `RequestRefused` if the node refuses the request, otherwise `CtlError`.
        """
        # Some addresses to read from end with a slash; a change is always of an object.
        if "" in (path[:-1] if method == "GET" else path):
            raise WrongUsage("a name cannot be empty string.")
        where = "/" + "/".join(quote(part, safe="", errors="surrogateescape") for part in path)
        if where.startswith(LOCAL_PATHS) and where not in REMOTE_PATHS and not self.target.local:
            raise NeedsLocal("This")
        if query:
            where += "?" + urlencode(query)
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        status, answer = self._exchange(method, where, data, headers or {})
        if status >= 300:
            raise _refusal(self.target, status, answer)
        return _parsed(answer)

    def peer_pid(self) -> int | None:
        """The process at the other end of the control socket; None over the network."""
        self._open()
        connection = self._connection
        if not isinstance(connection, ControlConnection) or connection.sock is None:
            return None
        said = connection.sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size
        )
        pid: int = PEER_CREDENTIALS.unpack(said)[0]
        return pid or None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, method: str, where: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        self._open()
        connection = self._connection
        assert connection is not None
        try:
            connection.putrequest(method, f"{self.target.prefix}{API}{where}")
            for name, value in {**self.target.headers, **headers}.items():
                connection.putheader(name, value.encode("utf-8"))
            if data is not None:
                connection.putheader("Content-Type", "application/json")
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            paused = response.getheader(PAUSED_HEADER)
            if paused is not None and self._warn is not None:
                self._warn(paused)
                self._warn = None
            return response.status, response.read()
        except TimeoutError as error:
            self.close()
            raise CtlError(
                f"the node did not answer in {self._timeout_s:g} seconds", Exit.TIMEOUT
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise CtlError(
                f"the connection to the node was lost before its answer came ({error}): the node"
                " may be stopping or pausing, and its log says why; the command may have been"
                " carried out"
            ) from error

    def _open(self) -> None:
        """Connect, unless connected. Raises `NodeUnreachable`."""
        if self._connection is not None:
            return
        connection = self.target.connection(self._timeout_s)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            # The name of a host that is too long, or has an empty part, raises UnicodeError.
            connection.close()
            raise NodeUnreachable(
                self.target.describe(), _reason(error), self.target.advice()
            ) from error
        self._connection = connection


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, PermissionError):
        return "permission denied: only the user who runs the node may open it"
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def _parsed(answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise CtlError(f"the answer is not JSON, is this a node? {error}") from error


def _refusal(target: NodeTarget, status: int, answer: bytes) -> CtlError:
    try:
        said = msgspec.json.decode(answer) if answer else {}
    except msgspec.DecodeError:
        said = {}
    if not isinstance(said, dict):
        said = {"reason": said}
    found = said.get("reason", "")
    reason = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    # The node escapes texts of validation for web pages.
    reason = unescape(reason).strip()
    if status == 401 and not target.local:
        return CtlError(f"{target.describe()}: {reason or 'login failed'}")
    if status == 404 and said.get("error") != "not_found" and reason == "Not Found":
        reason = "not_found"
    return RequestRefused(status, said, reason)
