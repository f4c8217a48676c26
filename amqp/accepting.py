"""Accepts connections, as long as there are file descriptors for them.

The loop's own servers accept whatever comes, until the process has no descriptor left for its
files. Here a socket whose number is too high (`core/descriptors.py`) is closed at once, which the
log says once until there was room again. When the system itself has none left, the listener pauses.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable

from warren.core.log_line import log_event

log = logging.getLogger("warren.connection")

ACCEPTED_A_TURN = 16
"""Connections taken in one turn of the loop from one listener; each costs some 50 µs."""

PAUSE_S = 0.1
"""After an accept that failed; the connections wait in the kernel."""

OVER_S = 10.0
"""There is room again when nothing was refused for so long."""


class Acceptor:
    """The listening sockets of one protocol. Sockets numbered `descriptor_limit` are refused."""

    def __init__(self, descriptor_limit: int, *, backlog: int) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._descriptor_limit = descriptor_limit
        self._backlog = backlog
        self._full = False
        self._refused_at = 0.0
        self._listening: dict[socket.socket, asyncio.TimerHandle | None] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    async def listen(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        tls_handshake_timeout_s: float | None = None,
    ) -> int:
        """Accept connections for protocols that `factory` makes; port 0 picks a free one.

        Returns the port; raises OSError.
        """

        self._loop = asyncio.get_running_loop()

        def take(connection: socket.socket) -> None:
            work = self._connect(connection, factory, tls, tls_handshake_timeout_s)
            task = self._loop.create_task(work)
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = _bind_all([(family, address) for family, _, _, _, address in found])
        for listener in bound:
            listener.listen(self._backlog)
            self._listening[listener] = None
            self._loop.add_reader(listener, self._accept, listener, take)
        first: int = bound[0].getsockname()[1]
        return first

    def close(self) -> None:
        """Accept no more."""
        for listener, pause in self._listening.items():
            if pause is not None:
                pause.cancel()
            self._loop.remove_reader(listener)
            listener.close()
        self._listening.clear()
        for task in self._connecting:
            task.cancel()

    def _accept(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._note_full(str(error))
                self._pause(listener, take)
                return
            if connection.fileno() >= self._descriptor_limit:
                connection.close()
                self._note_full("too many open files")
                continue
            if self._full and self._loop.time() >= self._refused_at + OVER_S:
                self._full = False
                log_event(log, logging.INFO, "connections_accepted_again")
            connection.setblocking(False)
            take(connection)

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

    def _pause(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        """A socket that is ready and cannot be accepted would wake the loop again and again."""

        def go_on() -> None:
            self._listening[listener] = None
            self._loop.add_reader(listener, self._accept, listener, take)

        self._loop.remove_reader(listener)
        self._listening[listener] = self._loop.call_later(PAUSE_S, go_on)

    async def _connect(
        self,
        connection: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        tls_handshake_timeout_s: float | None,
    ) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                factory,
                connection,
                ssl=tls,
                ssl_handshake_timeout=tls_handshake_timeout_s if tls is not None else None,
            )
        except OSError as error:
            # The client is gone, or does not speak TLS.
            connection.close()
            log_event(log, logging.DEBUG, "connection_not_begun", reason=error)
        except BaseException:
            connection.close()
            raise


def _bind_all(addresses: list[tuple[int, tuple[object, ...]]]) -> list[socket.socket]:
    """Sockets bound to all of these. Raises OSError; then none is left open."""
    bound: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys(addresses):
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(addresses) > 1:
                    # A machine without IPv6 may have names with addresses of both kinds.
                    continue
                raise
            bound.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
