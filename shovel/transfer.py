"""The fate of the messages of one shovel, from delivery to ack; without a socket or a clock.

    delivered -> waiting -> in flight -> moved, and acked at the source
                    ^           |
                    |           v
                    +------- refused, until the pause is over

A message is acked at the source when the destination has confirmed it (`on-confirm`), when it was
published (`on-publish`), or never (`no-ack`). The destination refuses a message by a nack, or by
returning it because it reaches no queue. A refused message stays unacked and so in the source. It
does not count as moved, and is published again after a pause.

If the destination is a queue, order is kept: after a refusal, other messages wait until the refused
ones are published. If it is an exchange, each message may have another fate, so the others go on.

A message may also be left: it stays in the source until the connection ends, and counts as dealt
with, not as moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from warren.client.events import Delivered

HELD_OCTETS_MAX = 16 << 20
"""Octets of messages that a shovel holds before it stops reading from the source."""

HELD_MAX = 20_000
"""The same limit as a number of messages: small messages cost memory too."""


class AckMode(Enum):
    """When the source may forget a message."""

    ON_CONFIRM = "on-confirm"
    ON_PUBLISH = "on-publish"
    NO_ACK = "no-ack"


class Ack(NamedTuple):
    """An ack to send to the source."""

    delivery_tag: int
    multiple: bool


class Transfer:
    """The messages between one source and one destination. `in_order`: refused messages hold up the
    others. `limit`: the number of messages after which the transfer is done; None is no limit.
    `leaves_refused`: messages that the destination refuses are left."""

    def __init__(
        self, mode: AckMode, *, in_order: bool, limit: int | None, leaves_refused: bool = False
    ) -> None:
        self.moved = 0
        self.left = 0
        self._leaves_refused = leaves_refused
        self._mode = mode
        self._in_order = in_order
        self._limit = limit
        self._waiting: deque[Delivered] = deque()
        self._in_flight: dict[int, Delivered] = {}
        self._refused: list[Delivered] = []
        self._pause_over = False
        # Whether a message is settled at the destination, by delivery tag at the source.
        self._unacked: dict[int, bool] = {}
        self._held_octets = 0

    @property
    def done(self) -> bool:
        return self._limit is not None and self.moved + self.left >= self._limit

    @property
    def pending(self) -> int:
        """Messages delivered by the source and not moved."""
        return len(self._waiting) + len(self._in_flight) + len(self._refused)

    @property
    def in_flight(self) -> int:
        """How many publishes the destination has not answered yet."""
        return len(self._in_flight)

    @property
    def refused_count(self) -> int:
        """Refused messages, which wait to be published again."""
        return len(self._refused)

    @property
    def holds_much(self) -> bool:
        """Whether reading from the source should pause."""
        return self._held_octets > HELD_OCTETS_MAX or self.pending > HELD_MAX

    @property
    def needs_pause(self) -> bool:
        """Whether messages were refused, and their pause has not ended."""
        return bool(self._refused) and not self._pause_over

    def deliver(self, message: Delivered) -> None:
        """Take a message from the source."""
        self._waiting.append(message)
        self._held_octets += _octets(message)
        if self._mode is not AckMode.NO_ACK:
            self._unacked[message.delivery_tag] = False

    def next(self) -> Delivered | None:
        """The message to publish now, or None; `published`, `skipped` or `leave` must follow."""
        if self._refused:
            if self._pause_over and not (self._in_order and self._in_flight):
                self._try_again()
            elif self._in_order:
                return None
        if not self._waiting or (self._limit is not None and self._begun >= self._limit):
            return None
        return self._waiting.popleft()

    @property
    def _begun(self) -> int:
        return self.moved + self.left + len(self._in_flight) + len(self._refused)

    def published(self, message: Delivered, tag: int) -> list[Ack]:
        """The message was published with this tag; 0 if no confirm will come."""
        if self._mode is AckMode.ON_CONFIRM:
            self._in_flight[tag] = message
            return []
        return self._settled([message])

    def skipped(self, message: Delivered) -> list[Ack]:
        """The message is not for the destination: it is acked and dropped."""
        return self._settled([message])

    def confirmed(self, tags: Iterable[int]) -> list[Ack]:
        """The destination has confirmed the publishes with these tags."""
        return self._settled([self._in_flight.pop(tag) for tag in tags])

    def refused(self, tag: int) -> None:
        """The destination refused the publish with this tag."""
        message = self._in_flight.pop(tag)
        if self._leaves_refused:
            self.leave(message)
        else:
            self._refused.append(message)
            self._pause_over = False

    def leave(self, message: Delivered) -> None:
        """Leave the message in the source."""
        self.left += 1
        self._held_octets -= _octets(message)

    def pause_is_over(self) -> None:
        """Refused messages may be published again."""
        self._pause_over = True

    def _try_again(self) -> None:
        again = sorted(self._refused, key=lambda message: message.delivery_tag)
        self._waiting.extendleft(reversed(again))
        self._refused.clear()
        self._pause_over = False

    def _settled(self, messages: list[Delivered]) -> list[Ack]:
        self.moved += len(messages)
        self._held_octets -= sum(map(_octets, messages))
        if self._mode is AckMode.NO_ACK:
            return []
        unacked = self._unacked
        for message in messages:
            unacked[message.delivery_tag] = True
        acks = []
        first: list[int] = []
        for tag, settled in unacked.items():
            if not settled:
                break
            first.append(tag)
        if first:
            acks.append(Ack(first[-1], multiple=True))
            for tag in first:
                del unacked[tag]
        for message in messages:
            # A message in front of it is not settled yet, perhaps for a long time.
            if unacked.pop(message.delivery_tag, False):
                acks.append(Ack(message.delivery_tag, multiple=False))
        return acks


def _octets(message: Delivered) -> int:
    return len(message.header) + len(message.body)
