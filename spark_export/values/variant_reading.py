"""Reads values from the binary encoding of a VARIANT.

`variant` describes the encoding, and writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from warren.spark_export.values.variant import Float32, Timestamp

NESTING_MAX: Final = 128

_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_INT32 = struct.Struct("<I")
_EPOCH = date(1970, 1, 1)


def read_variant(value: bytes, metadata: bytes) -> Any:
    """The value in a VARIANT. Raises ValueError.

    It is None, bool, int, float, `Float32`, `Decimal`, str, bytes, date, `Timestamp`, list or dict.
    """
    try:
        return _node(value, 0, _names(metadata), 1)
    except (IndexError, struct.error) as error:
        raise ValueError("a variant ends too early") from error
    except OverflowError as error:
        raise ValueError(f"a variant has a date beyond all calendars: {error}") from error


def _names(metadata: bytes) -> list[str]:
    if metadata[0] & 0x0F != 1:
        raise ValueError(f"a variant of version {metadata[0] & 0x0F}")
    size = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, size)
    first = 1 + size
    offsets = [_number(metadata, first + at * size, size) for at in range(count + 1)]
    start = first + (count + 1) * size
    return [metadata[start + one : start + end].decode() for one, end in pairwise(offsets)]


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at : at + size], "little")


def _octets(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError(at)
    return data[at : at + size]


def _node(value: bytes, at: int, names: list[str], depth: int) -> Any:
    basic, more = value[at] & 3, value[at] >> 2
    at += 1
    if basic == _SHORT_STRING:
        return _octets(value, at, more).decode()
    if basic == _PRIMITIVE:
        read = _READERS.get(more)
        if read is None:
            raise ValueError(f"a variant has a value of the unknown type {more}")
        return read(value, at)
    if depth >= NESTING_MAX:
        raise ValueError(f"a variant is nested deeper than {NESTING_MAX}")
    offset_size = (more & 3) + 1
    id_size = (more >> 2 & 3) + 1 if basic == _OBJECT else 0
    large = more >> (4 if basic == _OBJECT else 2) & 1
    count_size = 4 if large else 1
    count = _number(value, at, count_size)
    ids_at = at + count_size
    offsets_at = ids_at + count * id_size
    first = offsets_at + (count + 1) * offset_size
    items = [
        _node(
            value,
            first + _number(value, offsets_at + number * offset_size, offset_size),
            names,
            depth + 1,
        )
        for number in range(count)
    ]
    if basic == _ARRAY:
        return items
    ids = (_number(value, ids_at + number * id_size, id_size) for number in range(count))
    return dict(zip((names[one] for one in ids), items, strict=True))


def _fixed(code: str, make: Callable[[Any], Any]) -> Callable[[bytes, int], Any]:
    unpack_from = struct.Struct(f"<{code}").unpack_from
    return lambda value, at: make(unpack_from(value, at)[0])


def _decimal(size: int) -> Callable[[bytes, int], Decimal]:
    def read(value: bytes, at: int) -> Decimal:
        unscaled = int.from_bytes(_octets(value, at + 1, size), "little", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        # Made from its parts: arithmetic would round it to the digits of the context.
        return Decimal((int(unscaled < 0), digits, -value[at]))

    return read


def _binary(value: bytes, at: int) -> bytes:
    return _octets(value, at + 4, _INT32.unpack_from(value, at)[0])


_READERS: Final[Mapping[int, Callable[[bytes, int], Any]]] = {
    0: lambda value, at: None,
    1: lambda value, at: True,
    2: lambda value, at: False,
    3: _fixed("b", int),
    4: _fixed("h", int),
    5: _fixed("i", int),
    6: _fixed("q", int),
    7: _fixed("d", float),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: _fixed("i", lambda days: _EPOCH + timedelta(days=days)),
    12: _fixed("q", Timestamp),
    13: _fixed("q", Timestamp),
    14: _fixed("f", Float32),
    15: _binary,
    16: lambda value, at: _binary(value, at).decode(),
    18: _fixed("q", lambda nanoseconds: Timestamp(nanoseconds // 1000)),
    19: _fixed("q", lambda nanoseconds: Timestamp(nanoseconds // 1000)),
    20: lambda value, at: str(UUID(bytes=_octets(value, at, 16))),
}
"""The readers by the number of the type. Type 17, a time of day, cannot be in a header."""
