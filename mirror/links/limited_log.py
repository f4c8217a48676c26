"""Log lines about peers, of which a peer could cause as many as it likes.

A window of time has one line for each event and peer, and `LINES_MAX` lines in all. How often the
others happened is said by the first line of a later window.
"""

from __future__ import annotations

import logging
from collections import Counter

from warren.core.log_line import log_event
from warren.core.ports import Clock

WINDOW_S = 60.0
LINES_MAX = 50


class LimitedLog:
    """Logs an event of a peer unless it did so a short while ago."""

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
            # Nobody spoke of it for a whole window; what is kept stays below twice LINES_MAX.
            del self._left_out[key]
        self._logged.clear()
