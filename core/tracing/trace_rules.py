"""Rules that say which messages have their lives recorded: parameters of the component `trace`.

    {"queue": "^orders", "user": "shop", "filter": "headers.tenant = 'a'", "one-in": 1000}

A message is selected when all that a rule names is true of it as it is published: one of its queues
matches the pattern, the user published it, the filter (`message_filter.py`) passes it, and it is
one in so many. The id of a message decides the last, so that every node that sees it decides the
same. A rule that names nothing selects all messages of its virtual host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from warren.core.definitions.validation import ValidationFailed, is_integer, term
from warren.core.messages.message_filter import ANY, InvalidFilter, Test, parse_filter
from warren.core.patterns.matcher import Matcher
from warren.core.patterns.pattern import InvalidPattern, compile_pattern

COMPONENT: Final = "trace"

RULES_MAX = 20
"""Rules of one virtual host: each is tried for every message that is published there."""


class Rule(NamedTuple):
    """`queue`, `user`: None for all. `passes` is the filter."""

    name: str
    queue: Matcher | None
    user: str | None
    passes: Test
    one_in: int

    @property
    def filters(self) -> bool:
        """Whether it has a filter."""
        return self.passes is not ANY

    def may_select_from(self, user: str, queues: Iterable[str] | None) -> bool:
        """Whether a message of the user for these queues may be selected; `queues` is None if they
        are not known yet."""
        if self.user not in (None, user):
            return False
        if self.queue is None or queues is None:
            return True
        search = self.queue.search
        return any(search(name) is not None for name in queues)

    def is_its_turn(self, message_id: str) -> bool:
        return self.one_in == 1 or crc32(message_id.encode()) % self.one_in == 0


def check(name: str, value: Any) -> None:
    """Raise `ValidationFailed` with every problem of a rule, one in a line."""
    if not isinstance(value, dict):
        raise ValidationFailed(f"{name} not a list {term(value)}")
    problems = [
        f"{key} is not known in a rule: queue, user, filter and one-in are"
        for key in value
        if key not in CHECKS
    ]
    for key, problem_of in CHECKS.items():
        if key in value and (problem := problem_of(value[key])):
            problems.append(f"{key} {problem}")
    if problems:
        raise ValidationFailed("\n".join(problems))


def parse(name: str, value: Mapping[str, Any]) -> Rule:
    """Read a parameter that `check` has let pass."""
    pattern = value.get("queue")
    return Rule(
        name,
        None if pattern is None else compile_pattern(pattern, owner=f"trace rule '{name}'"),
        value.get("user"),
        parse_filter(value.get("filter", "")),
        value.get("one-in", 1),
    )


def _pattern_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"should be a regular expression, actually was {term(value)}"
    try:
        compile_pattern(value)
    except InvalidPattern as error:
        return f"should be a regular expression: {error.reason}"
    return None


def _text_problem(value: Any) -> str | None:
    return None if isinstance(value, str) else f"should be a text, actually was {term(value)}"


def _filter_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return _text_problem(value)
    try:
        parse_filter(value)
    except InvalidFilter as error:
        return f"should be a filter: {error.text}"
    return None


def _share_problem(value: Any) -> str | None:
    if is_integer(value) and value >= 1:
        return None
    return f"should be a number from 1 on, actually was {term(value)}"


CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "queue": _pattern_problem,
    "user": _text_problem,
    "filter": _filter_problem,
    "one-in": _share_problem,
}
