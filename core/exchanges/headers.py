"""The rules of headers bindings (amqp_semantics.md section 3).

The arguments of the binding are what the headers of a message must hold: all of them, or any one,
as `x-match` says. Arguments whose name starts with `x-` are no conditions unless `x-match` ends in
`-with-x`; `x-match` itself never is. A void argument asks only that the header exist. Numbers are
equal by value whatever their types, integers and floats alike; values of any other two types are
never equal, so neither a boolean nor a string equals a number.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.core.erlang_text import binary_text, field_text
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.field import KIND_NAMES, NUMBER_KINDS, Field, Table

X_MATCH = "x-match"


class _Mode(NamedTuple):
    match_all: bool
    with_x: bool


_MODES = {
    b"all": _Mode(match_all=True, with_x=False),
    b"any": _Mode(match_all=False, with_x=False),
    b"all-with-x": _Mode(match_all=True, with_x=True),
    b"any-with-x": _Mode(match_all=False, with_x=True),
}
_DEFAULT = Field("S", b"all")


def check_x_match(arguments: Table) -> None:
    """Raise `PreconditionFailed` unless `x-match` is absent or one of the four words."""
    x_match = arguments.get(X_MATCH, _DEFAULT)
    if x_match.kind != "S":
        raise PreconditionFailed(
            f"Invalid x-match field type {KIND_NAMES[x_match.kind]}"
            f" (value {field_text(x_match)}); expected longstr"
        )
    if x_match.value not in _MODES:
        raise PreconditionFailed(
            f"Invalid x-match field value {binary_text(x_match.value)};"
            " expected all, any, all-with-x, or any-with-x"
        )


class HeadersRule:
    """The conditions of one binding, ready to be tried. Its `x-match` has been checked.

    Without conditions, `all` matches every message and `any` matches none.
    """

    __slots__ = ("_conditions", "_match_all")

    def __init__(self, arguments: Table) -> None:
        mode = _MODES[arguments.get(X_MATCH, _DEFAULT).value]
        self._match_all = mode.match_all
        self._conditions = [
            (name, None if field.kind == "V" else _comparable(field))
            for name, field in arguments.items()
            if name != X_MATCH and (mode.with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: Table) -> bool:
        match_all = self._match_all
        for name, wanted in self._conditions:
            field = headers.get(name)
            holds = field is not None and (wanted is None or _comparable(field) == wanted)
            # The first one that holds decides `any`, the first that does not decides `all`.
            if holds is not match_all:
                return holds
        return match_all


class HeadersRules:
    """The bindings of a headers exchange, each tried in turn."""

    def __init__(self) -> None:
        self._rules: dict[Binding, HeadersRule] = {}

    def add(self, binding: Binding) -> None:
        self._rules[binding] = HeadersRule(binding.arguments)

    def remove(self, binding: Binding) -> None:
        self._rules.pop(binding, None)

    def match(self, headers: Table) -> list[Binding]:
        return [binding for binding, rule in self._rules.items() if rule.matches(headers)]


def _comparable(field: Field) -> tuple[str, object]:
    kind, value = field
    return ("number" if kind in NUMBER_KINDS else kind), value
