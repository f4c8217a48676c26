"""Whether the disk of a storage works, from what the writers of its logs meet.

A disk that fails now and then would raise and clear its alarm several times a second, at all nodes
of a cluster, and block and unblock all publishers each time. So trouble that comes back soon after
it was over lasts until nothing has failed for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from warren.core.log_line import log_event
from warren.core.ports import Clock, Timer

log = logging.getLogger("warren.storage")

DOUBT_S = 10.0
"""Trouble has come back if a write fails so soon after the last trouble was over."""

CALM_S = 5.0
"""For so long nothing may fail before trouble that has come back is over."""


class DiskTrouble:
    """Begins with the first failure of any writer. It is over when all of them work: at once, or
    after `CALM_S` if it had come back. `on_change` is told of both, of the end with None."""

    def __init__(
        self, clock: Clock, directory: Path, on_change: Callable[[Exception | None], None]
    ) -> None:
        self.is_on = False
        self._clock = clock
        self._directory = directory
        self._on_change = on_change
        self._failing: set[str] = set()
        self._has_come_back = False
        self._doubted_until = 0.0
        self._calm: Timer | None = None

    def fails(self, writer: str, error: Exception) -> None:
        """Note the first failure in a row of this writer."""
        self._failing.add(writer)
        self.close()
        if self.is_on:
            return
        self.is_on = True
        self._has_come_back = self._clock.now() < self._doubted_until
        log_event(
            log,
            logging.ERROR,
            "storage_write_failed",
            path=self._directory,
            error=error,
            action="retrying",
        )
        self._on_change(error)

    def works(self, writer: str) -> None:
        """Note that this writer works again."""
        self._failing.discard(writer)
        if self._failing:
            return
        if self._has_come_back:
            self._calm = self._clock.call_later(CALM_S, self._end)
        else:
            self._end()

    def close(self) -> None:
        """Wait no more for the end."""
        if self._calm is not None:
            self._calm.cancel()
            self._calm = None

    def _end(self) -> None:
        self._calm = None
        self.is_on = False
        self._doubted_until = self._clock.now() + DOUBT_S
        log_event(log, logging.INFO, "storage_write_recovered", path=self._directory)
        self._on_change(None)
