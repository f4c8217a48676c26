"""The shell around `ClientProtocol`: a socket of asyncio, a timer, and answers as awaitables.

Back-pressure goes both ways. While much waits in the socket, `may_publish` is False and the user
stops publishing; `ConnectionUser.writable` tells it to go on. `pause_reading` leaves the broker's
octets in the kernel's buffers. Octets written in one turn of the loop go out together.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

from pamqp import base, commands

from warren.client.events import (
    Answered,
    ChannelClosed,
    ConnectionEnded,
    Event,
    Opened,
)
from warren.client.handshake import Login, Tuning
from warren.client.protocol import ClientProtocol

WRITE_BUFFER_HIGH = 1 << 20
"""Octets that may wait in the socket before `may_publish` is False; a few of the largest frames."""

CLOSE_S = 5.0
"""The time a broker may take to answer a close."""

END_OF_TLS_S = 1.0
"""The time a broker may take to answer the end of TLS, before the socket is cut."""


class ConnectionFailed(Exception):
    """There is no connection, or it has ended. `code` is the broker's, 0 if it gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ChannelFailed(Exception):
    """The broker closed the channel instead of answering."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


Dial: TypeAlias = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects a protocol with a socket; the transport it returns is not used."""


class BrokerTarget(NamedTuple):
    """A broker, and how to connect and log in there. `shown` names it without secrets."""

    shown: str
    dial: Dial
    login: Login
    tuning: Tuning = Tuning()
    timeout_s: float = 60.0


def network(host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None) -> Dial:
    """Dial a host. With `tls`, `server_name` is the name that the certificate must have."""

    def dial(new: Callable[[], asyncio.Protocol]) -> Awaitable[object]:
        loop = asyncio.get_running_loop()
        if tls is None:
            return loop.create_connection(new, host, port)
        return loop.create_connection(new, host, port, ssl=tls, server_hostname=server_name)

    return dial


class ConnectionUser(Protocol):
    """The user of a connection."""

    def received(self, connection: ClientConnection, events: Sequence[Event]) -> None:
        """Take events other than answers: messages, confirms, ends."""
        ...

    def writable(self, connection: ClientConnection) -> None:
        """The socket takes octets again: publishes may go on."""
        ...


async def open_any(
    targets: Sequence[BrokerTarget], user: ConnectionUser
) -> tuple[ClientConnection, BrokerTarget]:
    """Connect to the first of these targets that accepts. Raises `ConnectionFailed`."""
    failures = []
    for target in targets:
        try:
            return await ClientConnection.open(target, user), target
        except ConnectionFailed as failure:
            failures.append((target, failure))
    if not failures:
        raise ConnectionFailed(0, "no broker is named")
    text = "; ".join(f"{target.shown}: {failure.text}" for target, failure in failures)
    raise ConnectionFailed(failures[-1][1].code, text)


class ClientConnection(asyncio.Protocol):
    """One connection to a broker; `open` makes it."""

    def __init__(self, target: BrokerTarget, user: ConnectionUser) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol(target.login, target.tuning, self._loop.time())
        self._user = user
        self._transport: asyncio.Transport
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._answers: defaultdict[int, deque[asyncio.Future[base.Frame]]] = defaultdict(deque)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._flush_due = False
        self._writable = True
        self._reads = True
        self._closing = False
        self.failure: ConnectionFailed | None = None
        """Why the connection has ended; None as long as it has not."""

    @classmethod
    async def open(cls, target: BrokerTarget, user: ConnectionUser) -> Self:
        """Connect and log in. Raises `ConnectionFailed`."""
        connection = cls(target, user)
        try:
            async with asyncio.timeout(target.timeout_s):
                await target.dial(lambda: connection)
                await connection._opened
        except TimeoutError:
            connection.abort()
            raise ConnectionFailed(0, f"not connected within {target.timeout_s:g} s") from None
        except OSError as error:
            # ssl.SSLError is an OSError.
            connection.abort()
            raise ConnectionFailed(0, str(error) or type(error).__name__) from error
        except BaseException:
            connection.abort()
            raise
        return connection

    # Asking and sending

    async def ask(self, channel: int, kind: type[base.Frame], **arguments: Any) -> Any:
        """Send a method and return its answer.

        Raises `ChannelFailed`, `ConnectionFailed`, and ValueError for arguments that do not fit
        their wire type.
        """
        if self.failure is not None:
            raise self.failure
        if kind is not commands.Channel.Open and not self._protocol.has_channel(channel):
            raise ChannelFailed(0, f"channel {channel} is closed")
        self._protocol.ask(channel, kind, self._loop.time(), **arguments)
        answer: asyncio.Future[base.Frame] = self._loop.create_future()
        self._answers[channel].append(answer)
        self.flush_soon()
        self._set_timer()
        return await answer

    async def open_channel(self, channel: int, *, confirms: bool = False) -> None:
        await self.ask(channel, commands.Channel.Open)
        if confirms:
            await self.ask(channel, commands.Confirm.Select)

    def publish(
        self,
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        *,
        mandatory: bool,
    ) -> int:
        """Send a message; returns its tag. Raises ValueError for properties that do not fit into a
        frame."""
        tag = self._protocol.publish(
            channel, exchange, routing_key, header, body, mandatory=mandatory
        )
        self.flush_soon()
        return tag

    def ack(self, channel: int, delivery_tag: int, *, multiple: bool) -> None:
        self._protocol.ack(channel, delivery_tag, multiple=multiple)
        self.flush_soon()

    @property
    def is_open(self) -> bool:
        return self.failure is None and self._opened.done() and not self._closing

    @property
    def may_publish(self) -> bool:
        """Whether the socket takes more octets, and the broker takes publishes."""
        return self.is_open and self._writable and self._protocol.blocked is None

    @property
    def blocked(self) -> str | None:
        """Why the broker wants no publishes; None if it takes them."""
        return self._protocol.blocked

    @property
    def server_properties(self) -> Mapping[str, Any]:
        """The server properties of the broker."""
        return self._protocol.server_properties

    def pause_reading(self) -> None:
        if self.failure is None and self._reads:
            self._reads = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.failure is None and not self._reads:
            self._reads = True
            self._protocol.did_not_listen(self._loop.time())
            self._transport.resume_reading()

    async def close(self) -> None:
        """Close the connection properly, then end the socket; returns when that is closed."""
        try:
            if self.failure is None and self._opened.done():
                self._closing = True
                self.resume_reading()
                self._protocol.close(self._loop.time())
                self.flush()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await asyncio.shield(self._ended)
        finally:
            self.abort()
            await self._until_lost()

    async def _until_lost(self) -> None:
        """Wait until the socket is closed: a loop that ends before would leave it open."""
        if not hasattr(self, "_transport"):
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_OF_TLS_S):
                    await asyncio.shield(self._lost)
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """End the socket at once."""
        self._end(ConnectionFailed(0, "the connection was given up"))

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.failure is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self.flush()
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        self._take(self._protocol.receive_data(data, self._loop.time()))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set_result(None)
        reason = str(error) if error is not None else "the broker closed the socket"
        self._take(self._protocol.receive_eof(reason))
        self._end(ConnectionFailed(0, reason))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self.is_open:
            self._user.writable(self)

    # Within

    def _take(self, events: list[Event]) -> None:
        """Pass answers to the callers of `ask`, and all other events to the user, in order."""
        if self.failure is not None:
            return
        others: list[Event] = []
        ended: ConnectionEnded | None = None
        for event in events:
            if isinstance(event, Answered):
                answer = self._answers[event.channel].popleft()
                if not answer.done():
                    answer.set_result(event.method)
            elif isinstance(event, Opened):
                if not self._opened.done():
                    self._opened.set_result(None)
            elif isinstance(event, ConnectionEnded):
                ended = event
            else:
                if isinstance(event, ChannelClosed):
                    self._fail_answers(event.channel, ChannelFailed(event.code, event.text))
                others.append(event)
        if others:
            self._user.received(self, others)
        self.flush()
        if ended is not None:
            self._end(ConnectionFailed(ended.code, ended.text))
        else:
            self._set_timer()

    def _end(self, failure: ConnectionFailed) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        if self._timer is not None:
            self._timer.cancel()
        if hasattr(self, "_transport"):
            # The last octets written, a close-ok, go out before the socket ends.
            if failure.code:
                self._transport.close()
            else:
                self._transport.abort()
        opened = self._opened.done()
        if not opened:
            self._opened.set_exception(failure)
            # The caller of `open` may have been cancelled.
            self._opened.exception()
        self._ended.set_result(None)
        for channel in list(self._answers):
            self._fail_answers(channel, failure)
        if opened:
            self._user.received(self, [ConnectionEnded(failure.code, failure.text)])

    def _fail_answers(self, channel: int, failure: Exception) -> None:
        for answer in self._answers.pop(channel, ()):
            if not answer.done():
                answer.set_exception(failure)
                answer.exception()

    def flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the protocol's output to the socket."""
        self._flush_due = False
        parts = self._protocol.data_to_send(self._loop.time())
        if parts and self.failure is None:
            self._transport.write(b"".join(parts))

    def _set_timer(self) -> None:
        at = self._protocol.deadline()
        if self._timer is not None:
            if at is not None and self._timer_at is not None and self._timer_at <= at:
                # The present timer goes off early at worst, and is set again then.
                return
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at is not None:
            self._timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._reads:
            self._protocol.did_not_listen(self._loop.time())
        self._take(self._protocol.tick(self._loop.time()))
