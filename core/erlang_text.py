"""Field values as RabbitMQ's error texts show them, which is as Erlang's `~p` prints its terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warren.core.field import KIND_NAMES, Field, Table

_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\e"}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\"}


def binary_text(octets: bytes) -> str:
    """A binary: `<<"text">>`, or `<<1,2,255>>` when it is not all printable ASCII."""
    if not octets:
        return "<<>>"
    if all(32 <= octet < 127 or octet in _ESCAPES for octet in octets):
        return '<<"' + "".join(_ESCAPES.get(octet) or chr(octet) for octet in octets) + '">>'
    return "<<" + ",".join(map(str, octets)) + ">>"


def field_text(field: Field) -> str:
    """The value of the field, without its type where it is not inside another."""
    kind, value = field
    shown = _SHOWN.get(kind)
    return shown(value) if shown is not None else str(value)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _void_text(value: None) -> str:
    return "undefined"


def _decimal_text(value: tuple[int, int]) -> str:
    scale, unscaled = value
    return f"{{{scale},{unscaled}}}"


def _table_text(table: Table) -> str:
    pairs = (
        f"{{{binary_text(name.encode('utf-8', 'surrogateescape'))},{_typed_text(field)}}}"
        for name, field in table.items()
    )
    return f"[{','.join(pairs)}]"


def _array_text(items: list[Field]) -> str:
    return f"[{','.join(f'{{{_typed_text(item)}}}' for item in items)}]"


def _typed_text(field: Field) -> str:
    return f"{KIND_NAMES[field.kind]},{field_text(field)}"


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "S": binary_text,
    "x": binary_text,
    "t": _bool_text,
    "V": _void_text,
    "D": _decimal_text,
    "F": _table_text,
    "A": _array_text,
}
