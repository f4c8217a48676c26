"""Searches for patterns of users, within bounds, whatever the pattern.

Two engines. `re` has no bound, and some patterns take it time exponential in the length of a name;
it searches only *plain* patterns, whose steps are at most the length of the name times the length
of the pattern: a pattern is plain that has one repetition at most and no group, or one group at its
end and no repetition. All others are searched by the `regex` library, which gives up when its time
is over.

A search may take what is left of the pattern's time (`BURST_S`); each search gives it `EARNED_S`
more. So one search is bounded, and so are the searches for 20,000 names. A pattern that has used up
its time matches nothing any more; the log says so once. PCRE gives up after a number of steps, too,
and that also means no match.

What compiling costs is bounded before it begins: by the length of the pattern, and by its length
with all that is repeated a fixed number of times written out, which is what `regex` does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from importlib import import_module
from time import thread_time
from typing import Any, Protocol, TypeAlias

from warren.core.log_line import log_event

log = logging.getLogger("warren.policy")

BURST_S = 0.003
"""How long a pattern may search at once: time of the processor, so that a busy machine makes no
difference. A pattern that is meant to be used takes some microseconds."""

EARNED_S = 0.0001
"""Time that a pattern gains with each search. A pattern of a hundred names takes less."""

CHARGED_S_MAX = 0.001
"""The most that a search which ended by itself takes from a pattern's time: if it took longer,
Python may have collected its garbage meanwhile."""

TRIED_S_MIN = 0.00005
"""A search that ran out of time is tried again if the pattern has more than this left."""

PLAIN_LENGTH_MAX = 4096
"""Characters of a plain pattern: `re` compiles 1 in about 1 microsecond."""

LENGTH_MAX = 1024
"""Characters of any other: `regex` compiles 1 in up to 10 microseconds."""

WRITTEN_OUT_MAX = 4096
"""Characters of such a pattern with `a{3}` written out as `aaa`."""

UNCOUNTED_LENGTH_MAX = 256
"""A plain pattern of this length searches a name in 0.2 ms at most: its time is not taken."""

CLASSES_MAX = 32
"""Classes of characters in a plain pattern; `re` compiles 1 in up to 50 microseconds."""

# Signs that are escaped, or inside a class, count as well: then the other engine searches.
REPETITION = re.compile(r"[*+?{]+")
PLAIN_GROUP = re.compile(r"[^()]*\((?:\?(?:[imsx]+)?:)?[^()?*+{]*\)(?:\$|\\Z)?", re.DOTALL)
BACKWARD_REFERENCE = re.compile(r"\\[0-9]")
# `re` compiles ranges of these character by character.
RARE = re.compile(r"[^\x00-\xff]")

Find: TypeAlias = Callable[[str, float], object | None]
"""Searches a text for so many seconds; raises TimeoutError."""


class Matcher(Protocol):
    """Something that finds its pattern in a text, or None."""

    def search(self, text: str, /) -> object | None: ...


class TooSlow(Exception):
    """A pattern used up its time."""


class TooLarge(Exception):
    """Compiling the pattern would take too long."""


def matcher(
    pattern: str,
    written_out: int,
    *,
    ignore_case: bool = False,
    owner: str | None = None,
    strict: bool = False,
) -> Matcher:
    """Return the matcher of a pattern in the language of `re`. Raises `re.error`, ValueError,
    OverflowError, RecursionError and `TooLarge`.

    `written_out` is its length with fixed repetitions written out. `owner` is named in the log.
    `strict`: searches raise `TooSlow` instead of not matching.
    """
    flags = re.ASCII | (re.IGNORECASE if ignore_case else re.NOFLAG)
    if _is_plain(pattern):
        if len(pattern) > PLAIN_LENGTH_MAX:
            raise TooLarge(f"longer than {PLAIN_LENGTH_MAX} characters")
        compiled = re.compile(pattern, flags)
        if len(pattern) <= UNCOUNTED_LENGTH_MAX:
            return compiled
        return BoundedMatcher(
            lambda text, left_s: compiled.search(text), pattern, owner, strict=strict
        )
    if len(pattern) > LENGTH_MAX:
        raise TooLarge(f"longer than {LENGTH_MAX} characters, which only plain ones may be")
    if written_out > WRITTEN_OUT_MAX:
        raise TooLarge(f"longer than {WRITTEN_OUT_MAX} characters, written out")
    # `re` says what is a pattern, `regex` knows more; rare characters make no difference to that.
    re.compile(RARE.sub("\xff", pattern), re.ASCII)
    return BoundedMatcher(_bounded_find(pattern, ignore_case), pattern, owner, strict=strict)


class BoundedMatcher:
    """Searches until its time is used up. `cpu_s` is the clock: the processor's for this thread."""

    def __init__(
        self,
        find: Find,
        pattern: str,
        owner: str | None,
        *,
        strict: bool = False,
        cpu_s: Callable[[], float] = thread_time,
    ) -> None:
        self._find = find
        self._pattern = pattern
        self._owner = owner
        self._strict = strict
        self._cpu_s = cpu_s
        self._left_s = BURST_S

    def search(self, text: str, /) -> object | None:
        if self._left_s > 0:
            while self._left_s > 0:
                began = self._cpu_s()
                try:
                    found = self._find(text, self._left_s)
                except TimeoutError:
                    # Other threads may have used the time that the engine measured.
                    left_s = self._left_s - (self._cpu_s() - began)
                    self._left_s = left_s if left_s > TRIED_S_MIN else 0.0
                else:
                    charged_s = min(self._cpu_s() - began, CHARGED_S_MAX)
                    left_s = self._left_s + EARNED_S - charged_s
                    self._left_s = min(left_s, BURST_S)
                    if left_s > 0:
                        return found
            if not self._strict:
                log_event(
                    log, logging.ERROR, "pattern_too_slow", of=self._owner, pattern=self._pattern
                )
        if self._strict:
            raise TooSlow(self._pattern)
        return None


def _is_plain(pattern: str) -> bool:
    if RARE.search(pattern) or pattern.count("[") > CLASSES_MAX:
        return False
    if "(" in pattern:
        return (
            PLAIN_GROUP.fullmatch(pattern) is not None
            and BACKWARD_REFERENCE.search(pattern) is None
            and REPETITION.search(pattern.replace("(?", "(")) is None
        )
    return len(REPETITION.findall(pattern)) <= 1


def _bounded_find(pattern: str, ignore_case: bool) -> Find:
    # Most nodes have no such pattern and need not load it.
    regex: Any = import_module("regex")
    flags = regex.ASCII | regex.VERSION0 | (regex.IGNORECASE if ignore_case else 0)
    try:
        # Its own cache keeps hundreds of patterns, however large they are.
        compiled = regex.compile(pattern, flags, cache_pattern=False)
    except regex.error as error:
        raise re.error(error.msg, pattern, error.pos) from None

    def find(text: str, left_s: float) -> object | None:
        # The timeout counts what all threads of the process use: let no other one run Python.
        found: object | None = compiled.search(text, timeout=left_s, concurrent=False)
        return found

    return find
