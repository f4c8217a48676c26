"""What a channel asks of its connection."""

from __future__ import annotations

from typing import Protocol, TypeVar

from warren.amqp.blocking import PublishingConnection
from warren.amqp.guarded_clock import GuardedClock
from warren.amqp.held_output import HeldOutput
from warren.amqp.peer import ConnectionSettings, Peer
from warren.amqp.publishing import PublishRoutes
from warren.core.errors import ChannelFault
from warren.core.node import Client
from warren.core.scheduling.waiting import Waiting

C = TypeVar("C")
"""The channels of the connection."""


class ChannelOwner(Client, PublishingConnection, Protocol[C]):
    """The connection of a channel: `Connection` says what its attributes are."""

    output: list[bytes]
    flush_requested: bool
    held_back: bool
    socket_writable: bool
    channels: dict[int, C]
    served: dict[int, C]
    routes: PublishRoutes | None
    frame_max: int
    pid: str
    settings: ConnectionSettings
    peer: Peer
    clock: GuardedClock
    held: HeldOutput

    @property
    def user_name(self) -> str: ...

    def request_flush(self) -> None:
        """Have the output written when the turn is over."""
        ...

    def hold_output(self) -> None:
        """Hold output written from now on until the definitions seen so far are on disk."""
        ...

    def confirms_pending(self, channel: C) -> None:
        """This channel has confirms to report at the next flush."""
        ...

    def confirms_forgotten(self, channel: C) -> None:
        """This channel ends, and reports no confirms any more."""
        ...

    def go_through(self, waiting: Waiting[None], channel: C, method: tuple[int, int]) -> None:
        """Serve a method that may have to wait; what the peer sent behind it waits, too."""
        ...

    def close_channel(self, number: int, error: ChannelFault, ids: tuple[int, int]) -> None:
        """Close a channel for an error of the peer, which may be a failure to act in time."""
        ...

    def channel_closed(self, number: int) -> None:
        """Forget a channel that the client has closed and that has ended."""
        ...
