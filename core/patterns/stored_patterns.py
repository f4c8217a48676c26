"""The patterns of stored policies and permissions, compiled when they are first needed.

A pattern was valid when it was set. Should it not be any more (set by an older version, or by
another node), it matches nothing, and the log says whose it is.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol

from warren.core.log_line import log_event
from warren.core.patterns.matcher import PLAIN_LENGTH_MAX, Matcher
from warren.core.patterns.pattern import NEVER, InvalidPattern

log = logging.getLogger("warren.policy")

NO_VALUES: Mapping[str, str] = MappingProxyType({})


class Compile(Protocol):
    """`compile_pattern` or `compile_permission`."""

    def __call__(self, pattern: str, values: Mapping[str, str], *, owner: str) -> Matcher: ...


class StoredPatterns:
    """Compiled patterns by their text; those that were not needed for longest are dropped.

    One that is found again has what is left of its time (`matcher.py`), whichever user set it.
    """

    CHARACTERS_MAX: ClassVar[int] = 200_000
    """Characters of all patterns together, some 0.3 KB each when they are compiled."""

    CHARACTERS_EACH: ClassVar[int] = 32
    """Characters that each pattern counts besides its own."""

    def __init__(self, compile_: Compile) -> None:
        self.characters = 0
        self._compile = compile_
        self._kept: OrderedDict[tuple[str, ...], Matcher] = OrderedDict()

    def matcher(self, pattern: str, owner: str, values: Mapping[str, str] = NO_VALUES) -> Matcher:
        """The pattern with its placeholders replaced. `owner` is whose it is, for the log."""
        # The beginning is enough for patterns that are too long: they all match nothing.
        key = (pattern[: PLAIN_LENGTH_MAX + 1], *values.values())
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        try:
            found = self._compile(pattern, values, owner=owner)
        except InvalidPattern as error:
            log_event(
                log, logging.ERROR, "pattern_invalid", of=owner, reason=error.reason,
                pattern=error.pattern,
            )  # fmt: skip
            found = NEVER
        self._kept[key] = found
        self.characters += self._size(key)
        while self.characters > self.CHARACTERS_MAX:
            dropped, _ = self._kept.popitem(last=False)
            self.characters -= self._size(dropped)
        return found

    def _size(self, key: tuple[str, ...]) -> int:
        return sum(map(len, key)) + self.CHARACTERS_EACH


class StoredPattern:
    """A pattern that is compiled when it is first searched, and kept from then on."""

    __slots__ = ("_matcher", "_owner", "_pattern", "_patterns")

    def __init__(self, patterns: StoredPatterns, pattern: str, owner: str) -> None:
        self._patterns = patterns
        self._pattern = pattern
        self._owner = owner
        self._matcher: Matcher | None = None

    def search(self, text: str, /) -> object | None:
        if self._matcher is None:
            self._matcher = self._patterns.matcher(self._pattern, self._owner)
        return self._matcher.search(text)
