"""The messages and octets that one or more queues hold."""

from __future__ import annotations

from typing import NamedTuple


class Stock(NamedTuple):
    """Messages that are ready or out, and octets of the bodies of the ready ones."""

    messages: int
    octets: int

    def plus(self, other: Stock) -> Stock:
        return Stock(self.messages + other.messages, self.octets + other.octets)


NOTHING = Stock(0, 0)
