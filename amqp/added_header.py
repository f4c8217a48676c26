"""Adds one header, a number, to each of many messages: a stream sends its readers offsets this way.

A header may be added behind the others if they form a well-formed table without a header of that
name. Finding that out means reading the table, which takes most of the time. But messages that one
program sends are alike: in two content headers of one size, the octets that give lengths, types and
names are mostly the same, and only values differ. So the result of reading one content header, its
*shape*, holds for every other that has the same octets in those places; one comparison of large
integers checks that.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from warren.amqp.field_table import encode_table, list_values
from warren.amqp.properties import (
    FLAGS_AT,
    HAS_HEADERS,
    MalformedProperties,
    find_headers,
    headers,
    replace,
    sorted_by_key,
)
from warren.core.field import long

SHAPES_MAX = 64
"""Shapes that are kept, one for each size of a content header. If headers have more sizes than
that, all shapes are dropped and read again."""

SHAPE_BYTES_MAX = 4096
"""The largest content header whose shape is kept; larger ones are read each time."""

_LONG = struct.Struct(">I")
_pack_number = struct.Struct(">q").pack


class Shape(NamedTuple):
    """How to add a header to content headers that equal `pattern` in the bits that `mask` sets.

    `before`: the new octets from the flags up to the first header, which begins at offset `first`.
    `end`: the offset at which the last header ends.
    """

    mask: int
    pattern: int
    before: bytes
    first: int
    end: int


class AmqpAddedHeader:
    """`core.ports.AddedHeader` for AMQP 0-9-1 content headers."""

    __slots__ = ("_name", "_pair", "_shapes")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pair = encode_table({name: long(0)})[4:-8]
        self._shapes: dict[int, Shape] = {}

    def add(self, header: bytes, number: int) -> bytes:
        """The content header with one more header behind the others: this number.

        Raises `MalformedProperties` if the properties are incomplete. Publishing does not check
        that the headers are a table; if they are not, the number becomes the only header.
        """
        shape = self._shapes.get(len(header))
        if shape is None or int.from_bytes(header, "big") & shape.mask != shape.pattern:
            shape = self._shape_of(header)
            if shape is None:
                return self._add_to_table(header, number)
        _, _, before, first, end = shape
        return b"".join(
            (
                header[:FLAGS_AT],
                before,
                header[first:end],
                self._pair,
                _pack_number(number),
                header[end:],
            )
        )

    def _add_to_table(self, header: bytes, number: int) -> bytes:
        try:
            table = headers(header)
        except MalformedProperties:
            table = {}
        return replace(header, headers=sorted_by_key({**table, self._name: long(number)}))

    def _shape_of(self, header: bytes) -> Shape | None:
        """The shape of a content header, which is kept from now on; None if it is too large, or if
        no header can be added behind its headers."""
        size = len(header)
        if size > SHAPE_BYTES_MAX:
            return None
        try:
            table = headers(header)
        except MalformedProperties:
            return None
        if self._name in table:
            return None
        shape = self._read(header)
        if len(self._shapes) == SHAPES_MAX and size not in self._shapes:
            self._shapes.clear()
        self._shapes[size] = shape
        return shape

    def _read(self, header: bytes) -> Shape:
        start, end = find_headers(header)
        first = min(start + 4, end)
        flags = header[FLAGS_AT] | HAS_HEADERS, header[FLAGS_AT + 1]
        grown = _LONG.pack(end - first + len(self._pair) + 8)
        before = bytes(flags) + header[FLAGS_AT + 2 : start] + grown
        mask = bytearray(len(header))
        mask[FLAGS_AT:end] = b"\xff" * (end - FLAGS_AT)
        for value_start, value_end in list_values(header, first, end):
            mask[value_start:value_end] = bytes(value_end - value_start)
        bits = int.from_bytes(mask, "big")
        return Shape(bits, int.from_bytes(header, "big") & bits, before, first, end)
