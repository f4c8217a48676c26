"""Reads a PROXY header from a socket before TLS begins on it.

A balancer sends the client's address unencrypted, and passes on the client's TLS untouched. The
octets after the header must stay in the socket, where TLS reads them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeAlias

ProxyReader: TypeAlias = Callable[[bytes], tuple[tuple[str, int] | None, bytes] | None]
"""`proxy_header.read_proxy_header`: the client's address and the octets after the header, or None
while the header is incomplete. Raises ValueError for octets that are not a PROXY header."""

PEEKED_MAX = 4096
"""Octets peeked at in one go; a header is shorter."""


class Closed(OSError):
    """The peer ended the connection before its header was complete."""


async def read_preface(connection: socket.socket, read: ProxyReader) -> tuple[str, int] | None:
    """The client's address, or None when the balancer speaks for itself.

    Raises ValueError for octets that are not a PROXY header, and OSError.
    """
    header = b""
    while True:
        await _readable(connection)
        seen = connection.recv(PEEKED_MAX, socket.MSG_PEEK)
        if not seen:
            raise Closed("the connection ended in its PROXY header")
        found = read(header + seen)
        if found is None:
            # All these octets belong to the header.
            header += connection.recv(len(seen))
            continue
        source, rest = found
        connection.recv(len(seen) - len(rest))
        return source


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, note)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
