"""Waits in asyncio for definitions to be written and for other nodes to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from warren.core.ports import Commit, MetadataStore
from warren.core.scheduling.waiting import Awaited, Waiting, run

Answer = TypeVar("Answer")


async def done(commit: Commit) -> None:
    """Return when the commit is durable or refused."""
    if not commit.done:
        await reached(commit)


async def reached(awaited: Awaited) -> None:
    """Return when the awaited event has happened."""
    happened = asyncio.Event()
    awaited.then(happened.set)
    await happened.wait()


async def visible(commit: Commit) -> None:
    """Return when the commit can be seen or is refused; at once on a single node."""
    if not commit.visible:
        await done(commit)


async def durable(store: MetadataStore) -> None:
    """Return when everything written to the store is on disk."""
    commit = store.uncommitted()
    if commit is not None:
        await done(commit)


async def taken(operation: Callable[[], Commit | None]) -> bool:
    """Repeat a write of definitions until it is not refused; return when it is durable.

    A write is refused if another node was faster. The operation decides anew each time, by the
    definitions as they are then. It returns None if there is nothing to write; then this returns
    False.
    """
    while True:
        commit = operation()
        if commit is None:
            return False
        await done(commit)
        if not commit.refused:
            return True


async def through(waiting: Waiting[Answer]) -> Answer:
    """Await an operation that may have to ask other nodes; returns or raises its result."""
    finished: asyncio.Future[Callable[[], Answer]] = asyncio.get_running_loop().create_future()

    def finish(result: Callable[[], Answer]) -> None:
        if not finished.done():
            finished.set_result(result)

    run(waiting, finish)
    return (await finished)()
