"""A client of etcd's JSON gateway: ranges, transactions, leases and watches.

Answerable for reaching one of several endpoints, for time-outs, for logging in, and for saying
exactly how a call failed; not for repeating a call that may have been done.

Theory. A call that changes something and got no answer may have been done: it raises
`EtcdOutcomeUnknown`, and the caller knows how to find out. A call that no endpoint has taken, or
one that only reads, is tried at each endpoint once and then raises `EtcdUnreachable`. If etcd
refuses a call with a reason, it raises `EtcdRefused`. After a failure the next endpoint is asked
first from then on.

This module imports aiohttp; only the code that builds the node of a cluster imports this module.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import aiohttp
import msgspec

from warren.mirror.definitions.etcd_messages import (
    FAILED_PRECONDITION,
    OUT_OF_RANGE,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    Failure,
    KeepAliveAnswer,
    LeaseAnswer,
    Range,
    RangeAnswer,
    TokenAnswer,
    Txn,
    TxnAnswer,
    WatchAnswer,
    WatchCreate,
    WatchLine,
)

REQUEST_TIMEOUT_S = 5.0
"""The time after which etcd itself says "request timed out", at its defaults."""
CONNECT_TIMEOUT_S = 2.0
WATCH_LINE_BYTES_MAX = 1 << 30
"""Limit of a line of a watch: etcd sends up to 1000 revisions in one, of at most 1.5 MiB each by
default."""

# Canceled, unknown, deadline exceeded, aborted, internal, unavailable: etcd has no leader, its
# leader changed, or a proposal timed out. The request may have been done.
UNCERTAIN = frozenset({1, 2, 4, 10, 13, 14})

Answer = TypeVar("Answer")
Attempt: TypeAlias = Callable[[str], Awaitable[Answer]]


class EtcdError(Exception):
    """A call to etcd failed; the subclasses say how."""


class EtcdUnreachable(EtcdError):
    """No endpoint took the call; or, if it only reads, no endpoint answered it."""


_NOTHING_SENT = (EtcdUnreachable, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class EtcdOutcomeUnknown(EtcdError):
    """The call was sent and not answered: it may have been done, or may still be done."""


class EtcdHistoryLost(EtcdError):
    """etcd has lost its data: it is another cluster, or an older state of this one."""


class EtcdRefused(EtcdError):
    """etcd answered that it refuses the call."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EtcdNotAllowed(EtcdRefused):
    """The user or the password is wrong, or the user has no permission for the call."""


class EtcdCompacted(EtcdRefused):
    """etcd no longer has the history from the wanted revision on."""

    def __init__(self, compact_revision: int = 0) -> None:
        super().__init__("the revision was compacted", OUT_OF_RANGE)
        self.compact_revision = compact_revision


class EtcdClient:
    """One node's client of etcd. Make it on the loop it is used on, and `close` it.

    `endpoints` are URLs such as `http://10.0.0.1:2379`. With a `user`, every call carries a token.
    The client gets one when it first needs it, and when etcd no longer accepts the last one. If a
    Unix `socket` is given, all calls go through it (`key_gateway.py`).
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: str | None = None,
        password: str = "",
        tls: ssl.SSLContext | None = None,
        socket: Path | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        if not endpoints:
            raise ValueError("no endpoint of etcd is given")
        self.endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        # Where it is, for the log.
        self.place = f"unix:{socket}" if socket is not None else ", ".join(self.endpoints)
        self.request_timeout_s = request_timeout_s
        self._preferred = 0
        self._user = user
        self._password = password
        self._token: str | None = None
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._connect_timeout_s = connect_timeout_s
        # The path may be too long for a Unix socket, so it is opened by way of its directory.
        self._directory_fd = os.open(socket.parent, os.O_PATH) if socket is not None else -1
        connector: aiohttp.BaseConnector
        # No limit of connections: each watch holds one, and few calls are made at a time.
        if socket is None:
            connector = aiohttp.TCPConnector(limit=0)
        else:
            path = f"/proc/self/fd/{self._directory_fd}/{socket.name}"
            connector = aiohttp.UnixConnector(path, limit=0)
        self._http = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20)

    async def close(self) -> None:
        await self._http.close()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    async def range(self, wanted: Range) -> RangeAnswer:
        """Read a range: as of its revision, or else the newest state that a majority agreed on."""
        return await self._call("/v3/kv/range", wanted, RangeAnswer, repeatable=True)

    async def txn(self, txn: Txn) -> TxnAnswer:
        return await self._call("/v3/kv/txn", txn, TxnAnswer)

    async def grant_lease(self, ttl_s: int) -> LeaseAnswer:
        """A new lease; etcd may grant it for longer than asked."""
        return await self._call("/v3/lease/grant", {"TTL": ttl_s}, LeaseAnswer)

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Start the lease's time anew; returns its time in seconds, 0 when it is gone.

        `timeout_s` is the time that one endpoint has to answer.
        """
        answer = await self._call(
            "/v3/lease/keepalive",
            {"ID": lease},
            KeepAliveAnswer,
            repeatable=True,
            timeout_s=timeout_s,
        )
        return answer.result.TTL

    async def revoke_lease(self, lease: int) -> None:
        """End the lease and delete its keys. Raises `EtcdRefused` if the lease is gone already."""
        await self._call("/v3/lease/revoke", {"ID": lease}, dict[str, Any])

    async def watch(self, wanted: WatchCreate) -> WatchStream:
        """The changes from a revision on, as they happen."""
        failures: list[str] = []
        for endpoint in self._in_turn():
            try:
                return await self._with_token(endpoint, partial(self._open_watch, wanted))
            except EtcdRefused:
                raise
            except (EtcdError, aiohttp.ClientError, OSError) as error:
                failures.append(self._failed(endpoint, error))
        raise EtcdUnreachable("; ".join(failures))

    async def _open_watch(self, wanted: WatchCreate, endpoint: str) -> WatchStream:
        self._check_open()
        body = msgspec.json.encode({"create_request": wanted})
        async with asyncio.timeout(self.request_timeout_s):
            response = await self._http.post(
                f"{endpoint}/v3/watch",
                data=body,
                headers=self._headers(),
                ssl=self._tls,
                timeout=self._timeout(None),
            )
            stream = WatchStream(response)
            try:
                stream.created = await stream.next_answer()
            except BaseException:
                stream.close()
                raise
        return stream

    async def _call(
        self,
        path: str,
        request: object,
        answer: type[Answer],
        *,
        repeatable: bool = False,
        timeout_s: float | None = None,
    ) -> Answer:
        """Make a call; a `repeatable` one may be done twice."""
        body = msgspec.json.encode(request)
        timeout = self._timeout(timeout_s or self.request_timeout_s)
        post = partial(self._post, path, body, timeout)
        failures: list[str] = []
        for endpoint in self._in_turn():
            try:
                content = await self._with_token(endpoint, post)
                return msgspec.json.decode(content, type=answer, strict=False)
            except _NOTHING_SENT as error:
                failures.append(self._failed(endpoint, error))
            except (
                EtcdOutcomeUnknown,
                aiohttp.ClientError,
                OSError,
                msgspec.MsgspecError,
            ) as error:
                text = self._failed(endpoint, error)
                if not repeatable:
                    raise EtcdOutcomeUnknown(text) from None
                failures.append(text)
        raise EtcdUnreachable("; ".join(failures))

    async def _with_token(self, endpoint: str, attempt: Attempt[Answer]) -> Answer:
        """Try, and try again if etcd no longer knows the token: then it has not done the call."""
        await self._log_in(endpoint)
        token = self._token
        try:
            return await attempt(endpoint)
        except EtcdNotAllowed as error:
            if token is None or not _token_is_stale(error):
                raise
        if self._token == token:
            self._token = None
        await self._log_in(endpoint)
        return await attempt(endpoint)

    async def _post(
        self, path: str, body: bytes, timeout: aiohttp.ClientTimeout, endpoint: str
    ) -> bytes:
        self._check_open()
        async with self._http.post(
            endpoint + path,
            data=body,
            headers=self._headers(),
            ssl=self._tls,
            timeout=timeout,
        ) as response:
            content = await response.read()
            if response.status != 200:
                raise _refusal(response.status, content)
            return content

    def _check_open(self) -> None:
        """Raises `EtcdUnreachable` if the client is closed: tasks that still run expect that."""
        if self._http.closed:
            raise EtcdUnreachable("the node is stopping")

    async def _log_in(self, endpoint: str) -> None:
        if self._user is None or self._token is not None:
            return
        body = msgspec.json.encode({"name": self._user, "password": self._password})
        try:
            timeout = self._timeout(self.request_timeout_s)
            content = await self._post("/v3/auth/authenticate", body, timeout, endpoint)
        except EtcdRefused as error:
            if error.code == FAILED_PRECONDITION:
                return  # This etcd has no authentication.
            raise EtcdNotAllowed(f"etcd refused user {self._user!r}: {error}", error.code) from None
        except (EtcdOutcomeUnknown, aiohttp.ClientError, OSError) as error:
            # The call that needs the token has not been sent yet.
            raise EtcdUnreachable(f"login: {_reason(error)}") from None
        self._token = msgspec.json.decode(content, type=TokenAnswer).token

    def _timeout(self, total_s: float | None) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total_s, sock_connect=self._connect_timeout_s)

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    def _in_turn(self) -> list[str]:
        return [*self.endpoints[self._preferred :], *self.endpoints[: self._preferred]]

    def _failed(self, endpoint: str, error: BaseException) -> str:
        """Ask another endpoint first from now on; returns the text about this failure."""
        if self.endpoints[self._preferred] == endpoint:
            self._preferred = (self._preferred + 1) % len(self.endpoints)
        return f"{endpoint}: {_reason(error)}"


class WatchStream:
    """The answers of one watch, in order; `created` is the first: the watch has begun."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._unread = bytearray()
        self.created = WatchAnswer()

    async def next_answer(self) -> WatchAnswer:
        """The next answer. Raises `EtcdUnreachable` when the stream has ended, `EtcdCompacted`,
        `EtcdRefused`."""
        if self._response.status != 200:
            raise _refusal(self._response.status, await self._response.read())
        try:
            line = msgspec.json.decode(await self._line(), type=WatchLine, strict=False)
        except msgspec.MsgspecError as error:
            raise EtcdUnreachable(f"the watch sent what is not etcd's: {error}") from None
        if line.error is not None:
            raise _failure(line.error, self._response.status)
        answer = line.result
        if answer is None:
            raise EtcdUnreachable("the watch sent neither a result nor an error")
        if answer.compact_revision:
            raise EtcdCompacted(answer.compact_revision)
        if answer.canceled:
            raise _cancellation(answer.cancel_reason)
        return answer

    def close(self) -> None:
        """End the watch; a task that waits for the next answer gets `EtcdUnreachable`."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # Without closing TLS in order: that needs the other side, which may be silent.
            connection.transport.abort()
        self._response.close()

    async def _line(self) -> bytes:
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > WATCH_LINE_BYTES_MAX:
                raise EtcdUnreachable(f"a line of the watch is longer than {WATCH_LINE_BYTES_MAX}")
            try:
                chunk = await self._response.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise EtcdUnreachable(f"the watch broke: {error!r}") from None
            if not chunk:
                raise EtcdUnreachable("the watch ended")
            self._unread += chunk
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def _refusal(status: int, content: bytes) -> EtcdError:
    try:
        failure = msgspec.json.decode(content, type=Failure)
    except msgspec.MsgspecError:
        # The answer is not etcd's: it is from a proxy, or from another server.
        return EtcdOutcomeUnknown(f"HTTP status {status}: {content[:200]!r}")
    return _failure(failure, status)


def _failure(failure: Failure, status: int) -> EtcdError:
    code = failure.code or failure.grpc_code
    message = failure.message or f"HTTP status {status}"
    if code in UNCERTAIN or code == 0:
        return EtcdOutcomeUnknown(message)
    if code in (PERMISSION_DENIED, UNAUTHENTICATED) or _is_about_auth(message):
        return EtcdNotAllowed(message, code)
    if code == OUT_OF_RANGE and "compacted" in message:
        return EtcdCompacted()
    return EtcdRefused(message, code)


def _cancellation(reason: str) -> EtcdError:
    if "auth token" in reason:
        return EtcdNotAllowed(f"the watch was refused: {reason}", UNAUTHENTICATED)
    if "permission denied" in reason:
        return EtcdNotAllowed(f"the watch was refused: {reason}", PERMISSION_DENIED)
    return EtcdUnreachable(f"the watch was cancelled: {reason or 'no reason given'}")


def _is_about_auth(message: str) -> bool:
    """Whether a message is about authentication: etcd sends some of them as invalid arguments."""
    return any(
        words in message
        for words in ("authentication failed", "auth store is old", "user name is empty")
    )


def _token_is_stale(error: EtcdNotAllowed) -> bool:
    return error.code == UNAUTHENTICATED or "auth store is old" in str(error)
