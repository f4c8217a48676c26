"""Accepts connections, as long as there are file descriptors for them.

The servers of the event loop accept connections until the process has no descriptor left for its
files. Here a socket whose number is too high (`core/resources/descriptors.py`) is closed at once;
the log says so once, until there is room again. When the system itself has no descriptors left, the
listener pauses.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from warren.core.log_line import log_event

log = logging.getLogger("warren.connection")

ACCEPTED_A_TURN = 16
"""Connections accepted from one listener in one turn of the loop; each costs some 50 µs."""

PAUSE_S = 0.1
"""The pause after an accept that failed; connections wait in the kernel."""

ANY = "::"
ANY_IPV4 = "0.0.0.0"

SAME_PORT_TRIES = 20
"""How many free ports of IPv6 are tried, as other programs may use the same port of IPv4."""

OVER_S = 10.0
"""If no connection was refused for so long, there is room again."""


Take: TypeAlias = Callable[[socket.socket], None]
"""Serves a connection that was accepted."""

Introduce: TypeAlias = Callable[[socket.socket], Awaitable[Callable[[], asyncio.BaseProtocol]]]
"""Reads the octets before TLS and returns the protocol factory. Raises ValueError for octets that
make no sense, and OSError."""


class SocketOptions(NamedTuple):
    """The options set on accepted sockets; None leaves a size to the system.

    `linger_s` is how long closing a socket waits for unsent output. With `shared_ports` other
    processes of this broker listen at the same ports, and the kernel distributes the connections.
    """

    nodelay: bool = True
    keepalive: bool = False
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    linger_s: int | None = None
    shared_ports: bool = False

    def apply(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, self.nodelay)
        if self.keepalive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.send_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
        if self.linger_s is not None:
            how = struct.pack("ii", 1, self.linger_s)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)


class Acceptor:
    """The listening sockets of one protocol. Sockets from number `descriptor_limit` on are
    refused."""

    def __init__(
        self, descriptor_limit: int, *, backlog: int, sockets: SocketOptions | None = None
    ) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._sockets = sockets or SocketOptions()
        self._descriptor_limit = descriptor_limit
        self._backlog = backlog
        self._full = False
        self._refused_at = 0.0
        self._listening: dict[socket.socket, Take] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    async def listen(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        tls_handshake_timeout_s: float | None = None,
        introduce: Introduce | None = None,
    ) -> int:
        """Accept connections for protocols that `factory` makes; port 0 picks a free one.

        If `introduce` is given, it returns the factory for each connection before TLS begins. The
        host `::` is every address of the machine, of IPv6 and of IPv4. Returns the port; raises
        OSError.
        """

        self._loop = asyncio.get_running_loop()

        def take(connection: socket.socket) -> None:
            work = self._connect(connection, factory, tls, tls_handshake_timeout_s, introduce)
            task = self._loop.create_task(work)
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

        bound = await bind(host, port, shared=self._sockets.shared_ports)
        for listener in bound:
            listener.listen(self._backlog)
            self._listening[listener] = take
            self._loop.add_reader(listener, self._accept, listener)
        first: int = bound[0].getsockname()[1]
        return first

    def suspend(self) -> None:
        """Have the kernel give all connections to the other processes that share the ports.

        Without such processes the listeners stay open, so that no other program gets their ports,
        and the server refuses each client.
        """
        if not self._sockets.shared_ports:
            return
        for listener in self._listening:
            self._stop_reading(listener)
            listener.shutdown(socket.SHUT_RD)

    def resume(self) -> None:
        """Accept connections again after `suspend`. Raises OSError."""
        if not self._sockets.shared_ports:
            return
        for listener in self._listening:
            listener.listen(self._backlog)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting connections."""
        for listener in self._listening:
            self._stop_reading(listener)
            listener.close()
        self._listening.clear()
        for task in self._connecting:
            task.cancel()

    def _stop_reading(self, listener: socket.socket) -> None:
        pause = self._pauses.pop(listener, None)
        if pause is not None:
            pause.cancel()
        self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._note_full(str(error))
                self._pause(listener)
                return
            if connection.fileno() >= self._descriptor_limit:
                connection.close()
                self._note_full("too many open files")
                continue
            if self._full and self._loop.time() >= self._refused_at + OVER_S:
                self._full = False
                log_event(log, logging.INFO, "connections_accepted_again")
            connection.setblocking(False)
            self._listening[listener](connection)

    def _note_full(self, reason: str) -> None:
        self._refused_at = self._loop.time()
        if not self._full:
            self._full = True
            log_event(
                log,
                logging.WARNING,
                "connections_refused",
                reason=reason,
                descriptor_limit=self._descriptor_limit,
            )

    def _pause(self, listener: socket.socket) -> None:
        """Stop watching a listener for `PAUSE_S`: the connection that cannot be accepted would wake
        the loop in every turn."""

        def go_on() -> None:
            del self._pauses[listener]
            self._loop.add_reader(listener, self._accept, listener)

        self._loop.remove_reader(listener)
        self._pauses[listener] = self._loop.call_later(PAUSE_S, go_on)

    async def _connect(
        self,
        connection: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        tls_handshake_timeout_s: float | None,
        introduce: Introduce | None,
    ) -> None:
        try:
            self._sockets.apply(connection)
            if introduce is not None:
                async with asyncio.timeout(tls_handshake_timeout_s):
                    factory = await introduce(connection)
            await self._loop.connect_accepted_socket(
                factory,
                connection,
                ssl=tls,
                ssl_handshake_timeout=tls_handshake_timeout_s if tls is not None else None,
            )
        except (OSError, ValueError) as error:
            # The client is gone, or does not speak TLS or the PROXY protocol as expected.
            connection.close()
            log_event(log, logging.DEBUG, "connection_not_begun", reason=error)
        except BaseException:
            connection.close()
            raise


async def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets bound to an address; `host` and `port` are those of `Acceptor.listen`.

    Raises OSError. If the sockets are `shared`, other shared sockets of the same user may have the
    same address.
    """
    if host in ("", ANY):
        return _bind_everywhere(port, shared)
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return _bind_all([(family, address) for family, _, _, _, address in found], shared)


def _bind_everywhere(port: int, shared: bool) -> list[socket.socket]:
    """Sockets at one port of all addresses; on a machine without IPv6, of IPv4 only.

    Each kind of address has its own socket, so that IPv4 clients have IPv4 addresses.
    """
    for _ in range(SAME_PORT_TRIES - 1 if port == 0 else 0):
        try:
            return _bind_both(port, shared)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bind_both(port, shared)


def _bind_both(port: int, shared: bool) -> list[socket.socket]:
    ipv4 = (socket.AF_INET, (ANY_IPV4, port))
    try:
        bound = _bind_all([(socket.AF_INET6, (ANY, port))], shared)
    except OSError as error:
        if error.errno not in NO_IPV6:
            raise
        return _bind_all([ipv4], shared)
    try:
        same = (ANY_IPV4, bound[0].getsockname()[1])
        return bound + _bind_all([(socket.AF_INET, same)], shared)
    except BaseException:
        bound[0].close()
        raise


NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""The errors of a machine whose kernel lacks IPv6, or whose administrator has switched it off."""


def _bind_all(addresses: list[tuple[int, tuple[object, ...]]], shared: bool) -> list[socket.socket]:
    """Sockets bound to all of these addresses. If it raises OSError, no socket is left open."""
    bound: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys(addresses):
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(addresses) > 1:
                    # On a machine without IPv6, a name may still have addresses of both kinds.
                    continue
                raise
            bound.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _bind(listener, address)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def _bind(listener: socket.socket, address: tuple[object, ...]) -> None:
    try:
        listener.bind(address)
    except OSError as error:
        number = error.errno or 0
        raise OSError(
            number,
            f"error while attempting to bind on address {address!r}: {os.strerror(number).lower()}",
        ) from None
