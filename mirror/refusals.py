"""Publishes of other nodes that a queue has refused, until those nodes have heard of it.

They outlive the session and the leader: that a queue is done with a publish does not say that it
has it, and a report may be lost with the link, or with who was to send it.
"""

from __future__ import annotations

from collections.abc import Iterable


class Refusals:
    """Of one queue and one run of another node."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def note(self, numbers: Iterable[int]) -> None:
        self.numbers.update(numbers)

    def heard(self, upto: int) -> None:
        """The other node knows of those up to this number."""
        self.numbers = {number for number in self.numbers if number > upto}
