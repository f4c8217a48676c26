"""HTTP listeners of a node, which load the HTTP server at the first connection.

An HTTP server takes a third of the memory of an idle node and most of its start time. So a listener
is a plain socket at first: the first connection to any of them has the server imported, in a
thread, and is handed over to it. From then on the server's own protocols take the connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeAlias, cast

from warren.amqp.accepting import Acceptor, SocketOptions
from warren.core.log_line import log_fault
from warren.core.resources.descriptors import HTTP_MAX

log = logging.getLogger("warren.http")

BACKLOG = 100


class Audience(Enum):
    """The clients that a listener is for."""

    NETWORK = auto()
    COMMAND_LINE = auto()
    METRICS = auto()
    # Other processes of the broker, which pass requests of their own clients on.
    SIBLINGS = auto()

    @property
    def is_outside(self) -> bool:
        """Whether its connections are limited: only those of clients from outside are."""
        return self in (Audience.NETWORK, Audience.METRICS)


ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]
LoadServer: TypeAlias = Callable[[], Awaitable[Callable[[Audience], Awaitable[ProtocolFactory]]]]
"""Imports the server and returns a function that gives the protocol factory of an audience."""


class HeldConnection(asyncio.Protocol):
    """Holds a connection until the server is loaded and takes it over."""

    def __init__(self, listeners: HttpListeners, audience: Audience) -> None:
        self._listeners = listeners
        self._audience = audience
        self._transport: asyncio.Transport
        self._received: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._listeners.introductions += 1
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._introduce())

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._listeners.introductions -= 1
        if self._task is not None:
            self._task.cancel()

    async def _introduce(self) -> None:
        try:
            factory = await self._listeners.factory(self._audience)
        except Exception:
            log_fault(log, "http_server_not_loaded")
            self._transport.abort()
            return
        self._task = None
        transport = self._transport
        if transport.is_closing():
            return
        self._listeners.introductions -= 1
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._received:
            protocol.data_received(data)
        transport.resume_reading()


class RefusedConnection(asyncio.Protocol):
    """Ends a connection at once, because there are too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class HttpListeners:
    """Listens for the server that `load` imports.

    At most `connections_max` connections are open at a time, and none whose descriptor would be
    `descriptor_limit` or above; those of the command line and of other processes are never refused.
    """

    def __init__(
        self,
        load: LoadServer,
        *,
        connections_max: int = HTTP_MAX,
        descriptor_limit: int = sys.maxsize,
        shared_ports: bool = False,
    ) -> None:
        self.introductions = 0
        self._connections_max = connections_max
        sockets = SocketOptions(shared_ports=shared_ports)
        self._acceptor = Acceptor(descriptor_limit, backlog=BACKLOG, sockets=sockets)
        self._load = load
        self._server: Callable[[Audience], Awaitable[ProtocolFactory]] | None = None
        self._factories: dict[Audience, ProtocolFactory] = {}
        self._loading = asyncio.Lock()
        self._sockets: list[asyncio.Server] = []

    async def listen(
        self, host: str, port: int, audience: Audience, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen at an address; returns the port. Raises OSError."""
        return await self._acceptor.listen(host, port, lambda: self._protocol(audience), tls)

    async def listen_locally(self, path: Path, audience: Audience = Audience.COMMAND_LINE) -> None:
        """Listen at a socket that only the node's own user may open. Raises OSError."""
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: self._protocol(audience), str(path)
            )
        finally:
            os.umask(before)
        self._sockets.append(server)

    async def factory(self, audience: Audience) -> ProtocolFactory:
        """The factory of protocols for connections of this audience."""
        async with self._loading:
            if self._server is None:
                self._server = await self._load()
            if audience not in self._factories:
                self._factories[audience] = await self._server(audience)
        return self._factories[audience]

    @property
    def _open(self) -> int:
        """Connections that the server has, or that wait for it."""
        servers: list[Any] = list(self._factories.values())
        return self.introductions + sum([len(server.connections) for server in servers])

    def stop(self) -> None:
        """Take no more connections."""
        self._acceptor.close()
        for server in self._sockets:
            server.close()
        self._sockets.clear()

    def _protocol(self, audience: Audience) -> asyncio.Protocol:
        if audience.is_outside and self._open >= self._connections_max:
            return RefusedConnection()
        factory = self._factories.get(audience)
        return HeldConnection(self, audience) if factory is None else factory()
