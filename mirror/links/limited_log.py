"""Log lines about peers, limited because a peer could cause any number of them.

A window of time has one line for each event and peer, and `LINES_MAX` lines in all. The first line
of a later window counts the lines that were left out.
"""

from __future__ import annotations

import logging
from collections import Counter

from warren.core.log_line import log_event
from warren.core.ports import Clock

WINDOW_S = 60.0
LINES_MAX = 50


class LimitedLog:
    """Logs an event of a peer unless this window has a line for it already."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._window_end = clock.now() + WINDOW_S
        self._logged: set[tuple[str, str]] = set()
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._left_out_others = 0

    def event(self, level: int, event: str, about: str, /, **values: object) -> None:
        """Log an event about a peer: an address without its port, or a name."""
        if not self._log.isEnabledFor(level):
            return
        if self._clock.now() >= self._window_end:
            self._next_window()
        key = (event, about)
        if key in self._logged:
            self._left_out[key] += 1
        elif len(self._logged) >= LINES_MAX:
            self._left_out_others += 1
        else:
            self._logged.add(key)
            repeated = self._left_out.pop(key, None)
            log_event(self._log, level, event, **values, repeated=repeated)

    def _next_window(self) -> None:
        self._window_end = self._clock.now() + WINDOW_S
        others, self._left_out_others = self._left_out_others, 0
        if others:
            log_event(self._log, logging.WARNING, "link_lines_left_out", lines=others)
        for key in self._left_out.keys() - self._logged:
            # The event was not logged for a whole window: its count is dropped, so that fewer than
            # twice LINES_MAX are kept.
            del self._left_out[key]
        self._logged.clear()
