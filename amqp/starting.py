"""Answers clients while the node still recovers its messages.

A client is taken through the handshake up to connection.open. Then connection.close tells it that
the node is starting and how far it is. To clients, a close earlier in the handshake means that
their password is wrong, and some of them never come back; after open-ok they would think that all
is well. TLS listeners accept no clients until the node has started.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import cast

from pamqp import commands

from warren.amqp.accepting import Acceptor
from warren.amqp.frames import HEAD, METHOD, OVERHEAD, PROTOCOL_HEADER, frame
from warren.amqp.methods import Method, encode_method, make
from warren.amqp.peer import ConnectionSettings
from warren.core.field import Table

CONNECTION_FORCED = 320

START_OK = b"\0\x0a\0\x0b"
OPEN = b"\0\x0a\0\x28"
"""Class and method ids as octets in a frame, as those of `START_OK` are."""

RECEIVED_MAX = 64 * 1024
"""Octets accepted from one client; no client sends so many before it is let in."""

PATIENCE_S = 5.0
"""The time after which a client that has not opened its connection is cut."""

STARTING_BACKLOG = 100
"""Connections that may wait in the kernel; few are enough, as they are answered quickly."""

OFFER = ConnectionSettings()


class StartingProtocol(asyncio.Protocol):
    """One socket: sends connection.start and connection.tune, and refuses connection.open."""

    def __init__(self, properties: Table, describe: Callable[[], str], patience_s: float) -> None:
        self._properties = properties
        self._describe = describe
        self._patience_s = patience_s
        self._received = b""
        self._greeted = False
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = asyncio.get_running_loop().call_later(self._patience_s, transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > RECEIVED_MAX:
            self._transport.abort()
            return
        if not self._greeted:
            self._greet()
        if self._greeted:
            self._answer()

    def _greet(self) -> None:
        header = self._received[: len(PROTOCOL_HEADER)]
        if not PROTOCOL_HEADER.startswith(header):
            self._transport.write(PROTOCOL_HEADER)
            self._transport.close()
        elif header == PROTOCOL_HEADER:
            self._greeted = True
            self._received = self._received[len(PROTOCOL_HEADER) :]
            start = make(
                commands.Connection.Start,
                version_major=0,
                version_minor=9,
                server_properties=self._properties,
                mechanisms="PLAIN AMQPLAIN",
                locales="en_US",
            )
            self._say(start)

    def _answer(self) -> None:
        """Answer the methods in complete frames that matter, and ignore all others."""
        while len(self._received) >= OVERHEAD:
            end = HEAD.unpack_from(self._received)[2] + OVERHEAD
            if len(self._received) < end:
                return
            method = self._received[HEAD.size : HEAD.size + 4]
            self._received = self._received[end:]
            if method == START_OK:
                self._tune()
            elif method == OPEN:
                self._refuse()
                return

    def _tune(self) -> None:
        tune = make(
            commands.Connection.Tune,
            channel_max=OFFER.channel_max,
            frame_max=OFFER.frame_max,
            heartbeat=OFFER.heartbeat_s,
        )
        self._say(tune)

    def _refuse(self) -> None:
        close = make(
            commands.Connection.Close,
            reply_code=CONNECTION_FORCED,
            reply_text=f"CONNECTION_FORCED - {self._describe()}",
            class_id=0,
            method_id=0,
        )
        self._say(close)
        self._transport.close()

    def _say(self, method: Method) -> None:
        self._transport.write(frame(METHOD, 0, encode_method(method)))


class StartingListener:
    """Listens in place of the node. `describe` returns what the node is busy with."""

    def __init__(
        self,
        properties: Table,
        describe: Callable[[], str],
        *,
        patience_s: float = PATIENCE_S,
        descriptor_limit: int = sys.maxsize,
    ) -> None:
        self._properties = properties
        self._describe = describe
        self._patience_s = patience_s
        self._acceptor = Acceptor(descriptor_limit, backlog=STARTING_BACKLOG)

    async def listen(self, host: str, port: int) -> int:
        """Port 0 picks a free one. Returns the port; raises OSError."""
        return await self._acceptor.listen(
            host,
            port,
            lambda: StartingProtocol(self._properties, self._describe, self._patience_s),
        )

    async def close(self) -> None:
        """Give up the ports; clients that are being answered get their answers."""
        self._acceptor.close()
        # The sockets are closed in the next turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
