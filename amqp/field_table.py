"""Field tables as bytes: decoded values are encoded again with the same wire types.

A table is a 32-bit length and that many bytes of pairs; a pair is a short string name, the letter
of a type and the value. The types are those of amqp_semantics.md section 0, which are RabbitMQ's
and not the letters of AMQP 4.2.1. Two things are changed, as RabbitMQ changes them: `L` is read as
`l`, since both are a signed 64-bit integer and `L` is never sent, and a boolean is sent as 0 or 1.
Of two pairs with one name the later counts.

Every fault, in either direction, is a `TableError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator
from typing import Any

from warren.core.field import Field, Table, to_octets, to_text

NESTING_MAX = 128
"""The deepest nesting of tables and arrays. Each level costs two frames of Python's stack, of 1000;
RabbitMQ has no limit, and no client is known to come near this one."""

WRAPPED_MAX = 8
"""Levels that the broker may wrap around a given table, as the firehose does with properties."""

NAME_BYTES_MAX = 255

RUN_MAX = 64
"""Items of an array that are decoded together, if they have one type of fixed size."""


class TableError(ValueError):
    """The bytes are not a field table, or the table cannot be written as one."""


def decode_table(data: bytes, offset: int) -> tuple[Table, int]:
    """The table whose length prefix starts at `offset`, and the offset after it."""
    start, end = _span(data, offset, len(data))
    return _decode_pairs(data, start, end, 1), end


def decode_named(data: bytes, offset: int, names: Container[bytes]) -> Table:
    """The pairs with these names, of the table whose length prefix starts at `offset`."""
    at, end = _span(data, offset, len(data))
    table: Table = {}
    while at < end:
        name_end = at + 1 + data[at]
        if name_end >= end:
            raise _no_type(at, end)
        name = data[at + 1 : name_end]
        letter = data[name_end]
        if letter == _LONGSTR:
            start = name_end + 5
            at = start + int.from_bytes(data[name_end + 1 : start], "big")
            if name in names:
                table[to_text(name)] = _new(Field, ("S", data[start:at]))
        elif name in names:
            table[to_text(name)], at = _decode_value(data, name_end, end, 1)
        elif letter in _FIXED_BYTES:
            at = name_end + 1 + _FIXED_BYTES[letter]
        else:
            _, at = _decode_value(data, name_end, end, 1)
        if at > end:
            raise TableError(f"the value at byte {name_end} runs past the end at byte {end}")
    return table


def plain_pairs(
    data: bytes, offset: int, arrays: Container[bytes] = ()
) -> dict[bytes, bytes] | None:
    """Cut a table into its pairs: their octets, by their names. Its length prefix is at `offset`.

    None if the table would not be the same octets once it is decoded and encoded again, or if that
    is not certain: with tables, arrays and fractions in it, and where it is malformed. Values with
    the names `arrays` may be arrays; what is in these is not looked at.
    """
    at, end = _span(data, offset, len(data))
    pairs: dict[bytes, bytes] = {}
    while at < end:
        start, name_end = at, at + 1 + data[at]
        if name_end >= end:
            return None
        letter, name = data[name_end], data[start + 1 : name_end]
        if letter == _LONGSTR or letter == _BINARY or (letter == _ARRAY and name in arrays):
            value = name_end + 5
            at = value + int.from_bytes(data[name_end + 1 : value], "big")
        elif letter in _PLAIN_BYTES:
            at = name_end + 1 + _PLAIN_BYTES[letter]
        elif letter == _BOOLEAN and data[name_end + 1 : name_end + 2] in (b"\0", b"\1"):
            at = name_end + 2
        else:
            return None
        if at > end:
            return None
        pairs[name] = data[start:at]
    return pairs


def items_of_kind(data: bytes, start: int, end: int, letter: int) -> list[bytes] | None:
    """The items of an array between two offsets, as octets with their letter; None unless all are
    well-formed values of this type, which is one with a length."""
    items: list[bytes] = []
    while start < end:
        value = start + 5
        stop = value + int.from_bytes(data[start + 1 : value], "big")
        if data[start] != letter or stop > end:
            return None
        items.append(data[start:stop])
        start = stop
    return items


def encoded_pairs(table: Table) -> dict[bytes, bytes]:
    """The pairs of a table as octets, by their names."""
    return {to_octets(name): encode_table({name: field})[4:] for name, field in table.items()}


def decode_fields(data: bytes) -> Table:
    """The table whose pairs fill `data`: no length prefix, as an AMQPLAIN response has it."""
    return _decode_pairs(data, 0, len(data), 1)


def encode_table(table: Table) -> bytes:
    """The table as bytes with its length prefix, its fields in their order."""
    out = bytearray()
    try:
        _write_table(out, table, 1)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"a value does not fit its type: {error}") from error
    return bytes(out)


def list_values(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The start and end of each value in the pairs between two offsets, which must be well-formed.

    Any octets may stand in such a span without moving the end of anything. Values of rare types
    (tables, arrays, decimals, void) are left out.
    """
    offset = start
    while offset < end:
        letter_at = offset + 1 + data[offset]
        letter, value = data[letter_at], letter_at + 1
        if letter in _FIXED:
            offset = value + _FIXED[letter][1].size
            yield value, offset
        elif letter == _LONGSTR or letter == _BINARY:
            value, offset = _span(data, value, end)
            yield value, offset
        else:
            _, offset = _decode_value(data, letter_at, end, 1)


_UINT32 = struct.Struct(">I")
_DECIMAL = struct.Struct(">BI")

# The types of fixed size: letter on the wire, letter of the `Field`, format.
_FIXED: dict[int, tuple[str, struct.Struct]] = {
    ord(letter): (kind, struct.Struct(code))
    for letter, kind, code in (
        ("I", "I", ">i"),
        ("i", "i", ">I"),
        ("b", "b", ">b"),
        ("B", "B", ">B"),
        ("s", "s", ">h"),
        ("u", "u", ">H"),
        ("l", "l", ">q"),
        ("L", "l", ">q"),
        ("T", "T", ">Q"),
        ("f", "f", ">f"),
        ("d", "d", ">d"),
        ("t", "t", ">?"),
    )
}
_FIXED_BYTES = {letter: code.size for letter, (_, code) in _FIXED.items()}
_BOOLEAN = ord("t")
# The sizes of those types of `_FIXED` whose values are the same octets when they are encoded again.
_PLAIN_BYTES = {ord(letter): _FIXED_BYTES[ord(letter)] for letter in "IibBsulT"}
_IN_ARRAY = {letter: struct.Struct(f">x{code.format[1:]}") for letter, (_, code) in _FIXED.items()}
"""The types of `_FIXED` with a pad octet in front, which skips the letter of an array's item."""

# Makes a field in half the time that calling its class takes.
_new = tuple.__new__

_LONGSTR = ord("S")
_BINARY = ord("x")
_TABLE = ord("F")
_ARRAY = ord("A")
_DECIMAL_LETTER = ord("D")
_VOID = ord("V")
_NOTHING = Field("V", None)


def _span(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """The start and end of the contents behind the 32-bit length at `offset`."""
    start = offset + 4
    if start > end:
        raise TableError(f"a length at byte {offset} runs past the end at byte {end}")
    (length,) = _UINT32.unpack_from(data, offset)
    stop: int = start + length
    if stop > end:
        raise _past_the_end(start, stop, end)
    return start, stop


def _no_type(offset: int, end: int) -> TableError:
    return TableError(f"a name at byte {offset} leaves no type before the end at byte {end}")


def _past_the_end(start: int, stop: int, end: int) -> TableError:
    return TableError(f"{stop - start} bytes at byte {start} run past the end at byte {end}")


def _decode_pairs(data: bytes, offset: int, end: int, depth: int) -> Table:
    table: Table = {}
    while offset < end:
        name_start = offset + 1
        name_end = name_start + data[offset]
        if name_end >= end:
            raise _no_type(offset, end)
        name = data[name_start:name_end].decode("utf-8", "surrogateescape")
        start = name_end + 5
        if data[name_end] == _LONGSTR and start <= end:
            # Most values are strings.
            offset = start + int.from_bytes(data[name_end + 1 : start], "big")
            if offset > end:
                raise _past_the_end(start, offset, end)
            table[name] = _new(Field, ("S", data[start:offset]))
        else:
            table[name], offset = _decode_value(data, name_end, end, depth)
    return table


def _decode_value(data: bytes, offset: int, end: int, depth: int) -> tuple[Field, int]:
    """The value whose type letter is at `offset`, which is before `end`."""
    letter = data[offset]
    offset += 1
    if letter == _LONGSTR:
        start, stop = _span(data, offset, end)
        return Field("S", data[start:stop]), stop
    fixed = _FIXED.get(letter)
    if fixed is not None:
        kind, code = fixed
        stop = offset + code.size
        _check_fits(kind, offset, stop, end)
        return _new(Field, (kind, code.unpack_from(data, offset)[0])), stop
    if letter == _TABLE:
        start, stop = _span(data, offset, end)
        _check_depth(depth)
        return Field("F", _decode_pairs(data, start, stop, depth + 1)), stop
    if letter == _ARRAY:
        start, stop = _span(data, offset, end)
        _check_depth(depth)
        return Field("A", _decode_items(data, start, stop, depth + 1)), stop
    if letter == _BINARY:
        start, stop = _span(data, offset, end)
        return Field("x", data[start:stop]), stop
    if letter == _VOID:
        return _NOTHING, offset
    if letter == _DECIMAL_LETTER:
        stop = offset + _DECIMAL.size
        _check_fits("D", offset, stop, end)
        return Field("D", _DECIMAL.unpack_from(data, offset)), stop
    raise TableError(f"unknown field type 0x{letter:02X} at byte {offset - 1}")


def _decode_items(data: bytes, offset: int, end: int, depth: int) -> list[Field]:
    items: list[Field] = []
    while offset < end:
        letter = data[offset]
        if letter in _FIXED:
            # An array may have very many items, mostly of one type.
            kind, code = _FIXED[letter]
            step = code.size + 1
            letters = data[offset : min(end, offset + RUN_MAX * step) : step]
            stop = offset + step * (len(letters) - len(letters.lstrip(letters[:1])))
            _check_fits(kind, stop - code.size, stop, end)
            run = _IN_ARRAY[letter].iter_unpack(data[offset:stop])
            items += [_new(Field, (kind, value)) for (value,) in run]
            offset = stop
        elif letter == _VOID:
            items.append(_NOTHING)
            offset += 1
        else:
            item, offset = _decode_value(data, offset, end, depth)
            items.append(item)
    return items


def _check_fits(kind: str, offset: int, stop: int, end: int) -> None:
    if stop > end:
        raise TableError(f"a value of type {kind} at byte {offset} runs past the end at byte {end}")


def _check_depth(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise TableError(f"tables and arrays are nested deeper than {NESTING_MAX}")


def _write_table(out: bytearray, table: Table, depth: int) -> None:
    length_at = len(out)
    out += b"\0\0\0\0"
    for name, field in table.items():
        encoded = name.encode("utf-8", "surrogateescape")
        if len(encoded) > NAME_BYTES_MAX:
            raise TableError(f"a name has {len(encoded)} bytes, of {NAME_BYTES_MAX} at most")
        out.append(len(encoded))
        out += encoded
        _write_value(out, field, depth)
    _UINT32.pack_into(out, length_at, len(out) - length_at - 4)


def _write_array(out: bytearray, items: list[Field], depth: int) -> None:
    length_at = len(out)
    out += b"\0\0\0\0"
    for item in items:
        _write_value(out, item, depth)
    _UINT32.pack_into(out, length_at, len(out) - length_at - 4)


def _write_value(out: bytearray, field: Field, depth: int) -> None:
    kind, value = field
    write = _WRITERS.get(kind)
    if write is None:
        raise TableError(f"unknown field type {kind!r}")
    out += b"l" if kind == "L" else kind.encode("ascii")
    write(out, value, depth)


def _write_bytes(out: bytearray, value: bytes, depth: int) -> None:
    out += _UINT32.pack(len(value))
    out += value


def _write_nested_table(out: bytearray, value: Table, depth: int) -> None:
    _check_depth(depth - WRAPPED_MAX)
    _write_table(out, value, depth + 1)


def _write_nested_array(out: bytearray, value: list[Field], depth: int) -> None:
    _check_depth(depth - WRAPPED_MAX)
    _write_array(out, value, depth + 1)


def _write_decimal(out: bytearray, value: tuple[int, int], depth: int) -> None:
    out += _DECIMAL.pack(*value)


def _write_void(out: bytearray, value: None, depth: int) -> None:
    pass


def _fixed_writer(code: struct.Struct) -> Callable[[bytearray, Any, int], None]:
    def write(out: bytearray, value: Any, depth: int) -> None:
        out += code.pack(value)

    return write


_WRITERS: dict[str, Callable[[bytearray, Any, int], None]] = {
    "S": _write_bytes,
    "x": _write_bytes,
    "F": _write_nested_table,
    "A": _write_nested_array,
    "D": _write_decimal,
    "V": _write_void,
    **{chr(letter): _fixed_writer(code) for letter, (_, code) in _FIXED.items()},
}
