"""Blocks connections that publish during an alarm, and tells their clients.

Answerable for amqp_semantics.md section 1.7. A connection that publishes while a resource runs
short is no longer read; the frame that makes it wait stays unread. As long as the shortage is
small, only growing queues make their publishers wait (`core/resources/growth.py`), and the reason
told to the client names the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from pamqp import commands

from warren.amqp.methods import Method, make
from warren.core.node import Node
from warren.core.queues.queue import Queue

PAUSE = "alarm"


class PublishingConnection(Protocol):
    """The part of a connection that alarms use. `blocked`: it is not read because of an alarm."""

    node: Node

    @property
    def blocked(self) -> bool: ...

    @property
    def capabilities(self) -> Collection[str]: ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def send(self, channel: int, method: Method) -> None: ...


class PublishingChannel(Protocol):
    """A channel on which a publish arrives during an alarm."""

    @property
    def connection(self) -> PublishingConnection: ...

    @property
    def transaction(self) -> object | None: ...

    def leads_to(self, header: bytes) -> Iterable[Queue]:
        """The queues that the publish with this content header is for."""
        ...


class Blocking:
    """The blocking of one connection, which holds this object and passes itself to each call.

    While the connection is blocked, `since` is the time at which that began, in seconds since 1970.
    `queue` is then the growing queue, or None if every publish has to wait.
    """

    __slots__ = ("_is_told", "queue", "since")

    def __init__(self) -> None:
        self._is_told = False
        self.since: float | None = None
        self.queue: Queue | None = None

    def holds_back(self, channel: PublishingChannel, header: bytes) -> bool:
        """Whether a publish of which a frame arrives during an alarm has to wait; `header` is its
        content header. If it has to wait, the connection is no longer read."""
        connection = channel.connection
        node = connection.node
        grown: Queue | None = None
        # Messages published in a transaction take memory until its commit, whatever their queue.
        if not node.alarms.all_wait and channel.transaction is None:
            holds_back = node.growth.holds_back
            grown = next(filter(holds_back, channel.leads_to(header)), None)
            if grown is None:
                self._is_free(connection)
                return False
        if self.since is None:
            self.since = node.clock.wall_time()
        self.queue = grown
        connection.pause(PAUSE)
        self._tell(connection)
        return True

    def alarms_changed(self, connection: PublishingConnection) -> None:
        """An alarm was raised or cleared, or has become more or less severe."""
        alarms = connection.node.alarms
        if not alarms.reason():
            self._is_free(connection)
            if not alarms.raised:
                connection.resume(PAUSE)
        elif connection.blocked:
            if self.queue is None and not alarms.all_wait:
                connection.resume(PAUSE)
            else:
                self._tell(connection)

    def growth_changed(self, connection: PublishingConnection) -> None:
        """The set of queues that grow has changed."""
        if self.queue is not None and not connection.node.growth.holds_back(self.queue):
            # The frame that waits is examined again.
            connection.resume(PAUSE)

    def _tell(self, connection: PublishingConnection) -> None:
        """Send connection.blocked with the reason, once, to clients that understand it. Waiting
        without an alarm is flow control, of which clients are not told."""
        reason = connection.node.alarms.reason()
        if not reason or self._is_told or "connection.blocked" not in connection.capabilities:
            return
        if self.queue is not None:
            reason += f": queue '{self.queue.name}' in vhost '{self.queue.vhost_name}' grows"
        self._is_told = True
        connection.send(0, make(commands.Connection.Blocked, reason=_short(reason)))

    def _is_free(self, connection: PublishingConnection) -> None:
        self.since = self.queue = None
        if self._is_told:
            self._is_told = False
            connection.send(0, make(commands.Connection.Unblocked))


def _short(text: str) -> str:
    """The text, cut to the length of a short string."""
    return text.encode()[:255].decode(errors="ignore")
