"""AMQP field tables with the exact type of each value, which client libraries do not show.

A plain Python value is written with its usual type; `Typed("s", 5)` names the type octet. Tables
are read as plain values or, where a test is about the types, with every value wrapped in `Typed`.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

Table = Mapping[str, Any]


class Typed(NamedTuple):
    """A value together with its type octet: `Typed("s", 5)` is a signed 16 bit five."""

    code: str
    value: Any


# Type octets with a fixed layout. RabbitMQ reads both `l` and `L` as signed 64 bit.
FIXED: dict[str, struct.Struct] = {
    "t": struct.Struct(">?"),
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
    "T": struct.Struct(">Q"),
}


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def as_text(data: bytes) -> str | bytes:
    """Text where the bytes are UTF-8, the bytes themselves where they are not."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def encode_shortstr(text: str | bytes) -> bytes:
    data = as_bytes(text)
    if len(data) > 255:
        raise ValueError(f"a short string has at most 255 bytes, got {len(data)}")
    return bytes([len(data)]) + data


def encode_longstr(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def encode_table(table: Table) -> bytes:
    """The table with its length prefix, in the order of its keys."""
    return encode_longstr(encode_pairs(table))


def encode_pairs(table: Table) -> bytes:
    """The table without its length prefix, as AMQPLAIN has it."""
    return b"".join(encode_shortstr(key) + encode_value(value) for key, value in table.items())


def encode_value(value: Any) -> bytes:
    code, plain = value if isinstance(value, Typed) else (type_of(value), value)
    octet = code.encode()
    if code in FIXED:
        return octet + FIXED[code].pack(plain)
    if code == "V":
        return octet
    if code in ("S", "x"):
        return octet + encode_longstr(as_bytes(plain))
    if code == "F":
        return octet + encode_table(plain)
    if code == "A":
        return octet + encode_longstr(b"".join(encode_value(item) for item in plain))
    if code == "D":
        scale, unscaled = plain
        return octet + struct.pack(">BI", scale, unscaled)
    raise ValueError(f"no field type {code!r}")


def type_of(value: Any) -> str:
    """The type octet a plain Python value is written with."""
    if value is None:
        return "V"
    if isinstance(value, bool):
        return "t"
    if isinstance(value, int):
        return "I" if -(2**31) <= value < 2**31 else "l"
    if isinstance(value, float):
        return "d"
    if isinstance(value, (str, bytes)):
        return "S"
    if isinstance(value, Mapping):
        return "F"
    if isinstance(value, (list, tuple)):
        return "A"
    raise TypeError(f"no field type for {value!r}")


class Reader:
    """Reads AMQP primitives from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def rest(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        if size > self.rest:
            raise ValueError(f"wanted {size} bytes, only {self.rest} are left of {self.data!r}")
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def number(self, layout: str) -> Any:
        """One number in the given struct layout, for example `">H"`."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def shortstr(self) -> str | bytes:
        return as_text(self.take(self.number(">B")))

    def longstr(self) -> bytes:
        return self.take(self.number(">I"))

    def table(self, typed: bool = False) -> dict[str, Any]:
        inner = Reader(self.longstr())
        table: dict[str, Any] = {}
        while inner.rest:
            key = inner.take(inner.number(">B")).decode()
            table[key] = inner.value(typed)
        return table

    def value(self, typed: bool = False) -> Any:
        code = chr(self.number(">B"))
        plain = self._plain_value(code, typed)
        return Typed(code, plain) if typed else plain

    def _plain_value(self, code: str, typed: bool) -> Any:
        if code in FIXED:
            return FIXED[code].unpack(self.take(FIXED[code].size))[0]
        if code == "V":
            return None
        if code == "S":
            return as_text(self.longstr())
        if code == "x":
            return self.longstr()
        if code == "F":
            return self.table(typed)
        if code == "A":
            inner = Reader(self.longstr())
            items: list[Any] = []
            while inner.rest:
                items.append(inner.value(typed))
            return items
        if code == "D":
            return (self.number(">B"), self.number(">I"))
        raise ValueError(f"no field type {code!r}")
