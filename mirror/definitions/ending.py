"""Ends tasks that talk to etcd, even if a request of theirs times out at the same moment.

aiohttp takes a cancellation that comes together with its own timeout for the timeout: the task goes
on, with an error. And timeouts do come together, as aiohttp rounds longer ones up to whole seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

CANCEL_AGAIN_S = 0.5
"""Seconds before a task that has not ended is cancelled again; most end in the next turns of the
loop."""


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and return when all have ended."""
    left = list(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, still = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        # Take their errors, so that asyncio does not log them as never retrieved.
        await asyncio.gather(*ended, return_exceptions=True)
        left = list(still)
