"""Long work in slices: a request may ask for any amount of work, and messages must not wait.

A slice is about a millisecond, and each turn of the loop has one, however many requests there are.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

SLICE_S = 0.001
CHUNK = 32
"""Items handled before the time is checked again."""

SORTED_AT_ONCE = 512
"""Items that are sorted in less than a slice."""


class SliceTurns:
    """Gives one slice to each turn of the loop, for all requests: they wait for one another."""

    def __init__(self) -> None:
        self._taken = False

    async def take(self) -> None:
        """Return in a turn of the loop that has no other slice."""
        while self._taken:
            await asyncio.sleep(0)
        self._taken = True
        asyncio.get_running_loop().call_soon(self._over)

    def _over(self) -> None:
        self._taken = False


class _OfThread(threading.local):
    """One for each thread, as a thread has one loop and a process may have several nodes."""

    def __init__(self) -> None:
        self.turns = SliceTurns()


_of_thread = _OfThread()


class Breather:
    """Lets other work run when a slice is over. Call `breathe` before the first slice, too."""

    def __init__(self) -> None:
        self._until = 0.0

    async def breathe(self) -> None:
        if time.perf_counter() >= self._until:
            if self._until:
                await asyncio.sleep(0)
            await _of_thread.turns.take()
            self._until = time.perf_counter() + SLICE_S


async def chunks(items: Iterable[T], size: int = CHUNK) -> AsyncIterator[list[T]]:
    """The items in lists, with pauses between them. They must not change meanwhile: copy first."""
    breather = Breather()
    iterator = iter(items)
    await breather.breathe()
    while chunk := list(islice(iterator, size)):
        yield chunk
        await breather.breathe()


async def first_sorted(
    items: Sequence[T], key: Callable[[T], Any], *, reverse: bool, count: int
) -> list[T]:
    """The first `count` of the items in order; equal ones keep their order."""
    if count <= SORTED_AT_ONCE:
        # Few items are kept at a time: objects dropped at once cost the cycle collector nothing.
        best: list[T] = []
        async for chunk in chunks(items, SORTED_AT_ONCE // 2):
            best += chunk
            best.sort(key=key, reverse=reverse)
            del best[count:]
        return best
    runs: list[list[T]] = []
    async for chunk in chunks(items, SORTED_AT_ONCE):
        chunk.sort(key=key, reverse=reverse)
        runs.append(chunk)
    merged: Iterator[T] = merge(*runs, key=key, reverse=reverse)
    found: list[T] = []
    async for chunk in chunks(islice(merged, count)):
        found += chunk
    return found
