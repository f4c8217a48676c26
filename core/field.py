"""AMQP field values with the wire type they arrived with.

A queue argument of type `short` is named as such in error texts, and a header must leave the
broker with the type it came with, so a plain Python value is not enough. A `Field` is the wire
letter and the value; a `Table` maps names to fields. Encoding them is `amqp/field_table.py`'s.

Names are `str` decoded as UTF-8 with surrogateescape: any bytes survive the round trip.

| kind | value | | kind | value |
|---|---|---|---|---|
| S x | bytes | | t | bool |
| b B s u I i l L | int | | f d | float |
| T | int, seconds since 1970 | | D | (scale, unscaled int) |
| F | Table | | A | list of Field |
| V | None | | | |
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from warren.core.errors import BrokerError


class Field(NamedTuple):
    """One value of a field table: the wire letter of its type, and the value as Python has it."""

    kind: str
    value: Any


_new = tuple.__new__
"""Makes a field in half the time that calling its class takes."""

Table: TypeAlias = dict[str, Field]


class NoField(BrokerError):
    """JSON that no field of a table can hold."""


JSON_NESTING_MAX = 100
"""How deep lists and objects may be nested in JSON; a table on the wire may be somewhat deeper."""

SHORT_STRING_MAX = 255
"""Octets of a short string on the wire: names, routing keys, tags."""

LONG_MIN = -(1 << 63)
LONG_MAX = (1 << 63) - 1
"""The smallest and the largest number a field of kind `l` holds."""

INTEGER_KINDS = frozenset("bBsuIilL")
FLOAT_KINDS = frozenset("fd")
NUMBER_KINDS = INTEGER_KINDS | FLOAT_KINDS

# The names the reference (amqp_semantics.md section 0) gives the types in error texts.
KIND_NAMES: Mapping[str, str] = {
    "S": "longstr",
    "T": "timestamp",
    "F": "table",
    "A": "array",
    "I": "signedint",
    "i": "unsignedint",
    "D": "decimal",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "t": "bool",
    "x": "binary",
    "V": "void",
}


def longstr(text: str) -> Field:
    """A string field."""
    return Field("S", to_octets(text))


def long(number: int) -> Field:
    """A signed 64-bit integer field."""
    return Field("l", number)


def signed_int(number: int) -> Field:
    """A signed 32-bit integer field, of which a larger number keeps the lowest 32 bits."""
    return Field("I", (number + (1 << 31)) % (1 << 32) - (1 << 31))


def to_text(value: bytes) -> str:
    """Bytes of a name as the `str` the broker uses for names; any bytes survive."""
    return value.decode("utf-8", "surrogateescape")


def to_octets(name: str) -> bytes:
    """The bytes that `to_text` made a `str` of."""
    return name.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """The text with replacement characters for octets that are not UTF-8."""
    return to_octets(text).decode("utf-8", "replace")


def cut_to_short_string(text: str) -> str:
    """The text, or as much of its start as a short string holds."""
    raw = to_octets(text)
    if len(raw) <= SHORT_STRING_MAX:
        return text
    return raw[:SHORT_STRING_MAX].decode("utf-8", "ignore")


def has_more_than(table: Table, count: int) -> bool:
    """Whether there are more fields than that in a table, with those in tables and arrays of it."""
    pending: list[Collection[Field]] = [table.values()]
    while pending:
        fields = pending.pop()
        count -= len(fields)
        if count < 0:
            return True
        for kind, value in fields:
            if kind == "F":
                pending.append(value.values())
            elif kind == "A":
                pending.append(value)
    return False


def to_plain(table: Table) -> dict[str, Any]:
    """The table as nested lists and dicts that MessagePack can hold; `from_plain` reverses it."""
    return {name: _field_to_plain(field) for name, field in table.items()}


def from_plain(plain: Mapping[str, Any]) -> Table:
    """The table `to_plain` was given."""
    return {name: _field_from_plain(kind, value) for name, (kind, value) in plain.items()}


def to_json(table: Table) -> dict[str, Any]:
    """The table as RabbitMQ shows it in JSON, where the types are lost.

    Void is the string `undefined`; octets that are no UTF-8 are shown in base64 behind some words.
    """
    return {json_text(name): _field_to_json(field) for name, field in table.items()}


def from_json(value: Any) -> Table:
    """The table a JSON object stands for; raises `NoField`.

    Integers become `l`, other numbers `d`, strings `S`, lists `A`, objects `F`. There is no null:
    RabbitMQ takes none, wherever it stands. An empty list, which is how an empty table is written
    in some languages, is an empty table.
    """
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise NoField("arguments should be an object")
    if nested_too_deep(value):
        raise NoField(NESTED_TOO_DEEP)
    return _table_from_json(value)


NESTED_TOO_DEEP = f"JSON is nested deeper than {JSON_NESTING_MAX} levels"


# Made once: an expression `dict | list` costs more than the look at an item.
_NESTING = (dict, list)


def nested_too_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than `JSON_NESTING_MAX`; does not recurse itself."""
    level: list[Any] = [value] if isinstance(value, _NESTING) else []
    for _ in range(JSON_NESTING_MAX + 1):
        level = [
            item
            for nested in level
            for item in (nested.values() if isinstance(nested, dict) else nested)
            if isinstance(item, _NESTING)
        ]
        if not level:
            return False
    return True


def json_text(text: str) -> str:
    """A name for JSON, which holds Unicode only."""
    return text if text.isascii() else _octets_to_json(to_octets(text))


def _octets_to_json(octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return f"Not UTF-8, base64 is: {b64encode(octets).decode('ascii')}"


def _field_to_json(field: Field) -> Any:
    match field.kind:
        case "S" | "x":
            return _octets_to_json(field.value)
        case "F":
            return to_json(field.value)
        case "A":
            return [_field_to_json(item) for item in field.value]
        case "D":
            scale, unscaled = field.value
            return unscaled / 10**scale
        case "V":
            return "undefined"
        case "f" | "d" if not isfinite(field.value):
            # JSON has no number for these.
            return str(field.value)
        case _:
            return field.value


def _table_from_json(value: dict[str, Any]) -> Table:
    return {_checked_name(name): _field_from_json(name, item) for name, item in value.items()}


def _field_from_json(name: str, value: Any) -> Field:
    if value is None:
        raise NoField("null_not_allowed")
    if isinstance(value, bool):
        return Field("t", value)
    if isinstance(value, int):
        if not LONG_MIN <= value <= LONG_MAX:
            raise NoField(f"argument '{name}': {value} does not fit in 64 bits")
        return Field("l", value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        return longstr(value)
    if isinstance(value, dict):
        return Field("F", _table_from_json(value))
    if isinstance(value, list):
        return Field("A", [_field_from_json(name, item) for item in value])
    raise NoField(f"argument '{name}': {value!r} is not JSON")


def _checked_name(name: str) -> str:
    if len(to_octets(name)) > SHORT_STRING_MAX:
        raise NoField(f"name of argument '{name}' is longer than {SHORT_STRING_MAX} octets")
    return name


def _field_to_plain(field: Field) -> list[Any]:
    kind, value = field
    if kind == "F":
        return [kind, to_plain(value)]
    if kind == "A":
        return [kind, [_field_to_plain(item) for item in value]]
    return [kind, value]


def _field_from_plain(kind: str, value: Any) -> Field:
    if kind == "F":
        return Field(kind, from_plain(value))
    if kind == "A":
        return Field(kind, [_field_from_plain(*item) for item in value])
    if kind == "D":
        return Field(kind, tuple(value))
    return _new(Field, (kind, value))
