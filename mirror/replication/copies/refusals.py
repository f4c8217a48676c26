"""Publishes of other nodes that a queue has refused, until those nodes have heard of it.

They outlive the session and the leader. A leader that is done with a publish may have refused it,
and the report of that may be lost with the link, or with the leader that was to send it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from warren.mirror.messages.origin import node_of


class Refusals:
    """The refused publishes of one queue, by origin: a run of the node that published."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}

    def note(self, origin: str, numbers: Iterable[int]) -> None:
        if origin not in self._numbers:
            # No node asks for refusals of its earlier runs.
            for earlier in [one for one in self._numbers if node_of(one) == node_of(origin)]:
                del self._numbers[earlier]
            self._numbers[origin] = set()
        self._numbers[origin].update(numbers)

    def heard(self, origin: str, upto: int) -> None:
        """Forget the refusals up to this number: the other node knows of them."""
        left = {number for number in self._numbers.get(origin, ()) if number > upto}
        if left:
            self._numbers[origin] = left
        else:
            self._numbers.pop(origin, None)

    def of(self, origin: str) -> Collection[int]:
        """The refusals that the other node may not know of."""
        return self._numbers.get(origin, ())

    def __iter__(self) -> Iterator[tuple[str, Collection[int]]]:
        return iter(self._numbers.items())

    def clear(self) -> None:
        self._numbers.clear()
