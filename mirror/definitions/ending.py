"""Ends tasks that talk to etcd, also one whose question times out in the same moment.

aiohttp takes a cancellation that comes together with its own timeout for that: the task goes on,
with an error. And timeouts come together, for aiohttp rounds the longer ones up to whole seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

CANCEL_AGAIN_S = 0.5
"""A task that was cancelled ends in the next turns of the loop."""


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and return when all have ended."""
    left = list(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, still = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        # What became of them is nobody's business any more.
        await asyncio.gather(*ended, return_exceptions=True)
        left = list(still)
