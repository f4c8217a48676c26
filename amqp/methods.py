"""AMQP methods as payloads of method frames: pamqp describes them, this module encodes them.

pamqp 4 names the methods, their arguments and the wire type of each (`__slots__` and the class
attributes `_name`); the rest of Warren passes instances of its classes around. Its own marshalling
is not used: it refuses names that RabbitMQ takes (a narrow pattern, 127 characters), requires
ticket 0, loses the types of table fields and lacks access.request (amqp_semantics.md section 0). So
instances are made here without `__init__` and `validate`.

Values: short strings are `str` (octets that are not UTF-8 are refused, as by RabbitMQ), long
strings `bytes`, tables `core.field.Table`, bits `bool`, all others `int`. The encoder also takes
`str` for a long string and `bytes` for a short one.

The methods sent per message do not pass through here. `publish_stream.py` and `publishing.py`
read basic.publish and `ack_stream.py` basic.ack, `consumer.py` writes basic.deliver and
`confirms.py` basic.ack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from pamqp import base, commands

from warren.amqp.field_table import TableError, decode_table, encode_table
from warren.core.field import to_octets

Method: TypeAlias = base.Frame
M = TypeVar("M", bound=base.Frame)


class UnknownMethod(ValueError):
    """No method has this class id and method id."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"no method has class {class_id} and method {method_id}")
        self.class_id = class_id
        self.method_id = method_id


class MalformedMethod(ValueError):
    """The payload is shorter or longer than its arguments, or a table in it is not a table."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"cannot decode a method payload of {len(payload)} bytes")
        self.payload = payload


class MalformedText(MalformedMethod):
    """A short string is not UTF-8; RabbitMQ refuses such strings in methods, too."""


class AccessRequest(base.Frame):
    """access.request of AMQP 0-8, which old clients still send and RabbitMQ answers."""

    # The order is that on the wire.
    __slots__: ClassVar[list[str]] = [  # noqa: RUF023
        "realm",
        "exclusive",
        "passive",
        "active",
        "write",
        "read",
    ]

    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = 0x001E000A
    name: ClassVar[str] = "Access.Request"
    synchronous: ClassVar[bool] = True
    valid_responses: ClassVar[list[str]] = ["Access.RequestOk"]

    _realm = "shortstr"
    _exclusive = "bit"
    _passive = "bit"
    _active = "bit"
    _write = "bit"
    _read = "bit"

    def __init__(
        self,
        realm: str = "/data",
        exclusive: bool = False,
        passive: bool = True,
        active: bool = True,
        write: bool = True,
        read: bool = True,
    ) -> None:
        self.realm = realm
        self.exclusive = exclusive
        self.passive = passive
        self.active = active
        self.write = write
        self.read = read


class AccessRequestOk(base.Frame):
    """The ticket granted; always 1."""

    __slots__: ClassVar[list[str]] = ["ticket"]

    frame_id: ClassVar[int] = 11
    index: ClassVar[int] = 0x001E000B
    name: ClassVar[str] = "Access.RequestOk"
    synchronous: ClassVar[bool] = False

    _ticket = "short"

    def __init__(self, ticket: int = 1) -> None:
        self.ticket = ticket


METHODS: Mapping[int, type[Method]] = {
    **commands.INDEX_MAPPING,
    AccessRequest.index: AccessRequest,
    AccessRequestOk.index: AccessRequestOk,
}
"""The methods by class id * 65536 + method id."""


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    Raises `UnknownMethod`, `MalformedMethod` or its subclass `MalformedText`. As in RabbitMQ, bytes
    after the last argument are an error, and set bits that mean nothing in a bit octet are not.
    """
    if len(payload) < 4:
        raise MalformedMethod(payload)
    (index,) = _LONG.unpack_from(payload)
    kind = METHODS.get(index)
    if kind is None:
        raise UnknownMethod(index >> 16, index & 0xFFFF)
    method = kind.__new__(kind)
    offset = 4
    try:
        for name, argument in _plan(kind.index).arguments:
            value, offset = argument.read(payload, offset)
            setattr(method, name, value)
    except UnicodeDecodeError as error:
        raise MalformedText(payload) from error
    except (IndexError, struct.error, TableError) as error:
        raise MalformedMethod(payload) from error
    if offset != len(payload):
        raise MalformedMethod(payload)
    return method


def encode_method(method: Method) -> bytes:
    """The payload of the method frame. Every argument must be set and fit its wire type."""
    plan = _plan(method.index)
    out = bytearray(plan.prefix)
    for name, argument in plan.arguments:
        argument.write(out, getattr(method, name))
    return bytes(out)


def make(kind: type[M], /, **arguments: Any) -> M:
    """A method with these arguments, and pamqp's defaults for the others; nothing is validated.

    Where pamqp's default is None, it is the empty value of the wire type.
    """
    method = kind.__new__(kind)
    for name, default in _plan(kind.index).defaults:
        value = arguments.pop(name) if name in arguments else default()
        setattr(method, name, value)
    if arguments:
        raise TypeError(f"{kind.name} has no argument {', '.join(sorted(arguments))}")
    return method


class _Argument(NamedTuple):
    """The reader and the writer of one argument. Neighbouring bits share an octet: the first of
    them writes it, the others add to it, and only the last one moves the reader on."""

    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[bytearray, Any], None]


class _Plan(NamedTuple):
    prefix: bytes
    arguments: tuple[tuple[str, _Argument], ...]
    defaults: tuple[tuple[str, Callable[[], Any]], ...]


_LONG = struct.Struct(">I")

_EMPTY: Mapping[str, object] = {
    "bit": False,
    "octet": 0,
    "short": 0,
    "long": 0,
    "longlong": 0,
    "shortstr": "",
    "longstr": b"",
}


@cache
def _plan(index: int) -> _Plan:
    kind = METHODS[index]
    names = list(kind.__slots__)
    types = [kind.amqp_type(name) for name in names]
    return _Plan(
        prefix=_LONG.pack(index),
        arguments=tuple(zip(names, _arguments(types), strict=True)),
        defaults=tuple(zip(names, _defaults(kind, types), strict=True)),
    )


def _arguments(types: list[str]) -> list[_Argument]:
    arguments: list[_Argument] = []
    bit = 0
    for wire_type, following in pairwise([*types, ""]):
        if wire_type != "bit":
            arguments.append(_WIRE_TYPES[wire_type])
            continue
        last = following != "bit" or bit == 7
        arguments.append(_bit(bit, last))
        bit = 0 if last else bit + 1
    return arguments


def _defaults(kind: type[Method], types: list[str]) -> list[Callable[[], Any]]:
    if not types:
        return []
    given: tuple[object, ...] = vars(kind)["__init__"].__defaults__
    return [_default(wire_type, value) for wire_type, value in zip(types, given, strict=True)]


def _default(wire_type: str, value: object) -> Callable[[], Any]:
    if wire_type == "table":
        return dict
    if value is None:
        value = _EMPTY[wire_type]
    elif wire_type == "longstr":
        value = _to_bytes(value)
    return lambda: value


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return to_octets(value)


def _bit(position: int, last: bool) -> _Argument:
    mask = 1 << position
    step = 1 if last else 0

    def read(payload: bytes, offset: int) -> tuple[bool, int]:
        return bool(payload[offset] & mask), offset + step

    def write(out: bytearray, value: bool) -> None:
        if position == 0:
            out.append(0)
        if value:
            out[-1] |= mask

    return _Argument(read, write)


def _integer(code: str) -> _Argument:
    layout = struct.Struct(code)

    def read(payload: bytes, offset: int) -> tuple[int, int]:
        return layout.unpack_from(payload, offset)[0], offset + layout.size

    def write(out: bytearray, value: int) -> None:
        out += layout.pack(value)

    return _Argument(read, write)


def _read_shortstr(payload: bytes, offset: int) -> tuple[str, int]:
    start = offset + 1
    end = start + payload[offset]
    if end > len(payload):
        raise IndexError("a short string runs past the end of its payload")
    return payload[start:end].decode("utf-8"), end


def _write_shortstr(out: bytearray, value: str | bytes) -> None:
    encoded = _to_bytes(value)
    if len(encoded) > 255:
        raise ValueError(f"a short string has {len(encoded)} bytes, of 255 at most: {value!r}")
    out.append(len(encoded))
    out += encoded


def _read_longstr(payload: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + 4
    end: int = start + _LONG.unpack_from(payload, offset)[0]
    if end > len(payload):
        raise IndexError("a long string runs past the end of its payload")
    return payload[start:end], end


def _write_longstr(out: bytearray, value: str | bytes) -> None:
    encoded = _to_bytes(value)
    out += _LONG.pack(len(encoded))
    out += encoded


def _write_table(out: bytearray, value: Any) -> None:
    out += encode_table(value)


_WIRE_TYPES: Mapping[str, _Argument] = {
    "octet": _integer(">B"),
    "short": _integer(">H"),
    "long": _integer(">I"),
    "longlong": _integer(">Q"),
    "shortstr": _Argument(_read_shortstr, _write_shortstr),
    "longstr": _Argument(_read_longstr, _write_longstr),
    "table": _Argument(decode_table, _write_table),
}
