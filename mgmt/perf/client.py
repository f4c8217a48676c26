"""One connection with one channel, as thin over a socket as asyncio lets it be.

The handshake and the few calls of a run are coroutines. Deliveries, confirms and room to write are
reported to plain functions, since they come by the hundred thousand.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pamqp import commands

from warren.amqp.frames import METHOD, PROTOCOL_HEADER, frame
from warren.amqp.methods import Method, encode_method, make
from warren.core.field import Field, Table, longstr
from warren.mgmt.perf.errors import (
    BrokerUnreachable,
    ClosedByBroker,
    ConnectionLost,
    ConsumerCancelled,
    PerfError,
    PerfLoginRefused,
    ProtocolFault,
)
from warren.mgmt.perf.publication import CHANNEL
from warren.mgmt.perf.scenario import PerfTarget
from warren.mgmt.perf.stream import FRAME_MAX, Arrivals, Stream

CONNECT_S_MAX = 10.0
CLOSE_S_MAX = 5.0

WRITE_BUFFER_HIGH = 64 * 1024
"""Octets that may wait in the process for the socket. Waiting messages have a time stamp already,
so a larger buffer would count as latency of the broker."""

_ACCESS_REFUSED = 403
_REPLY_SUCCESS = 200
_PRODUCT = "warren perf"

M = TypeVar("M", bound=Method)


class PerfLink(asyncio.Protocol):
    """A connection to the broker. Make it with `connect`."""

    def __init__(self) -> None:
        self.frame_max = FRAME_MAX
        self.writable = True
        self.blocked = False
        self.on_arrivals: Callable[[Arrivals], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        """Called when there is room to write again, and when the broker unblocks."""
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = loop.create_future()
        """Gets a `PerfError` when the connection ends, or when its channel ends while no call waits
        for an answer; never a result."""
        self._stream = Stream()
        self._transport: asyncio.Transport
        self._awaited: tuple[type[Method], asyncio.Future[Any]] | None = None
        self._closing = False

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def call(self, method: Method, answer: type[M], channel: int = CHANNEL) -> M:
        """Send a method and wait for its answer. One call at a time.

        Raises `ClosedByBroker` if the broker closes the channel or the connection instead.
        """
        assert self._awaited is None, self._awaited
        if self.failed.done():
            self.failed.result()
        self.send(method, channel)
        return await self._receive(answer)

    def send(self, method: Method, channel: int = CHANNEL) -> None:
        self.write(frame(METHOD, channel, encode_method(method)))

    async def open_channel(self) -> None:
        """Open the channel; possible again after the broker has closed it."""
        await self.call(make(commands.Channel.Open), commands.Channel.OpenOk)

    async def close(self) -> None:
        """Close the connection, so that the broker has read all; cut it after `CLOSE_S_MAX`."""
        self._closing = True
        self.on_arrivals = self.on_writable = None
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                close = make(
                    commands.Connection.Close, reply_code=_REPLY_SUCCESS, reply_text="done"
                )
                await self.call(close, commands.Connection.CloseOk, channel=0)
        except (PerfError, TimeoutError):
            pass
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """Cut the connection without closing it in order."""
        self._closing = True
        self._transport.abort()

    async def log_in(self, address: PerfTarget) -> None:
        """Do the handshake up to an open channel."""
        try:
            await self._authenticate(address)
        except ConnectionLost as error:
            raise PerfLoginRefused(
                f"the broker at {address.place} ended the connection during the login as "
                f"{address.user!r}; it probably refuses the user or the password"
            ) from error
        except ClosedByBroker as error:
            if error.code == _ACCESS_REFUSED:
                raise PerfLoginRefused(f"login as {address.user!r} refused: {error}") from error
            raise
        opening = make(commands.Connection.Open, virtual_host=address.vhost)
        try:
            await self.call(opening, commands.Connection.OpenOk, channel=0)
        except ClosedByBroker as error:
            raise PerfLoginRefused(f"vhost {address.vhost!r} cannot be used: {error}") from error
        await self.open_channel()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)

    def data_received(self, data: bytes) -> None:
        try:
            arrivals = self._stream.receive_data(data)
        except ProtocolFault as fault:
            self.fail(fault)
            return
        for method in arrivals.methods:
            self._take(method)
        if self.on_arrivals is not None:
            try:
                self.on_arrivals(arrivals)
            except PerfError as error:
                self.fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self._closing:
            self._resolve_with_error(ConnectionLost("closed"))
        else:
            reason = f": {error}" if error else ""
            self.fail(ConnectionLost(f"the broker ended the connection without a word{reason}"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def fail(self, error: PerfError) -> None:
        """End the connection; `failed` and a waiting call get the error."""
        self._transport.abort()
        self._closing = True
        self.writable = False
        self._resolve_with_error(error)
        if not self.failed.done():
            self.failed.set_exception(error)
            # asyncio would report an exception that is never read, as after the end of a run.
            self.failed.exception()

    # Methods

    async def _authenticate(self, address: PerfTarget) -> None:
        self.write(PROTOCOL_HEADER)
        try:
            await self._receive(commands.Connection.Start)
        except ConnectionLost as error:
            raise BrokerUnreachable(
                f"what listens at {address.place} ended the connection at once; is it an AMQP "
                f"0-9-1 broker, and is the port the one {_with_tls(address)}?"
            ) from error
        response = b"\0".join((b"", address.user.encode("utf-8"), address.password.encode("utf-8")))
        start_ok = make(
            commands.Connection.StartOk,
            client_properties=_client_properties(),
            mechanism="PLAIN",
            response=response,
            locale="en_US",
        )
        tune = await self.call(start_ok, commands.Connection.Tune, channel=0)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        # Without heartbeats: a run shows a silent broker as a rate of 0, second by second.
        tune_ok = make(
            commands.Connection.TuneOk,
            channel_max=tune.channel_max,
            frame_max=self.frame_max,
            heartbeat=0,
        )
        self.send(tune_ok, channel=0)

    async def _receive(self, answer: type[M]) -> M:
        future: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        self._awaited = (answer, future)
        try:
            return await future
        finally:
            self._awaited = None

    def _take(self, method: Method) -> None:
        if self._awaited is not None:
            answer, future = self._awaited
            if isinstance(method, answer):
                if not future.done():
                    future.set_result(method)
                return
        handle = _NEWS.get(type(method))
        if handle is not None:
            handle(self, method)
        elif not self._closing:
            self.fail(ProtocolFault(f"the broker sent an unexpected {method.name}"))

    def _channel_closed(self, method: commands.Channel.Close) -> None:
        self.send(make(commands.Channel.CloseOk))
        error = ClosedByBroker("channel", method.reply_code or 0, method.reply_text)
        if not self._resolve_with_error(error):
            self.fail(error)

    def _connection_closed(self, method: commands.Connection.Close) -> None:
        self.send(make(commands.Connection.CloseOk), channel=0)
        self.fail(ClosedByBroker("connection", method.reply_code or 0, method.reply_text))

    def _consumer_cancelled(self, method: commands.Basic.Cancel) -> None:
        self.fail(ConsumerCancelled("the broker cancelled a consumer: its queue is gone"))

    def _blocked(self, method: commands.Connection.Blocked) -> None:
        self.blocked = True

    def _unblocked(self, method: commands.Connection.Unblocked) -> None:
        self.blocked = False
        if self.on_writable is not None:
            self.on_writable()

    def _resolve_with_error(self, error: PerfError) -> bool:
        """Give the error to the call that waits for an answer; False if there is none."""
        if self._awaited is None or self._awaited[1].done():
            return False
        self._awaited[1].set_exception(error)
        return True


_NEWS: dict[type[Method], Callable[[PerfLink, Any], None]] = {
    commands.Channel.Close: PerfLink._channel_closed,
    commands.Connection.Close: PerfLink._connection_closed,
    commands.Basic.Cancel: PerfLink._consumer_cancelled,
    commands.Connection.Blocked: PerfLink._blocked,
    commands.Connection.Unblocked: PerfLink._unblocked,
}
"""Methods that a broker sends unasked."""


async def connect(address: PerfTarget) -> PerfLink:
    """Make a connection that is logged in and has its channel open."""
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            link = await _reach(address)
            try:
                await link.log_in(address)
            except BaseException:
                link.abort()
                raise
    except TimeoutError as error:
        raise BrokerUnreachable(
            f"no AMQP broker answers at {address.place} within {CONNECT_S_MAX:.0f} s"
        ) from error
    except OSError as error:
        raise BrokerUnreachable(
            f"cannot reach a broker at {address.place}: {_reason(error)}"
        ) from error
    return link


async def _reach(address: PerfTarget) -> PerfLink:
    """Connect to the first of the host's addresses that accepts.

    asyncio can try them all itself, but reports several failures as one unreadable text.
    """
    loop = asyncio.get_running_loop()
    context = _tls_context(address)
    server_hostname = address.host if context else None
    failure: OSError | None = None
    for *_, place in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            _, link = await loop.create_connection(
                PerfLink, str(place[0]), int(place[1]), ssl=context, server_hostname=server_hostname
            )
        except OSError as error:
            failure = error
        else:
            return link
    assert failure is not None
    raise failure


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)


def _with_tls(address: PerfTarget) -> str:
    return "with TLS" if address.tls else "without TLS"


def _tls_context(address: PerfTarget) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    context = ssl.create_default_context(cafile=address.ca_file)
    if address.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _client_properties() -> Table:
    capabilities: Table = {
        name: Field("t", True)
        for name in (
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
        )
    }
    return {"product": longstr(_PRODUCT), "capabilities": Field("F", capabilities)}
