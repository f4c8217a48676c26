"""Runs a coroutine again after each failure, with a delay between failures.

The next attempt begins at once after the first failure, and after the failure of an attempt that
lasted longer than the delay. After any other failure it begins when the delay is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from warren.core.ports import Clock

STOP_S = 2.0
"""The time for which a stopped attempt may close the connection to one of its brokers, before it is
cancelled again."""


class Attempts:
    """Repeated attempts. `attempt` returns when all is done, and raises on a failure. `failed` is
    called with each failure, `again` before each next attempt. If `delay_s` is None, a failure ends
    the attempts."""

    def __init__(
        self,
        attempt: Callable[[], Awaitable[None]],
        *,
        failed: Callable[[Exception], None],
        again: Callable[[], None],
        delay_s: float | None,
        clock: Clock,
    ) -> None:
        self._attempt = attempt
        self._failed = failed
        self._again = again
        self._delay_s = delay_s
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Cancel the running attempt, and wait for its end."""
        task, self._task = self._task, None
        if task is None:
            return
        while not task.done():
            # Cancelled again if one of the brokers does not answer the close.
            task.cancel()
            await asyncio.wait((task,), timeout=STOP_S)

    async def _run(self) -> None:
        failures = 0
        delay_s = self._delay_s
        while True:
            began = self._clock.now()
            try:
                await self._attempt()
            except Exception as error:
                self._failed(error)
            else:
                return
            if delay_s is None:
                return
            lasted_s = self._clock.now() - began
            failures = 1 if lasted_s > delay_s else failures + 1
            if failures > 1:
                await asyncio.sleep(delay_s)
            self._again()
