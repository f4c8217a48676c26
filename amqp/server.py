"""The shell around connections: sockets, TLS, the PROXY protocol, writing, back-pressure.

No rule of AMQP is decided here. A protocol object per socket passes octets to its `Connection` and
writes the connection's output once per turn of the loop: protocols with output register with the
listener, which flushes them all together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from warren.amqp.accepting import Acceptor, SocketOptions
from warren.amqp.connection import Connection
from warren.amqp.peer import ConnectionSettings, Peer
from warren.amqp.proxy_preface import ProxyReader, read_preface
from warren.amqp.state import BEFORE_RUNNING
from warren.amqp.tls_session import TlsSession, tls_session
from warren.core.access.access_control import User
from warren.core.log_line import log_event, log_fault
from warren.core.node import Node

log = logging.getLogger("warren.connection")

WRITE_BUFFER_HIGH = 256 * 1024
"""Octets that may wait for the peer to read them before the connection's consumers are blocked."""

MUCH_BYTES = 8 * 1024
MUCH_BYTES_PER_US = 128
"""Reading at least `MUCH_BYTES` in one go counts as work: `MUCH_BYTES_PER_US` octets are a
microsecond. Otherwise one turn of the loop might read megabytes from each of a hundred
publishers."""

ABORTED_S = 5.0
"""The time that connections may take to end after they were cut when the node stops."""

LOST_US = 300
"""The cost of the end of a connection, including the line in the log, in the microseconds of
`core/scheduling/turns.py`."""

OUTPUT_MAX = 16 * 1024 * 1024
"""Octets written to a socket that its peer may leave unread before we stop reading from it too. The
limit is far above `WRITE_BUFFER_HIGH`, so that a client that writes and reads in one thread is not
locked out."""

LARGE_PART = 4096
"""Average size in octets from which on parts are written without joining them."""

FLUSHES_WHEN_QUIET = 10
"""An idle node writes to its clients this many times, or less, between two calls of `was_busy`."""

BACKLOG = 4096
"""Connections that may wait in the kernel while the loop is busy; thousands reconnect at once."""

LOOPBACK = "127.0.0.1"
"""The address shown for a client within the node."""

CERTIFICATE_CHECK_S = 30.0
"""The time between checks whether certificate files were renewed."""


class TlsFiles(NamedTuple):
    """A TLS context and the files of its certificate."""

    context: ssl.SSLContext
    certificate: Path
    key: Path
    password: str = ""

    def reload(self) -> None:
        """Use the files as they are now for new connections."""
        self.context.load_cert_chain(self.certificate, self.key, self.password)

    def changed_at(self) -> float:
        return max(self.certificate.stat().st_mtime, self.key.stat().st_mtime)


class AmqpProtocol(asyncio.Protocol):
    """One socket; the `Shell` of its connection."""

    __slots__ = (
        "_connection",
        "_header",
        "_header_timer",
        "_inner",
        "_listener",
        "_receiving",
        "_source",
        "_tls",
        "_transport",
    )

    def __init__(
        self,
        listener: AmqpListener,
        tls: bool,
        source: tuple[str, int] | None = None,
        inner: Peer | None = None,
    ) -> None:
        self._listener = listener
        self._tls = tls
        # The address of the client that the balancer sent before TLS.
        self._source = source
        # The peer, if the client is within this process.
        self._inner = inner
        self._transport: asyncio.Transport
        self._connection: Connection | None = None
        self._header = b""
        self._header_timer: asyncio.TimerHandle | None = None
        self._receiving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin()
        except Exception:
            self.fault()

    def _begin(self) -> None:
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if self._inner is not None:
            self._listener.admit_inner(self)
            self._start(self._inner)
        elif not self._listener.admit(self):
            self._transport.abort()
        elif self._listener.read_proxy_header is None or self._tls:
            self._start(self._behind(self._source))
        else:
            self._header_timer = self._listener.after_handshake_timeout(self.abort)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            self._read_proxy_header(data)
            return
        connection.received_octets += len(data)
        connection.received_count += 1
        self._receiving = True
        try:
            connection.receive_data(data)
        except Exception:
            self.fault()
        self._receiving = False
        if connection.flush_requested:
            # Answers are not made to wait for the end of the turn.
            self._listener.flush_now(self)
        if len(data) >= MUCH_BYTES:
            turns = connection.node.turns
            turns.spend(len(data) // MUCH_BYTES_PER_US)
            if turns.left_us <= 0:
                connection.wait_for_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        connection = self._connection
        if connection is not None and connection.node.turns.over:
            # Thousands of connections may be lost in one moment, when a network fails.
            connection.node.turns.soon(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._listener.forget(self)
        self._stop_header_timer()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.node.turns.spend(LOST_US)
            try:
                connection.connection_lost()
            except Exception:
                log_fault(log, "connection_end_failed", peer=connection.peer.name)

    def pause_writing(self) -> None:
        self._tell_writable(False)

    def resume_writing(self) -> None:
        self._tell_writable(True)

    # Shell

    def request_flush(self) -> None:
        if not self._receiving:
            self._listener.flush_soon(self)

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def owed_octets(self) -> int:
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    @property
    def is_new(self) -> bool:
        """Whether its client has not opened its connection yet."""
        connection = self._connection
        return connection is None or connection.state in BEFORE_RUNNING

    def abort(self) -> None:
        self._transport.abort()

    def fault(self) -> None:
        """The broker has failed to serve this peer: log that, and end this connection only."""
        connection = self._connection
        if connection is None:
            log_fault(log, "internal_error")
            self._transport.abort()
            return
        log_fault(log, "internal_error", peer=connection.peer.name)
        try:
            connection.internal_error()
        except Exception:
            log_fault(log, "connection_close_failed", peer=connection.peer.name)
            self._transport.abort()

    def flush(self) -> None:
        """Write the output of the connection."""
        connection = self._connection
        if connection is None:
            return
        parts = connection.take_output()
        transport = self._transport
        if not parts or transport.is_closing():
            return
        size = sum(map(len, parts))
        connection.sent_octets += size
        connection.sent_count += 1
        if size > LARGE_PART * len(parts):
            # Copying large bodies into one buffer costs more than a vectored write.
            transport.writelines(parts)
        else:
            transport.write(b"".join(parts))
        if size > WRITE_BUFFER_HIGH or not connection.socket_writable:
            self._check_owed(connection)

    def force_close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.force_close(reason)

    def _tell_writable(self, writable: bool) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.writable(writable)
            if writable:
                connection.resume("output")
        except Exception:
            self.fault()

    def _check_owed(self, connection: Connection) -> None:
        if self._transport.get_write_buffer_size() > OUTPUT_MAX:
            connection.pause("output")

    def _start(self, peer: Peer) -> None:
        self._connection = Connection(self._listener.node, self._listener.settings, self, peer)

    def _read_proxy_header(self, data: bytes) -> None:
        self._header += data
        peer = self._socket_peer()
        assert self._listener.read_proxy_header is not None
        try:
            found = self._listener.read_proxy_header(self._header)
        except ValueError as error:
            log_event(log, logging.WARNING, "proxy_header_refused", peer=peer.name, reason=error)
            self._transport.abort()
            return
        if found is None:
            return
        source, rest = found
        self._header = b""
        self._stop_header_timer()
        self._start(self._behind(source))
        if rest:
            self.data_received(rest)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _behind(self, source: tuple[str, int] | None) -> Peer:
        """The client at that address, or if it is None, the peer of the socket."""
        peer = self._socket_peer()
        if source is None:
            return peer
        return dataclasses.replace(peer, host=source[0], port=source[1])

    def _socket_peer(self) -> Peer:
        host, port = _address(self._transport.get_extra_info("peername"))
        local_host, local_port = _address(self._transport.get_extra_info("sockname"))
        certificate = self._transport.get_extra_info("peercert") if self._tls else None
        name = self._listener.certificate_login(certificate) if certificate else None
        return Peer(host, port, local_host, local_port, self._tls, name, self._session(certificate))

    def _session(self, certificate: dict[str, Any] | None) -> TlsSession | None:
        agreed = self._transport.get_extra_info("ssl_object") if self._tls else None
        if agreed is None or agreed.cipher() is None:
            return None
        return tls_session(agreed.version(), agreed.cipher()[0], certificate)


class AmqpListener:
    """The AMQP listeners of a node, and the sockets that they accepted.

    `certificate_login` returns the user name for a peer certificate (`ssl.SSLSocket.getpeercert`).
    """

    def __init__(
        self,
        node: Node,
        settings: ConnectionSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        certificate_login: Callable[[dict[str, Any]], str | None],
        read_proxy_header: ProxyReader | None = None,
        connection_max: int | None = None,
        descriptor_limit: int = sys.maxsize,
        backlog: int = BACKLOG,
        sockets: SocketOptions | None = None,
        tls_handshake_timeout_s: float | None = None,
    ) -> None:
        self.node = node
        self.settings = settings
        self.read_proxy_header = read_proxy_header
        self.certificate_login = certificate_login
        self._loop = loop
        self._connection_max = connection_max
        self._suspended = False
        self._acceptor = Acceptor(descriptor_limit, backlog=backlog, sockets=sockets)
        self._tls_handshake_timeout_s = tls_handshake_timeout_s or settings.handshake_timeout_s
        self._protocols: set[AmqpProtocol] = set()
        self._unflushed: list[AmqpProtocol] = []
        self._flushes = 0
        self._tls: list[TlsFiles] = []
        self._certificate_timer: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections; port 0 picks a free one. Returns the port."""
        bound = await self._acceptor.listen(
            host,
            port,
            lambda: AmqpProtocol(self, tls is not None),
            tls.context if tls is not None else None,
            self._tls_handshake_timeout_s,
            self._introduce if tls is not None and self.read_proxy_header is not None else None,
        )
        if tls is not None:
            self._tls.append(tls)
            self._watch_certificates(tls.changed_at())
        return bound

    async def _introduce(self, connection: socket.socket) -> Callable[[], asyncio.BaseProtocol]:
        assert self.read_proxy_header is not None
        try:
            source = await read_preface(connection, self.read_proxy_header)
        except ValueError as error:
            host, port = _address(connection.getpeername())
            log_event(
                log,
                logging.WARNING,
                "proxy_header_refused",
                peer=f"{host}:{port}",
                reason=error,
            )
            raise
        return lambda: AmqpProtocol(self, True, source)

    async def connect_within(
        self, new_client: Callable[[], asyncio.Protocol], user: User | None
    ) -> None:
        """Connect a client in this process, through a pair of sockets without a network.

        It is let in as `user`; if that is None, it has to log in with a password.
        """
        here, there = socket.socketpair()
        inner = Peer(LOOPBACK, 0, LOOPBACK, 0, admitted=user)
        try:
            await self._loop.connect_accepted_socket(
                lambda: AmqpProtocol(self, False, inner=inner), there
            )
        except BaseException:
            here.close()
            there.close()
            raise
        await self._loop.create_unix_connection(new_client, sock=here)

    @property
    def open_sockets(self) -> int:
        return len(self._protocols)

    def reload_certificates(self) -> None:
        """Use the certificate files as they are now; a file that cannot be used is only logged."""
        for tls in self._tls:
            try:
                tls.reload()
            except (OSError, ssl.SSLError) as error:
                log_event(
                    log,
                    logging.ERROR,
                    "certificate_not_reloaded",
                    file=tls.certificate,
                    error=error,
                )

    def suspend(self, suspended: bool) -> None:
        """Let no new clients in, or let them in again; clients with open connections stay."""
        if suspended is self._suspended:
            return
        self._suspended = suspended
        if not suspended:
            self._acceptor.resume()
        else:
            self._acceptor.suspend()
            for protocol in [one for one in self._protocols if one.is_new]:
                protocol.abort()

    async def stop(self, grace_s: float, reason: str = "shutdown") -> None:
        """Stop accepting, close all connections, and cut those left after the grace period."""
        if self._certificate_timer is not None:
            self._certificate_timer.cancel()
        self._acceptor.close()
        for protocol in list(self._protocols):
            protocol.force_close(f"broker forced connection closure with reason '{reason}'")
        deadline = self._loop.time() + grace_s
        while self._protocols and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for protocol in list(self._protocols):
            protocol.abort()
        deadline = self._loop.time() + ABORTED_S
        while self._protocols and self._loop.time() < deadline:
            await asyncio.sleep(0)

    def admit(self, protocol: AmqpProtocol) -> bool:
        """Admit a new socket; False if there are too many, or if new clients are not let in."""
        if self._suspended:
            return False
        limit = self._connection_max
        if limit is not None:
            beside = self.node.vhost_limits.elsewhere.beside()
            if len(self._protocols) + beside >= limit:
                log_event(log, logging.WARNING, "connection_refused", connection_max=limit)
                return False
        self._protocols.add(protocol)
        return True

    def admit_inner(self, protocol: AmqpProtocol) -> None:
        """Admit a socket of the node's own, to which no limits apply."""
        self._protocols.add(protocol)

    def forget(self, protocol: AmqpProtocol) -> None:
        self._protocols.discard(protocol)

    def after_handshake_timeout(self, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back when the time that a handshake may take is over."""
        return self._loop.call_later(self.settings.handshake_timeout_s, callback)

    def flush_soon(self, protocol: AmqpProtocol) -> None:
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(protocol)

    def flush_now(self, protocol: AmqpProtocol) -> None:
        self._flushes += 1
        try:
            protocol.flush()
        except Exception:
            log_fault(log, "connection_write_failed")
            protocol.abort()

    def was_busy(self) -> bool:
        """Whether clients were written to since the last call; a few heartbeats do not count."""
        flushes, self._flushes = self._flushes, 0
        return flushes > FLUSHES_WHEN_QUIET

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for protocol in unflushed:
            self.flush_now(protocol)

    def _watch_certificates(self, seen: float) -> None:
        if self._certificate_timer is not None:
            self._certificate_timer.cancel()

        def check() -> None:
            newest = seen
            try:
                newest = max(tls.changed_at() for tls in self._tls)
            except OSError as error:
                log_event(log, logging.ERROR, "certificate_not_readable", error=error)
            if newest != seen:
                self.reload_certificates()
            self._watch_certificates(newest)

        self._certificate_timer = self._loop.call_later(CERTIFICATE_CHECK_S, check)


def _address(address: Any) -> tuple[str, int]:
    """The host and port of a socket address; unix sockets have neither."""
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return "unix", 0
