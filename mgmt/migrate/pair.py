"""Two connections, to one virtual host at the source and at the target, and their events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from pamqp import commands

from warren.client.connection import ChannelFailed, ClientConnection, ConnectionFailed
from warren.client.events import ChannelClosed, ConnectionEnded, Event
from warren.mgmt.migrate.side import Side

MESSAGES = 1
"""The channel for messages, on both connections."""
QUESTIONS = 2
LOOKS = 3
"""The channel for reading streams without moving anything."""


class Heard(NamedTuple):
    of: ClientConnection
    event: Event


class SideFailed(Exception):
    """One of the two brokers ended a channel or its connection, or refused the login."""

    def __init__(self, role: str, failure: ConnectionFailed | ChannelFailed) -> None:
        super().__init__(f"the {role}: {failure.text}")
        self.role = role
        self.text = str(self)
        self.code = failure.code
        self.unreachable = isinstance(failure, ConnectionFailed) and failure.code == 0
        """True if the connection failed without a reason: the broker may have been killed."""


class Inbox:
    """Receives the events of both connections, and keeps them until they are taken."""

    def __init__(self) -> None:
        self._heard: deque[Heard] = deque()
        self._changed = asyncio.Event()

    def received(self, connection: ClientConnection, events: Sequence[Event]) -> None:
        self._heard.extend(Heard(connection, event) for event in events)
        self._changed.set()

    def writable(self, connection: ClientConnection) -> None:
        self._changed.set()

    def take(self) -> list[Heard]:
        """Remove and return all events, in order."""
        heard = [*self._heard]
        self._heard.clear()
        self._changed.clear()
        return heard

    @property
    def is_empty(self) -> bool:
        return not self._heard

    async def wait(self, timeout_s: float) -> bool:
        """Wait for an event or for room to write; False when neither came for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Pair:
    def __init__(self, source: ClientConnection, target: ClientConnection, inbox: Inbox) -> None:
        self.source = source
        self.target = target
        self.inbox = inbox
        self._open: set[tuple[ClientConnection, int]] = set()

    @classmethod
    async def connect(cls, source: Side, target: Side, vhost: str) -> Self:
        """Connect to both brokers. Raises `SideFailed`."""
        inbox = Inbox()
        first = await _connect(source, vhost, inbox)
        try:
            second = await _connect(target, vhost, inbox)
        except SideFailed:
            await first.close()
            raise
        return cls(first, second, inbox)

    async def close(self) -> None:
        await self.source.close()
        await self.target.close()

    @property
    def is_whole(self) -> bool:
        return self.source.is_open and self.target.is_open

    def role(self, connection: ClientConnection) -> str:
        return "source" if connection is self.source else "target"

    async def count(self, connection: ClientConnection, queue: str) -> int:
        """How many messages of a queue are ready. Raises `SideFailed`."""
        await self.open_channel(connection, QUESTIONS)
        return await self.count_on(connection, QUESTIONS, queue)

    async def count_on(self, connection: ClientConnection, channel: int, queue: str) -> int:
        declared = await self.ask(
            connection, channel, commands.Queue.Declare, queue=queue, passive=True
        )
        count: int = declared.message_count
        return count

    async def open_channel(
        self, connection: ClientConnection, channel: int, *, confirms: bool = False
    ) -> None:
        """Open a channel, unless it is open. Raises `SideFailed`."""
        if (connection, channel) not in self._open:
            try:
                await connection.open_channel(channel, confirms=confirms)
            except (ChannelFailed, ConnectionFailed) as failure:
                raise SideFailed(self.role(connection), failure) from failure
            self._open.add((connection, channel))

    async def close_channel(self, connection: ClientConnection, channel: int) -> None:
        """Close a channel, if it is open. Its unacknowledged messages go back to their queue."""
        if (connection, channel) in self._open:
            await self.ask(connection, channel, commands.Channel.Close,
                           reply_code=200, reply_text="", class_id=0, method_id=0)  # fmt: skip
            self._open.discard((connection, channel))

    async def ask(
        self, connection: ClientConnection, channel: int, kind: type, **arguments: object
    ) -> Any:
        try:
            return await connection.ask(channel, kind, **arguments)
        except (ChannelFailed, ConnectionFailed) as failure:
            self._open.discard((connection, channel))
            raise SideFailed(self.role(connection), failure) from failure

    def ended(self, heard: Heard) -> SideFailed | None:
        """The failure that the end of a channel or a connection means; None for other events."""
        event = heard.event
        if isinstance(event, ChannelClosed):
            self._open.discard((heard.of, event.channel))
            failure: ChannelFailed | ConnectionFailed = ChannelFailed(event.code, event.text)
        elif isinstance(event, ConnectionEnded):
            failure = ConnectionFailed(event.code, event.text)
        else:
            return None
        return SideFailed(self.role(heard.of), failure)


async def _connect(side: Side, vhost: str, inbox: Inbox) -> ClientConnection:
    try:
        return await ClientConnection.open(side.target(vhost), inbox)
    except ConnectionFailed as failure:
        raise SideFailed(side.role, failure) from failure
