"""Searches for patterns that somebody made up, within bounds.

`re` has no bound: some patterns take time exponential in the length of a text, and nothing else
runs meanwhile. With at most one repetition, and none of a group, a pattern cannot, and `re`
searches it. Others are searched by the `regex` library, which gives up when its time is over; what
it gave up on does not match, and a pattern that keeps taking too long matches nothing any more.
PCRE gives up after a number of steps, likewise.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any, Protocol

from warren.core.log_line import log_event

log = logging.getLogger("warren.policy")

SEARCH_S = 0.005
"""How long a search may take."""

SLOW_MAX = 10
"""Searches that may take too long until a pattern is given up."""

REPETITIONS = re.compile(r"[*+{]")
REPEATED_GROUP = re.compile(r"\)[*+{]")


class Matcher(Protocol):
    """Something that finds its pattern in a text, or None."""

    def search(self, text: str, /) -> object | None: ...


class TooSlow(Exception):
    """A search took too long."""


def matcher(pattern: str, flags: re.RegexFlag = re.ASCII) -> Matcher:
    """For a pattern in the language of `re`; raises `re.error`, OverflowError, RecursionError."""
    compiled = re.compile(pattern, flags)
    if len(REPETITIONS.findall(pattern)) <= 1 and not REPEATED_GROUP.search(pattern):
        return compiled
    return BoundedMatcher(pattern, flags)


class BoundedMatcher:
    """Searches with a bound. `strict`: it raises `TooSlow` instead of not matching."""

    def __init__(
        self, pattern: str, flags: re.RegexFlag = re.ASCII, *, strict: bool = False
    ) -> None:
        # Most nodes have no such pattern and need not load it.
        regex: Any = import_module("regex")
        try:
            self._compiled = regex.compile(pattern, int(flags))
        except regex.error as error:
            raise re.error(error.msg, pattern, error.pos) from None
        self._pattern = pattern
        self._strict = strict
        self._slow = 0

    def search(self, text: str, /) -> object | None:
        if self._slow >= SLOW_MAX:
            return None
        try:
            found: object | None = self._compiled.search(text, timeout=SEARCH_S)
        except TimeoutError:
            if self._strict:
                raise TooSlow(self._pattern) from None
            self._slow += 1
            given_up = self._slow == SLOW_MAX
            log_event(
                log, logging.ERROR, "pattern_too_slow", pattern=self._pattern, given_up=given_up
            )
            return None
        return found
