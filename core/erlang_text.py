"""Field values as RabbitMQ's error texts show them, which is as Erlang's `~p` prints its terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from warren.core.field import KIND_NAMES, Field, Table, to_text

_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\e"}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\"}


def binary_text(octets: bytes) -> str:
    """A binary: `<<"text">>`, or `<<1,2,255>>` when it is not all printable ASCII."""
    if not octets:
        return "<<>>"
    if all(32 <= octet < 127 or octet in _ESCAPES for octet in octets):
        return '<<"' + "".join(_ESCAPES.get(octet) or chr(octet) for octet in octets) + '">>'
    return octets_text(octets)


def octets_text(octets: bytes) -> str:
    """A binary as Erlang's `~w` prints it: numbers, whatever they stand for."""
    return "<<" + ",".join(map(str, octets)) + ">>"


def argument_text(argument: Field | None, both: bool) -> str:
    """An argument in the texts about two declarations that contradict each other: `none`; the value
    with its type; or the value alone when both declarations have one, where void is `none` too."""
    if argument is None or (both and argument.kind == "V"):
        return "none"
    is_text = argument.kind in "Sx"
    text = to_text(argument.value) if is_text else field_text(argument)
    return f"'{text}'" if both else f"the value '{text}' of type '{KIND_NAMES[argument.kind]}'"


def field_text(field: Field) -> str:
    """The value of the field, without its type where it is not inside another."""
    kind, value = field
    shown = _SHOWN.get(kind)
    return shown(value) if shown is not None else str(value)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _void_text(value: None) -> str:
    return "undefined"


def _float_text(value: float) -> str:
    """The shortest text that stands for the number: with an exponent where that is shorter, and
    from 2**53 on always."""
    number = Decimal(repr(value))
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return str(value)
    shown = "".join(map(str, digits)).strip("0") or "0"
    power = number.adjusted() if value else 0
    mantissa = f"{shown[0]}.{shown[1:] or '0'}"
    scientific = f"{'-' if number.is_signed() else ''}{mantissa}e{power}"
    plain = f"{number:f}" if exponent < 0 else f"{number:f}.0"
    return scientific if abs(value) >= 2**53 or len(scientific) < len(plain) else plain


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
    "f": _float_text,
    "d": _float_text,
    "F": _table_text,
    "A": _array_text,
}
