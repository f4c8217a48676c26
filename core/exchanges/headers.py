"""The rules of headers bindings (amqp_semantics.md section 3).

The arguments of the binding are what the headers of a message must hold: all of them, or any one,
as `x-match` says. Arguments whose name starts with `x-` are no conditions unless `x-match` ends in
`-with-x`; `x-match` itself never is. A void argument asks only that the header exist. Numbers are
equal by value whatever their types, integers, floats and timestamps alike, and so are strings and
binaries; values of any other two types are never equal, so neither a boolean nor a string equals a
number. Within tables and arrays the types must be the same, too.

Of thousands of bindings only those are tried that a header of the message speaks for. A binding is
filed under its conditions if any of them is enough, and under one of them if all must hold: the one
that the fewest others are filed under.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from warren.core.erlang_text import binary_text, field_text
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.field import KIND_NAMES, NUMBER_KINDS, Field, Table, to_octets

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


FEW = 8
"""So few bindings are all tried: looking for them by their signs would take longer."""

Sign: TypeAlias = tuple[object, ...]
"""The common part of a header and of the conditions that it may fulfil: the name and the value, or
the name and the type of a value that is a table or an array; the name alone asks for any value."""


class HeadersRule:
    """The conditions of one binding, ready to be tried. Its `x-match` has been checked.

    Without conditions, `all` matches every message and `any` matches none. `signs` are those of its
    conditions, in their order.
    """

    __slots__ = ("_conditions", "match_all", "signs")

    def __init__(self, arguments: Table) -> None:
        mode = _MODES[arguments.get(X_MATCH, _DEFAULT).value]
        self.match_all = mode.match_all
        self._conditions = [
            (name, None if field.kind == "V" else _comparable(field))
            for name, field in arguments.items()
            if name != X_MATCH and (mode.with_x or not name.startswith("x-"))
        ]
        self.signs = [
            (name,) if wanted is None else _sign(name, arguments[name])
            for name, wanted in self._conditions
        ]

    @property
    def names(self) -> list[bytes]:
        """The names of the headers that the conditions ask for."""
        return [to_octets(name) for name, _ in self._conditions]

    def matches(self, headers: Table) -> bool:
        match_all = self.match_all
        for name, wanted in self._conditions:
            field = headers.get(name)
            holds = field is not None and (wanted is None or _comparable(field) == wanted)
            # The first one that holds decides `any`, the first that does not decides `all`.
            if holds is not match_all:
                return holds
        return match_all


class _Filed(NamedTuple):
    """A binding's rule, its place in the order of bindings, and the signs it is filed under."""

    rule: HeadersRule
    number: int
    signs: list[Sign]


class HeadersRules:
    """The bindings of a headers exchange. `tried` says how many the last `match` has tried."""

    def __init__(self) -> None:
        self.tried = 0
        # The names that conditions ask for, as they are in a message, and how many do.
        self.names: dict[bytes, int] = {}
        self._filed: dict[Binding, _Filed] = {}
        self._by_sign: dict[Sign, dict[Binding, None]] = {}
        # Bindings without conditions, which match every message.
        self._unconditional: dict[Binding, None] = {}
        self._last_number = 0

    def add(self, binding: Binding) -> None:
        rule = HeadersRule(binding.arguments)
        signs = list(dict.fromkeys(rule.signs))
        if rule.match_all and signs:
            signs = [min(signs, key=self._count)]
        for sign in signs:
            self._by_sign.setdefault(sign, {})[binding] = None
        if rule.match_all and not signs:
            self._unconditional[binding] = None
        for name in rule.names:
            self.names[name] = self.names.get(name, 0) + 1
        self._last_number += 1
        self._filed[binding] = _Filed(rule, self._last_number, signs)

    def remove(self, binding: Binding) -> None:
        filed = self._filed.pop(binding, None)
        if filed is None:
            return
        self._unconditional.pop(binding, None)
        for name in filed.rule.names:
            self.names[name] -= 1
            if not self.names[name]:
                del self.names[name]
        for sign in filed.signs:
            bindings = self._by_sign[sign]
            del bindings[binding]
            if not bindings:
                del self._by_sign[sign]

    def match(self, headers: Table) -> list[Binding]:
        """The bindings that the headers satisfy, in the order in which they were added."""
        filed = self._filed
        if len(filed) <= FEW:
            self.tried = len(filed)
            return [binding for binding, one in filed.items() if one.rule.matches(headers)]
        candidates = dict(self._unconditional)
        by_sign = self._by_sign
        for name, field in headers.items():
            for sign in ((name,), _sign(name, field)):
                bindings = by_sign.get(sign)
                if bindings is not None:
                    candidates.update(bindings)
        self.tried = len(candidates)
        found = [binding for binding in candidates if filed[binding].rule.matches(headers)]
        found.sort(key=lambda binding: filed[binding].number)
        return found

    def _count(self, sign: Sign) -> int:
        return len(self._by_sign.get(sign, ()))


def _sign(name: str, field: Field) -> Sign:
    kind, value = _comparable(field)
    return (name, kind) if kind == "list" else (name, kind, value)


_COMPARABLE: Mapping[str, str] = {
    **dict.fromkeys(NUMBER_KINDS | {"T"}, "number"),
    **dict.fromkeys("Sx", "text"),
    **dict.fromkeys("AF", "list"),
}
"""The kinds as which RabbitMQ compares values of these types: it does not compare the types."""


def _comparable(field: Field) -> tuple[str, object]:
    """Return a value that is equal for fields which RabbitMQ takes for equal: an empty table is an
    empty array."""
    kind, value = field
    kind = _COMPARABLE.get(kind, kind)
    return kind, (value or ()) if kind == "list" else value
