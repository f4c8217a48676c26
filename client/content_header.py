"""Edits of content headers as octets: everything that is not edited stays as it was received.

    class id u16 = 60 | weight u16 | body size u64 | flags u16 | property octets

The flags say which properties follow, in the order of `PROPERTIES`, the highest bit first. The two
lowest bits stand for no property: they are ignored, and dropped by an edit. The table of headers is
a u32 length and pairs of a short string and a value; a value is the letter of its type and octets.
An edit of one header copies the octets of all others, so their types stay.

Every fault of a header is a `MalformedContent`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from warren.client.frames import read_short_string, short_string

Wire: TypeAlias = Literal["shortstr", "octet", "table", "timestamp"]

PROPERTIES: Final[Mapping[str, Wire]] = {
    "content_type": "shortstr",
    "content_encoding": "shortstr",
    "headers": "table",
    "delivery_mode": "octet",
    "priority": "octet",
    "correlation_id": "shortstr",
    "reply_to": "shortstr",
    "expiration": "shortstr",
    "message_id": "shortstr",
    "timestamp": "timestamp",
    "type": "shortstr",
    "user_id": "shortstr",
    "app_id": "shortstr",
    "cluster_id": "shortstr",
}
"""The types of the properties, in the order of their flags, from bit 15 down."""

_FLAGS_AT = 12
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_LONGLONG = struct.Struct(">Q")
_SIGNED = struct.Struct(">q")

# The number of octets in values of fixed size, by the letter of their type.
_FIXED = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLTd", 8),
    ord("D"): 5,
    ord("V"): 0,
}
_SIZED = frozenset(b"SxFA")


class MalformedContent(ValueError):
    """The octets are not a content header, or its headers are not a table."""


class Fields(NamedTuple):
    """The headers of a message: each value is the letter of its type and its octets."""

    pairs: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """The value of this header; the last one if several have the name."""
        found = None
        for one, value in self.pairs:
            if one == name:
                found = value
        return found

    def with_field(self, name: bytes, value: bytes | None) -> Fields:
        """These fields with the value at the end, and without former fields of the name; None only
        removes them."""
        kept = tuple(pair for pair in self.pairs if pair[0] != name)
        return Fields(kept if value is None else (*kept, (name, value)))


def header_fields(header: bytes) -> Fields:
    """The headers of a message; empty when it has none. Raises `MalformedContent`."""
    table = _spans(header).get("headers")
    if table is None:
        return Fields(())
    return _fields(table)


def with_properties(header: bytes, changed: Mapping[str, bytes | None]) -> bytes:
    """The content header with these properties replaced, given as octets; None removes a property.

    Raises `MalformedContent`.
    """
    merged = {**_spans(header), **changed}
    found = {name: octets for name, octets in merged.items() if octets is not None}
    flags = 0
    for bit, name in enumerate(PROPERTIES):
        if name in found:
            flags |= 0x8000 >> bit
    octets = b"".join(found[name] for name in PROPERTIES if name in found)
    return header[:_FLAGS_AT] + _SHORT.pack(flags) + octets


def property_octets(name: str, value: str | int) -> bytes:
    """The octets of a property in a content header. Raises ValueError if the value does not fit."""
    wire = PROPERTIES[name]
    try:
        if wire == "shortstr":
            return short_string(str(value).encode())
        return (_LONGLONG.pack if wire == "timestamp" else _octet)(int(value))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{name} {value!r} does not fit its {wire}") from error


def _octet(value: int) -> bytes:
    return value.to_bytes(1)


def table_octets(fields: Fields) -> bytes:
    """The table of headers, with its length."""
    pairs = b"".join(short_string(name) + value for name, value in fields.pairs)
    return _LONG.pack(len(pairs)) + pairs


# Values of headers


def longstr_value(text: str) -> bytes:
    octets = text.encode("utf-8", "surrogateescape")
    return b"S" + _LONG.pack(len(octets)) + octets


def long_value(number: int) -> bytes:
    return b"l" + _SIGNED.pack(number)


def table_value(fields: Sequence[tuple[str, bytes]]) -> bytes:
    named = Fields(tuple((name.encode(), value) for name, value in fields))
    return b"F" + table_octets(named)


def array_value(items: bytes) -> bytes:
    """An array with these values, given as octets one after the other."""
    return b"A" + _LONG.pack(len(items)) + items


def array_items(value: bytes) -> bytes | None:
    """The values in an array, one after the other; None for another type."""
    return value[5:] if value[:1] == b"A" else None


def array_values(items: bytes) -> list[bytes]:
    """The values that are one after the other in these octets. Raises `MalformedContent`."""
    values, at = [], 0
    try:
        while at < len(items):
            stop = _value_end(items, at)
            if stop > len(items):
                raise MalformedContent("a value runs past the end of its array")
            values.append(items[at:stop])
            at = stop
    except struct.error as error:
        raise MalformedContent(f"an array that ends too early: {error}") from error
    return values


def longstr_octets(value: bytes) -> bytes | None:
    """The octets of a string value; None for another type."""
    return value[5:] if value[:1] == b"S" else None


def long_number(value: bytes) -> int | None:
    """The number of a signed value of 64 bits; None for another type."""
    if value[:1] != b"l":
        return None
    number: int = _SIGNED.unpack_from(value, 1)[0]
    return number


def table_fields(value: bytes) -> Fields | None:
    """The fields of a table value; None for another type. Raises `MalformedContent`."""
    return _fields(value[1:]) if value[:1] == b"F" else None


# Reading


def _fields(table: bytes) -> Fields:
    try:
        return Fields(tuple(_pairs(table, 4, len(table))))
    except (IndexError, struct.error) as error:
        raise MalformedContent(f"headers that are no table: {error}") from error


def _spans(header: bytes) -> dict[str, bytes]:
    """The octets of the properties that the header has, by name."""
    try:
        (flags,) = _SHORT.unpack_from(header, _FLAGS_AT)
        at = _FLAGS_AT + 2
        spans = {}
        for bit, (name, wire) in enumerate(PROPERTIES.items()):
            if flags & 0x8000 >> bit:
                stop = _end(header, at, wire)
                if stop > len(header):
                    raise MalformedContent(f"the property {name} runs past the end")
                spans[name] = header[at:stop]
                at = stop
    except (IndexError, struct.error) as error:
        raise MalformedContent(f"a content header that ends too early: {error}") from error
    return spans


def _end(header: bytes, at: int, wire: Wire) -> int:
    if wire == "shortstr":
        return at + 1 + header[at]
    if wire == "table":
        size: int = _LONG.unpack_from(header, at)[0]
        return at + 4 + size
    return at + (8 if wire == "timestamp" else 1)


def _pairs(table: bytes, at: int, end: int) -> list[tuple[bytes, bytes]]:
    pairs = []
    while at < end:
        name, at = read_short_string(table, at)
        stop = _value_end(table, at)
        if stop > end:
            raise MalformedContent(f"the header {name!r} runs past the end of its table")
        pairs.append((name, table[at:stop]))
        at = stop
    return pairs


def _value_end(table: bytes, at: int) -> int:
    letter = table[at]
    if letter in _SIZED:
        size: int = _LONG.unpack_from(table, at + 1)[0]
        return at + 5 + size
    fixed = _FIXED.get(letter)
    if fixed is None:
        raise MalformedContent(f"unknown field type 0x{letter:02X}")
    return at + 1 + fixed
