"""Values in Parquet's binary encoding of a VARIANT, which Spark uses in memory, too.

A VARIANT is two strings of octets: the metadata has the names of all fields, sorted; the value is a
tree in which each node begins with a byte. Its lowest two bits are the kind of the node, the upper
six depend on that:

    0  primitive     type in the upper six bits, then its octets, little-endian
    1  short string  length in the upper six bits
    2  object        number of fields, ids of their names, offsets, values; in order of the names
    3  array         number of items, offsets, values

Numbers of fields, ids and offsets have as few octets as they need.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DECIMAL_DIGITS_MAX = 38

TIMESTAMP_END_S = 253_402_300_800
"""The year 10000, for which neither SQL nor Python has a date."""

VERSION = 1
_SORTED = 1 << 4

_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE = 0, 1, 2
_INT8, _INT16, _INT32, _INT64, _DOUBLE = 3, 4, 5, 6, 7
_DECIMAL4, _DECIMAL8, _DECIMAL16 = 8, 9, 10
_TIMESTAMP, _FLOAT, _BINARY, _STRING = 12, 14, 15, 16

_SHORT_STRING_MAX = 63
_DECIMALS = ((_DECIMAL4, 4, 9), (_DECIMAL8, 8, 18), (_DECIMAL16, 16, DECIMAL_DIGITS_MAX))
"""Type, octets, and the number of digits that fit."""
_SMALL_COUNT_MAX = 255


class Float32(float):
    """A floating-point number of four octets."""


class Timestamp(NamedTuple):
    """A time in UTC."""

    microseconds: int


class Decimal(NamedTuple):
    """The number `unscaled` / 10 ** `scale`; in AMQP it is not negative."""

    unscaled: int
    scale: int

    def __str__(self) -> str:
        if not self.scale:
            return str(self.unscaled)
        sign = "-" if self.unscaled < 0 else ""
        digits = str(abs(self.unscaled)).rjust(self.scale + 1, "0")
        return f"{sign}{digits[: -self.scale]}.{digits[-self.scale :]}"


def encode_variant(value: Any) -> tuple[bytes, bytes]:
    """Value and metadata of None, bool, int, float, str, bytes, the types above, dict and list."""
    names: set[str] = set()
    _collect(value, names)
    # Names are sorted by their octets, and so are the fields of each object.
    ordered = sorted(names, key=_utf8)
    ids = {name: at for at, name in enumerate(ordered)}
    return _encode(value, ids), _metadata(ordered)


def parse_json(text: bytes) -> tuple[bytes, bytes]:
    """The variant of a JSON text: numbers of up to 38 digits keep them all, fractions as decimals.

    Raises ValueError if the text is not JSON, RecursionError if it is nested too deeply.
    """
    return encode_variant(
        json.loads(text, parse_float=_number, parse_int=int, parse_constant=_no_number)
    )


def _number(text: str) -> Decimal | float:
    if "e" not in text and "E" not in text:
        whole, _, fraction = text.partition(".")
        digits = (whole + fraction).lstrip("-0")
        if len(digits) <= DECIMAL_DIGITS_MAX and len(fraction) <= DECIMAL_DIGITS_MAX:
            return Decimal(int(whole + fraction), len(fraction))
    return float(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _utf8(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which JSON can express, is replaced."""
    return text.encode("utf-8", "replace")


def _collect(value: Any, names: set[str]) -> None:
    if isinstance(value, dict):
        names.update(value)
        for item in value.values():
            _collect(item, names)
    elif isinstance(value, list):
        for item in value:
            _collect(item, names)


def _metadata(names: list[str]) -> bytes:
    encoded = [_utf8(name) for name in names]
    size = _octets_for(max(sum(map(len, encoded)), len(encoded)))
    out = bytearray((VERSION | _SORTED | size - 1 << 6,))
    out += len(encoded).to_bytes(size, "little")
    _append_offsets(out, encoded, size)
    return bytes(out)


def _octets_for(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _append_offsets(out: bytearray, parts: list[bytes], size: int) -> None:
    """Append the offset of each part, the end of the last one, and the parts."""
    at = 0
    for part in parts:
        out += at.to_bytes(size, "little")
        at += len(part)
    out += at.to_bytes(size, "little")
    out += b"".join(parts)


def _encode(value: Any, ids: Mapping[str, int]) -> bytes:
    return _ENCODERS[type(value)](value, ids)


def _primitive(kind: int) -> int:
    return kind << 2 | _PRIMITIVE


def _none(value: None, ids: Mapping[str, int]) -> bytes:
    return bytes((_primitive(_NULL),))


def _boolean(value: bool, ids: Mapping[str, int]) -> bytes:
    return bytes((_primitive(_TRUE if value else _FALSE),))


def _integer(value: int, ids: Mapping[str, int]) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length() + 1
    for kind, size in ((_INT8, 1), (_INT16, 2), (_INT32, 4), (_INT64, 8)):
        if bits <= 8 * size:
            return bytes((_primitive(kind),)) + value.to_bytes(size, "little", signed=True)
    if abs(value) < 10**DECIMAL_DIGITS_MAX:
        return _decimal(Decimal(value, 0), ids)
    try:
        return _double(float(value), ids)
    except OverflowError:
        return _string(str(value), ids)


def _double(value: float, ids: Mapping[str, int]) -> bytes:
    return struct.pack("<Bd", _primitive(_DOUBLE), value)


def _float(value: Float32, ids: Mapping[str, int]) -> bytes:
    return struct.pack("<Bf", _primitive(_FLOAT), value)


def _decimal(value: Decimal, ids: Mapping[str, int]) -> bytes:
    digits = max(len(str(abs(value.unscaled))), value.scale)
    kind, size = next((kind, size) for kind, size, most in _DECIMALS if digits <= most)
    octets = value.unscaled.to_bytes(size, "little", signed=True)
    return bytes((_primitive(kind), value.scale)) + octets


def _timestamp(value: Timestamp, ids: Mapping[str, int]) -> bytes:
    return struct.pack("<Bq", _primitive(_TIMESTAMP), value.microseconds)


def _string(value: str, ids: Mapping[str, int]) -> bytes:
    octets = _utf8(value)
    if len(octets) <= _SHORT_STRING_MAX:
        return bytes((len(octets) << 2 | _SHORT_STRING,)) + octets
    return struct.pack("<BI", _primitive(_STRING), len(octets)) + octets


def _binary(value: bytes, ids: Mapping[str, int]) -> bytes:
    return struct.pack("<BI", _primitive(_BINARY), len(value)) + value


def _object(value: dict[str, Any], ids: Mapping[str, int]) -> bytes:
    fields = sorted((ids[name], item) for name, item in value.items())
    parts = [_encode(item, ids) for _, item in fields]
    id_size = _octets_for(max((number for number, _ in fields), default=0))
    offset_size = _octets_for(sum(map(len, parts)))
    large = len(fields) > _SMALL_COUNT_MAX
    out = bytearray(((large << 4 | id_size - 1 << 2 | offset_size - 1) << 2 | _OBJECT,))
    out += len(fields).to_bytes(4 if large else 1, "little")
    for number, _ in fields:
        out += number.to_bytes(id_size, "little")
    _append_offsets(out, parts, offset_size)
    return bytes(out)


def _array(value: list[Any], ids: Mapping[str, int]) -> bytes:
    parts = [_encode(item, ids) for item in value]
    offset_size = _octets_for(sum(map(len, parts)))
    large = len(parts) > _SMALL_COUNT_MAX
    out = bytearray(((large << 2 | offset_size - 1) << 2 | _ARRAY,))
    out += len(parts).to_bytes(4 if large else 1, "little")
    _append_offsets(out, parts, offset_size)
    return bytes(out)


_ENCODERS: Mapping[type, Callable[[Any, Mapping[str, int]], bytes]] = {
    type(None): _none,
    bool: _boolean,
    int: _integer,
    float: _double,
    Float32: _float,
    Decimal: _decimal,
    Timestamp: _timestamp,
    str: _string,
    bytes: _binary,
    dict: _object,
    list: _array,
}
