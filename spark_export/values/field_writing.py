"""Values of header tables as octets: the letter of a type, and the value.

`field_tables` reads them. The type of a value in a DataFrame decides how it is written:

| Spark | letter | | Spark | letter |
|---|---|---|---|---|
| BOOLEAN | t | | STRING | S |
| TINYINT, SMALLINT, INT, BIGINT | b, s, I, l | | BINARY | x |
| FLOAT, DOUBLE | f, d | | TIMESTAMP | T, in seconds |
| DECIMAL | D, or d below 0 and beyond 32 bits | | DATE | S, as 2026-01-31 |
| MAP of names, STRUCT | F | | ARRAY | A |
| null in a map or an array | V | | null in a struct | left out |

All integers of JSON and VARIANT are written as `l`: JSON has one kind of number only, and VARIANT
uses the smallest integer that is large enough, so a field's type would depend on its value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from warren.spark_export.values.variant import Float32, Timestamp
from warren.spark_export.values.variant_reading import read_variant

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

NAME_BYTES_MAX: Final = 255
NESTING_MAX: Final = 128
"""The deepest nesting of tables and arrays, as Warren accepts it."""

Writer = Callable[[Any], bytes]
"""Writes a value that is not None: the letter of its type and its octets."""

VOID: Final = b"V"

_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">cd")
_LONG = struct.Struct(">cq")
_TIME = struct.Struct(">cQ")
_DECIMAL = struct.Struct(">cBI")
_LONG_RANGE = range(-(1 << 63), 1 << 63)
_DECIMAL_RANGE = range(1 << 32)
"""The digits of a decimal. 4.2.5.5 calls them a signed number, but its grammar an unsigned one, as
brokers read it: so no negative decimal is written, and values that were read are written
unchanged."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FieldRefused(ValueError):
    """A value, or a name, does not fit a header table."""


def write_fields(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """The inside of a table, without its length, from names and written values.

    Raises `FieldRefused`.
    """
    parts = []
    for name, value in fields:
        encoded = name.encode()
        if len(encoded) > NAME_BYTES_MAX:
            raise FieldRefused(
                f"the name of a header has {len(encoded)} octets, of {NAME_BYTES_MAX} at most"
            )
        parts.append(bytes((len(encoded),)))
        parts.append(encoded)
        parts.append(value)
    return b"".join(parts)


# Values of known types


def writer_for(data_type: DataType) -> Writer | None:
    """The writer of values of a Spark type as they come from Arrow; None if the type cannot be
    written."""
    from pyspark.sql import types

    if isinstance(data_type, types.DecimalType):
        return _write_decimal
    if isinstance(data_type, types.ArrayType):
        item = writer_for(data_type.elementType)
        return None if item is None else _array_writer(item)
    if isinstance(data_type, types.MapType):
        value = writer_for(data_type.valueType)
        if value is None or not isinstance(data_type.keyType, types.StringType):
            return None
        return _map_writer(value)
    if isinstance(data_type, types.StructType):
        return _struct_writer(data_type)
    writers: Mapping[type[DataType], Writer] = {
        types.BooleanType: _packer("t", "?"),
        types.ByteType: _packer("b", "b"),
        types.ShortType: _packer("s", "h"),
        types.IntegerType: _packer("I", "i"),
        types.LongType: _packer("l", "q"),
        types.FloatType: _packer("f", "f"),
        types.DoubleType: _packer("d", "d"),
        types.StringType: write_text,
        types.BinaryType: write_octets,
        types.TimestampType: write_time,
        types.TimestampNTZType: write_time,
        types.DateType: _write_date,
        types.VariantType: _write_variant,
        types.NullType: lambda value: VOID,
    }
    return writers.get(type(data_type))


def fields_of(data_type: DataType) -> Writer | None:
    """Like `writer_for`, for a type whose values are tables, but writes only their inside."""
    write = writer_for(data_type)
    # Skips the letter and the length.
    return None if write is None else lambda value: write(value)[1 + _LENGTH.size :]


def _packer(letter: str, code: str) -> Writer:
    packed = struct.Struct(f">c{code}").pack
    encoded = letter.encode()
    return lambda value: packed(encoded, value)


def write_text(value: str) -> bytes:
    return _with_length(b"S", value.encode())


def write_octets(value: bytes) -> bytes:
    return _with_length(b"x", value)


def write_time(value: datetime) -> bytes:
    """Write a time in whole seconds; Spark's times without a zone are taken as UTC."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return _write_seconds((value - _EPOCH) // timedelta(seconds=1))


def _write_seconds(seconds: int) -> bytes:
    if seconds < 0:
        raise FieldRefused(f"{seconds} s: AMQP has no times before 1970")
    return _TIME.pack(b"T", seconds)


def _write_date(value: date) -> bytes:
    return write_text(value.isoformat())


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Spark has no decimals that are not numbers"
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    scale = max(-exponent, 0)
    unscaled = -unscaled if sign else unscaled
    if scale > 255 or unscaled not in _DECIMAL_RANGE:
        return _DOUBLE.pack(b"d", float(value))
    return _DECIMAL.pack(b"D", scale, unscaled)


def _array_writer(item: Writer) -> Writer:
    def write(values: list[Any]) -> bytes:
        return _with_length(b"A", b"".join(VOID if one is None else item(one) for one in values))

    return write


def _map_writer(value: Writer) -> Writer:
    def write(pairs: list[tuple[str, Any]]) -> bytes:
        fields = ((name, VOID if one is None else value(one)) for name, one in pairs)
        return _with_length(b"F", write_fields(fields))

    return write


def _struct_writer(data_type: Any) -> Writer | None:
    writers: dict[str, Writer] = {}
    for field in data_type.fields:
        writer = writer_for(field.dataType)
        if writer is None:
            return None
        writers[field.name] = writer

    def write(values: Mapping[str, Any]) -> bytes:
        fields = ((name, writers[name](one)) for name, one in values.items() if one is not None)
        return _with_length(b"F", write_fields(fields))

    return write


def _with_length(letter: bytes, octets: bytes) -> bytes:
    return letter + _LENGTH.pack(len(octets)) + octets


# Values that have their types with them


def fields_of_json(text: bytes) -> bytes:
    """The inside of the table in a JSON object. Raises `FieldRefused`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FieldRefused(f"the headers are not JSON: {error}") from error
    return _fields_of_object(value)


def fields_of_variant(value: bytes, metadata: bytes) -> bytes:
    """The inside of the table in a VARIANT. Raises `FieldRefused`."""
    return _fields_of_object(_read_variant(value, metadata))


def _fields_of_object(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise FieldRefused(f"the headers are no object with names, but {value!r:.40}")
    return write_fields((name, _write_any(one, 1)) for name, one in value.items())


def _write_variant(value: Mapping[str, bytes]) -> bytes:
    return _write_any(_read_variant(value["value"], value["metadata"]), 1)


def _read_variant(value: bytes, metadata: bytes) -> Any:
    try:
        return read_variant(value, metadata)
    except ValueError as error:
        raise FieldRefused(f"the headers cannot be read: {error}") from error


def _write_any(value: Any, depth: int) -> bytes:
    if isinstance(value, dict | list):
        if depth >= NESTING_MAX:
            raise FieldRefused(f"headers are nested deeper than {NESTING_MAX}")
        if isinstance(value, dict):
            fields = ((name, _write_any(one, depth + 1)) for name, one in value.items())
            return _with_length(b"F", write_fields(fields))
        return _with_length(b"A", b"".join(_write_any(one, depth + 1) for one in value))
    return _ANY[type(value)](value)


def _write_integer(value: int) -> bytes:
    if value not in _LONG_RANGE:
        raise FieldRefused(f"{value} does not fit in 64 bits")
    return _LONG.pack(b"l", value)


_ANY: Final[Mapping[type, Writer]] = {
    type(None): lambda value: VOID,
    bool: _packer("t", "?"),
    int: _write_integer,
    float: _packer("d", "d"),
    Float32: _packer("f", "f"),
    str: write_text,
    bytes: write_octets,
    Decimal: _write_decimal,
    date: _write_date,
    Timestamp: lambda value: _write_seconds(value.microseconds // 1_000_000),
}
