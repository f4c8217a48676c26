"""Long lists whose items are made when they are read: for a page, only that page's items."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class LazyList(Sequence[T], Generic[T]):
    """Several sequences one after the other, each with a function that makes its items."""

    def __init__(self, parts: Sequence[tuple[Sequence[Any], Callable[[Any], T]]]) -> None:
        self._parts = parts
        self._starts = [0]
        for items, _ in parts:
            self._starts.append(self._starts[-1] + len(items))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[T]:
        for items, make in self._parts:
            for item in items:
                yield make(item)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        part = bisect_right(self._starts, at) - 1
        items, make = self._parts[part]
        return make(items[at - self._starts[part]])
