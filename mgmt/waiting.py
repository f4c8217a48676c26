"""Waiting for definitions and for other nodes, where asyncio runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from warren.core.ports import Commit, MetadataStore
from warren.core.scheduling.waiting import Awaited, Waiting, run

Answer = TypeVar("Answer")


async def done(commit: Commit) -> None:
    """Return when the commit is durable, or refused."""
    if not commit.done:
        await reached(commit)


async def reached(awaited: Awaited) -> None:
    """Return when it has happened."""
    happened = asyncio.Event()
    awaited.then(happened.set)
    await happened.wait()


async def visible(commit: Commit) -> None:
    """Return when the commit can be seen, or is refused; at once on a single node."""
    if not commit.visible:
        await done(commit)


async def durable(store: MetadataStore) -> None:
    """Return when all that was written to the store is on disk."""
    commit = store.uncommitted()
    if commit is not None:
        await done(commit)


async def taken(operation: Callable[[], Commit | None]) -> bool:
    """Do what writes definitions until no other node is faster; return when it is durable.

    The operation decides anew each time, by the definitions as they are then. It answers None
    where there is nothing to do, and so does this with False.
    """
    while True:
        commit = operation()
        if commit is None:
            return False
        await done(commit)
        if not commit.refused:
            return True


async def through(waiting: Waiting[Answer]) -> Answer:
    """Go through an operation that may have to ask other nodes; returns or raises what it does."""
    finished: asyncio.Future[Callable[[], Answer]] = asyncio.get_running_loop().create_future()

    def finish(result: Callable[[], Answer]) -> None:
        if not finished.done():
            finished.set_result(result)

    run(waiting, finish)
    return (await finished)()
