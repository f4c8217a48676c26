"""The methods of a connection that wait, as for another node.

While a method waits, nothing is read from the peer: most waits are over in some milliseconds. After
`OTHERS_WAIT_S`, as when the leader of a queue is gone, only the channel of the method waits on, and
the others are served. Frames for a channel that waits are kept, and served in their order when the
method has ended. So are methods of channel 0: connection.close must come behind all that was sent
before it. Nothing is read behind such a method, or while more than `KEPT_MAX` octets are kept.
"""

from __future__ import annotations

from typing import Protocol

from warren.amqp.channel import Channel
from warren.amqp.frames import METHOD, frame
from warren.amqp.guarded_clock import GuardedClock
from warren.core.errors import BrokerError
from warren.core.ports import Timer
from warren.core.scheduling.waiting import Awaited, Waiting

OTHERS_WAIT_S = 0.1
"""How long a method that waits holds up the other channels of its connection."""

KEPT_MAX = 1 << 16
"""Octets kept of frames for channels that wait: about what the socket of a connection keeps that is
not read."""


class Reader(Protocol):
    """A connection, as far as its methods that wait use it."""

    clock: GuardedClock
    channels: dict[int, Channel]
    served: dict[int, Channel]

    def pause(self, reason: str) -> None:
        """Stop reading for this reason until `resume`."""
        ...

    def resume(self, reason: str) -> None:
        """Lift one reason to pause; after the last, serve what was read already, then read more."""
        ...

    def serve_first(self, octets: bytes) -> None:
        """Serve these frames before all others that have not been served, and read on."""
        ...

    def refuse(self, number: int, error: BrokerError, method: tuple[int, int]) -> None:
        """Answer an error with the close it calls for."""
        ...


class WaitingMethod:
    """One method; `ids` are those of its class and itself."""

    __slots__ = ("channel", "ids", "waiting")

    def __init__(self, waiting: Waiting[None], channel: Channel, ids: tuple[int, int]) -> None:
        self.waiting = waiting
        self.channel = channel
        self.ids = ids

    def step(self) -> Awaited | None:
        """Go on with it; returns what it waits for, or None at its end. Raises its error."""
        try:
            return self.waiting.send(None)
        except StopIteration:
            return None


class WaitingMethods:
    """The methods that wait: one that holds up its connection, or several that hold up their
    channels only."""

    __slots__ = ("_first", "_held", "_kept", "_timer")

    def __init__(self) -> None:
        # The method for which nothing is read, until the timer runs.
        self._first: WaitingMethod | None = None
        self._timer: Timer | None = None
        # By channel number: methods that hold up their own channel and no other one.
        self._held: dict[int, WaitingMethod] = {}
        self._kept = bytearray()

    def go_through(self, connection: Reader, method: WaitingMethod) -> None:
        """Serve a method that may have to wait. Raises its error if it does not wait before."""
        if (awaited := method.step()) is not None:
            self._wait(connection, method, awaited)

    def keeps(self, connection: Reader, kind: int, number: int, payload: bytes) -> bool:
        """Whether this frame has to wait; it is kept then."""
        if number not in self._held and (number or kind != METHOD or not self._held):
            return False
        self._kept += frame(kind, number, payload)
        if not number or len(self._kept) > KEPT_MAX:
            connection.pause("kept")
        return True

    def end(self) -> None:
        """The connection ends, and its methods with it."""
        methods = list(self._held.values())
        if self._first is not None:
            methods.append(self._first)
            self._end_pause()
        self._held.clear()
        self._kept.clear()
        for method in methods:
            method.waiting.close()

    def _wait(self, connection: Reader, method: WaitingMethod, awaited: Awaited) -> None:
        if method.channel.number not in self._held:
            self._first = method
            connection.pause("waiting")
            self._timer = connection.clock.call_later(
                OTHERS_WAIT_S, lambda: self._hold_channel(connection)
            )
        awaited.then(connection.clock.guarded(lambda: self._go_on(connection, method)))

    def _hold_channel(self, connection: Reader) -> None:
        """The other channels have waited long enough."""
        method = self._first
        assert method is not None
        self._end_pause()
        self._held[method.channel.number] = method
        connection.served.pop(method.channel.number, None)
        connection.resume("waiting")

    def _go_on(self, connection: Reader, method: WaitingMethod) -> None:
        """The event that a method waited for has happened."""
        number = method.channel.number
        held = self._held.get(number) is method
        if method is self._first:
            self._end_pause()
            connection.resume("waiting")
        elif not held:
            return
        awaited = None
        if connection.channels.get(number) is method.channel:
            try:
                awaited = method.step()
            except BrokerError as error:
                connection.refuse(number, error, method.ids)
        else:
            method.waiting.close()
        if awaited is not None:
            self._wait(connection, method, awaited)
        elif held:
            # Not at once: the event may have happened while another frame is served.
            connection.clock.call_soon(lambda: self._release_channel(connection, method))

    def _release_channel(self, connection: Reader, method: WaitingMethod) -> None:
        """Serve the frames that were kept; those for other channels that wait are kept again."""
        number = method.channel.number
        if self._held.get(number) is not method:
            return
        del self._held[number]
        if (channel := connection.channels.get(number)) is not None:
            connection.served[number] = channel
        if self._kept:
            kept, self._kept = bytes(self._kept), bytearray()
            connection.serve_first(kept)

    def _end_pause(self) -> None:
        """No method holds up the whole connection any more."""
        assert self._timer is not None
        self._timer.cancel()
        self._first = self._timer = None
