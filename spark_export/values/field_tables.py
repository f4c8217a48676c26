"""Header tables of AMQP 0-9-1 as a map of strings, as JSON text, or as a VARIANT.

The types are RabbitMQ's letters. Each value is converted as follows:

| letter | | map (string) | JSON | VARIANT |
|---|---|---|---|---|
| t | boolean | `true`, `false` | boolean | boolean |
| b B s u I i l L | integers | digits | number | integer; above 2^63 a decimal |
| f d | float, double | as JSON has it | number; `NaN` and the like are strings | float, double |
| D | decimal | digits and a point | number | decimal; a string beyond 38 digits |
| T | seconds since 1970 | digits | number | timestamp; an integer after the year 9999 |
| S | text | text | string | string |
| x | octets | base64 | string in base64 | binary |
| F A | table, array | JSON | object, array | object, array |
| V | nothing | null | null | null |

Octets that are not UTF-8 become U+FFFD in texts and names. Of two fields with one name the later
counts. A table that cannot be read is a `TableBroken`: brokers accept such tables from publishers
and pass them on, so it is not damage of the store.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from warren.core.field import Field, Table
from warren.spark_export.values.variant import (
    DECIMAL_DIGITS_MAX,
    TIMESTAMP_END_S,
    Decimal,
    Float32,
    Timestamp,
    encode_variant,
)

NESTING_MAX = 128
"""The deepest nesting of tables and arrays, as in the broker."""


class TableBroken(ValueError):
    """The octets are not a field table."""


_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">BI")
_FIXED: Mapping[int, tuple[str, struct.Struct]] = {
    ord(letter): (letter, struct.Struct(code))
    for letter, code in {
        "t": ">?",
        "b": ">b",
        "B": ">B",
        "s": ">h",
        "u": ">H",
        "I": ">i",
        "i": ">I",
        "l": ">q",
        "L": ">q",
        "f": ">f",
        "d": ">d",
        "T": ">Q",
        "D": ">BI",
    }.items()
}
_TEXT, _OCTETS, _TABLE, _ARRAY, _VOID = b"SxFAV"


def decode_fields(octets: bytes) -> Table:
    """The table whose fields fill `octets`, its length left out. Raises `TableBroken`."""
    try:
        return _fields(octets, 0, len(octets), 1)
    except (struct.error, IndexError) as error:
        raise TableBroken(f"a table of {len(octets)} octets ends in a field") from error


def _fields(data: bytes, at: int, end: int, depth: int) -> Table:
    table: Table = {}
    while at < end:
        name_end = at + 1 + data[at]
        if name_end >= end:
            raise TableBroken(f"a name at octet {at} leaves no value before octet {end}")
        name = data[at + 1 : name_end].decode("utf-8", "replace")
        table[name], at = _value(data, name_end, end, depth)
    return table


def _items(data: bytes, at: int, end: int, depth: int) -> list[Field]:
    items = []
    while at < end:
        item, at = _value(data, at, end, depth)
        items.append(item)
    return items


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    letter = data[at]
    at += 1
    fixed = _FIXED.get(letter)
    if fixed is not None:
        kind, code = fixed
        if at + code.size > end:
            raise TableBroken(f"a value of type {kind} at octet {at} runs past octet {end}")
        values = code.unpack_from(data, at)
        return Field(kind, values if kind == "D" else values[0]), at + code.size
    if letter == _VOID:
        return Field("V", None), at
    if letter not in b"SxFA":
        raise TableBroken(f"unknown field type 0x{letter:02X} at octet {at - 1}")
    start = at + 4
    stop = start + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise TableBroken(f"a value at octet {start} runs past octet {end}")
    if letter == _TEXT:
        return Field("S", data[start:stop]), stop
    if letter == _OCTETS:
        return Field("x", data[start:stop]), stop
    if depth >= NESTING_MAX:
        raise TableBroken(f"tables and arrays are nested deeper than {NESTING_MAX}")
    if letter == _TABLE:
        return Field("F", _fields(data, start, stop, depth + 1)), stop
    return Field("A", _items(data, start, stop, depth + 1)), stop


# As a map of strings


def to_strings(table: Table) -> dict[str, str | None]:
    return {name: _to_string(field) for name, field in table.items()}


def _to_string(field: Field) -> str | None:
    kind, value = field
    if kind == "S":
        return _text(value)
    if kind == "V":
        return None
    if kind == "D":
        return str(Decimal(*reversed(value)))
    plain = _plain(field)
    return plain if isinstance(plain, str) else _json(plain)


# As JSON


def to_json(table: Table) -> str:
    return _json(_plain(Field("F", table)))


def _json(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(field: Field) -> Any:
    return _TO_PLAIN[field.kind](field.value)


def _same(value: Any) -> Any:
    return value


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _plain_float(value: float) -> float | str:
    """JSON has no infinities and no NaN; these are Spark's words for them."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _plain_decimal(value: tuple[int, int]) -> float | int:
    """Exact: the digits have 32 bits, and a double has room for 53."""
    scale, unscaled = value
    return unscaled / 10**scale if scale else unscaled


def _plain_table(value: Table) -> dict[str, Any]:
    return {name: _plain(field) for name, field in value.items()}


def _plain_array(value: list[Field]) -> list[Any]:
    return [_plain(item) for item in value]


_TO_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys("tbBsuIilLTV", _same),
    "f": _plain_float,
    "d": _plain_float,
    "D": _plain_decimal,
    "S": _text,
    "x": _base64,
    "F": _plain_table,
    "A": _plain_array,
}


# As a VARIANT


def to_variant(table: Table) -> tuple[bytes, bytes]:
    """The value and the metadata of the table's VARIANT."""
    return encode_variant(_typed(Field("F", table)))


def _typed(field: Field) -> Any:
    return _TO_TYPED[field.kind](field.value)


def _typed_time(value: int) -> Timestamp | int:
    return Timestamp(value * 1_000_000) if value < TIMESTAMP_END_S else value


def _typed_decimal(value: tuple[int, int]) -> Decimal | str:
    scale, unscaled = value
    decimal = Decimal(unscaled, scale)
    return decimal if scale <= DECIMAL_DIGITS_MAX else str(decimal)


def _typed_table(value: Table) -> dict[str, Any]:
    return {name: _typed(field) for name, field in value.items()}


def _typed_array(value: list[Field]) -> list[Any]:
    return [_typed(item) for item in value]


_TO_TYPED: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys("tbBsuIilLVdx", _same),
    "f": Float32,
    "D": _typed_decimal,
    "T": _typed_time,
    "S": _text,
    "F": _typed_table,
    "A": _typed_array,
}
