"""Publishes that a store keeps, numbered in groups, and the group of each number.

A store answers with the numbers of publishes that are safe, many at once and not always in order.
Those that wait think in groups: publishes that came together, or in one batch of the leader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

Group = TypeVar("Group")

TIDY_AT = 64
"""First numbers of ended groups are dropped when they outnumber the open groups by so many."""


class CrossedOut(NamedTuple, Generic[Group]):
    """A run of numbers of one group that were crossed out. `offset` counts from the group's own
    first number; `is_last`: no other number of the group is left."""

    group: Group
    offset: int
    size: int
    is_last: bool


class _Open(Generic[Group]):
    __slots__ = ("count", "group", "left")

    def __init__(self, group: Group, count: int) -> None:
        self.group = group
        self.count = count
        self.left = count


class NumberedGroups(Generic[Group]):
    """Groups of numbers. Numbers begin with 1, and each is given once."""

    def __init__(self) -> None:
        self._next = 1
        # Groups by their first number; and these numbers in order, some of them of ended groups.
        self._open: dict[int, _Open[Group]] = {}
        self._starts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def __iter__(self) -> Iterator[Group]:
        """The groups of which something is left."""
        return iter([one.group for one in self._open.values()])

    def add(self, group: Group, count: int) -> int:
        """Give `count` numbers to a group; returns the first."""
        first = self._next
        self._next += count
        self._open[first] = _Open(group, count)
        self._starts.append(first)
        return first

    def settled(self, first: int, count: int) -> Iterator[CrossedOut[Group]]:
        """Cross these numbers out, each of which comes once; those of cleared groups are passed
        over."""
        end = first + count
        while first < end:
            start = self._start_of(first)
            one = self._open.get(start)
            if one is None:
                return
            part = min(end, start + one.count) - first
            one.left -= part
            if not one.left:
                del self._open[start]
                self._tidy()
            yield CrossedOut(one.group, first - start, part, not one.left)
            first += part

    def clear(self) -> None:
        self._open.clear()
        self._starts.clear()

    def _start_of(self, number: int) -> int:
        if number in self._open:
            return number
        at = bisect_right(self._starts, number) - 1
        return self._starts[at] if at >= 0 else 0

    def _tidy(self) -> None:
        if not self._open:
            self._starts.clear()
        elif len(self._starts) > 2 * len(self._open) + TIDY_AT:
            self._starts = list(self._open)
