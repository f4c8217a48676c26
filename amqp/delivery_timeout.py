"""The longest time that a client may hold a message without acknowledging it (amqp_semantics.md
section 5.4). A channel that holds one longer is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from warren.core.errors import PreconditionFailed
from warren.core.messages.message import Message
from warren.core.ports import Clock, Timer

TICK_S = 60.0
"""Time between checks of the oldest unacknowledged message."""

NOTES_MAX = 128
"""The most notes that a channel without a timeout keeps, as its client may hold messages for ever.
Up to two hours are known to the minute, longer times less exactly."""


class HoldingChannel(Protocol):
    """A channel. `unacked` are the messages that its client has not acknowledged, by tag."""

    number: int
    last_delivery_tag: int

    @property
    def unacked(self) -> Mapping[int, Message]: ...

    def fails(self, error: PreconditionFailed) -> None:
        """Close the channel for this reason."""
        ...


class DeliveryTimeout:
    """The timeout of one channel.

    Each check notes the last tag handed out so far, and the time. A message is at least as old as
    the first note whose tag is not below its own. A channel without a timeout takes notes as well:
    the HTTP API shows how long messages are held.
    """

    __slots__ = ("_clock", "_notes", "_timeout_s", "_timer")

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        """`timeout_s` is None where messages may be held for ever."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._notes: deque[tuple[int, float]] = deque()
        self._timer: Timer | None = None

    def watch(self, channel: HoldingChannel) -> None:
        """Check from now on: the client may hold the first message."""
        if self._timer is None:
            self._timer = self._clock.call_later(TICK_S, partial(self._check, channel))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def held_for_s(self, delivery_tag: int) -> float:
        """The least time that the client has had a delivery, as far as checks have noted it."""
        now = self._clock.now()
        return next((now - at for tag, at in self._notes if tag >= delivery_tag), 0.0)

    def _check(self, channel: HoldingChannel) -> None:
        self._timer = None
        notes, now = self._notes, self._clock.now()
        notes.append((channel.last_delivery_tag, now))
        oldest = min(channel.unacked, default=channel.last_delivery_tag + 1)
        while notes and notes[0][0] < oldest:
            notes.popleft()
        if self._timeout_s is None:
            self._thin_out()
        elif notes and now - notes[0][1] >= self._timeout_s:
            error = PreconditionFailed(
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value "
                f"used: {int(self._timeout_s * 1000)} ms. This timeout value can be configured, "
                "see consumers doc guide to learn more"
            )
            channel.fails(error)
            return
        self.watch(channel)

    def _thin_out(self) -> None:
        """Forget every other note if there are too many: a message counts as a bit younger then."""
        if len(self._notes) > NOTES_MAX:
            self._notes = deque([note for at, note in enumerate(self._notes) if at % 2 == 0])
