"""A lazy view of raw content headers, and the few edits that a broker makes to them.

The payload of a content header frame, as received, stored and delivered:

    class id u16 = 60 | weight u16 | body size u64 | flags u16 | property bytes

The flags word says which properties follow, in the order of the table `PROPERTIES`, high bit first.
No property has the two lowest bits. The lowest one says that another flags word follows (4.2.6.1),
but none is looked for: class basic has no property in it, and RabbitMQ ignores the bit, too.

`scan` finds the properties that publishing needs without decoding the headers table. Edits copy
every unchanged property byte by byte, so types and order survive (amqp_semantics.md section 0).
Nothing here checks the class id.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple

from warren.amqp.field_table import TableError, decode_named, decode_table, encode_table
from warren.core.field import Table, to_octets

EXPIRATION_MS_MAX = 315_360_000_000
"""Ten years: RabbitMQ's limit of all times to live."""


class MalformedProperties(ValueError):
    """The content header ends before its properties do, or its headers are not a table."""


class InvalidExpiration(ValueError):
    """The `expiration` property is not a time to live; `reason` is RabbitMQ's word for why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Facts(NamedTuple):
    """The properties that publishing needs. `headers` is the span of the encoded table, its length
    prefix included: (offset, number of bytes)."""

    delivery_mode: int | None = None
    priority: int | None = None
    expiration: bytes | None = None
    reply_to: bytes | None = None
    user_id: bytes | None = None
    headers: tuple[int, int] | None = None


NO_FACTS: Final = Facts()

# Most messages have no other property, and creating a tuple costs as much as all of the reading.
_DELIVERY_MODE_ONLY: Final = {mode: Facts(delivery_mode=mode) for mode in (1, 2)}


class Keep(Enum):
    """The default of the arguments of `replace`: the property stays as it is."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Keep.UNCHANGED


class _Property(NamedTuple):
    name: str
    flag: int
    wire_type: Literal["shortstr", "octet", "table", "timestamp"]


PROPERTIES: Final = (
    _Property("content_type", 0x8000, "shortstr"),
    _Property("content_encoding", 0x4000, "shortstr"),
    _Property("headers", 0x2000, "table"),
    _Property("delivery_mode", 0x1000, "octet"),
    _Property("priority", 0x0800, "octet"),
    _Property("correlation_id", 0x0400, "shortstr"),
    _Property("reply_to", 0x0200, "shortstr"),
    _Property("expiration", 0x0100, "shortstr"),
    _Property("message_id", 0x0080, "shortstr"),
    _Property("timestamp", 0x0040, "timestamp"),
    _Property("type", 0x0020, "shortstr"),
    _Property("user_id", 0x0010, "shortstr"),
    _Property("app_id", 0x0008, "shortstr"),
    _Property("cluster_id", 0x0004, "shortstr"),
)

_CONTENT_TYPE = 0x8000
_CONTENT_ENCODING = 0x4000
_HEADERS = 0x2000
_DELIVERY_MODE = 0x1000
_PRIORITY = 0x0800
_CORRELATION_ID = 0x0400
_REPLY_TO = 0x0200
_EXPIRATION = 0x0100
_MESSAGE_ID = 0x0080
_TIMESTAMP = 0x0040
_TYPE = 0x0020
_USER_ID = 0x0010
_APP_ID = 0x0008
_CLUSTER_ID = 0x0004

_FACTS = _HEADERS | _DELIVERY_MODE | _PRIORITY | _REPLY_TO | _EXPIRATION | _USER_ID
_DEFINED = 0xFFFC
_AFTER_HEADERS = 0x1FFC
_AFTER_DELIVERY_MODE = 0x0FFC
_AFTER_TIMESTAMP = 0x003C
_AFTER_EXPIRATION = 0x00FC

FLAGS_AT = 12
"""Where the flags begin; `HAS_HEADERS` is the bit of the headers in the first octet of them."""

HAS_HEADERS = _HEADERS >> 8

_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")


def scan(header: bytes) -> Facts:
    """The facts of a content header; `NO_FACTS` itself if it has none of them.

    Raises `MalformedProperties` if the header does not end with its properties. The headers table
    is skipped, not read.
    """
    # One line per property and no loop: this runs for each publish with properties of its own.
    try:
        (flags,) = _SHORT.unpack_from(header, FLAGS_AT)
        offset = FLAGS_AT + 2
        delivery_mode = priority = expiration = reply_to = user_id = headers_span = None
        if flags & _CONTENT_TYPE:
            offset += 1 + header[offset]
        if flags & _CONTENT_ENCODING:
            offset += 1 + header[offset]
        if flags & _HEADERS:
            length = 4 + _LONG.unpack_from(header, offset)[0]
            headers_span = (offset, length)
            offset += length
        if flags & _AFTER_HEADERS:
            if flags & _DELIVERY_MODE:
                delivery_mode = header[offset]
                offset += 1
            if flags & _PRIORITY:
                priority = header[offset]
                offset += 1
            if flags & _CORRELATION_ID:
                offset += 1 + header[offset]
            if flags & _REPLY_TO:
                start = offset + 1
                offset = start + header[offset]
                reply_to = header[start:offset]
            if flags & _EXPIRATION:
                start = offset + 1
                offset = start + header[offset]
                expiration = header[start:offset]
            if flags & _AFTER_EXPIRATION:
                if flags & _MESSAGE_ID:
                    offset += 1 + header[offset]
                if flags & _TIMESTAMP:
                    offset += 8
                if flags & _TYPE:
                    offset += 1 + header[offset]
                if flags & _USER_ID:
                    start = offset + 1
                    offset = start + header[offset]
                    user_id = header[start:offset]
                if flags & _APP_ID:
                    offset += 1 + header[offset]
                if flags & _CLUSTER_ID:
                    offset += 1 + header[offset]
    except (IndexError, struct.error) as error:
        raise _truncated(header) from error
    if offset != len(header):
        raise _truncated(header) if offset > len(header) else _too_long(header, offset)
    facts = flags & _FACTS
    if not facts:
        return NO_FACTS
    if facts == _DELIVERY_MODE and delivery_mode in _DELIVERY_MODE_ONLY:
        return _DELIVERY_MODE_ONLY[delivery_mode]
    return Facts(delivery_mode, priority, expiration, reply_to, user_id, headers_span)


UNUSUAL: Final = -1
"""The result of `ordinary` for properties that `scan` has to examine."""

PERSISTENT: Final = 0x100
PRIORITY: Final = 0xFF
EXPIRATION_AT: Final = 9
EXPIRING: Final = 1 << EXPIRATION_AT
"""The result of `ordinary` has the bits of the priority and the bit `PERSISTENT`. If there is an
expiration, its bits from `EXPIRATION_AT` on are one more than the milliseconds."""

_REPLY_TO_OCTETS = len(b"amq.rabbitmq.reply-to")


def ordinary(header: bytes, flags: int, user: bytes) -> tuple[int, int]:
    """Priority, persistence and expiration from ordinary properties, and how many octets decide
    them.

    The first number is `UNUSUAL` if `scan` has to be asked: the properties are malformed, name
    another user than `user`, or may have a wrong expiration, a direct reply address, CC or BCC.

    A header of the same size gets the same answer if its first octets, as many as the second number
    says, are the same but for the body size: publishing does not read the others.

    `flags` is the first flags word. This runs for each publish whose properties differ from those
    of the publish before.
    """
    found = 0
    offset = FLAGS_AT + 2
    try:
        if flags & _CONTENT_TYPE:
            offset += 1 + header[offset]
        if flags & _CONTENT_ENCODING:
            offset += 1 + header[offset]
        if flags & _HEADERS:
            start = offset
            offset += 4 + _LONG.unpack_from(header, offset)[0]
            # Searching for one octet is much faster than for two.
            if header.find(b"C", start, offset) > 0 and _may_have_copies(header, start, offset):
                return UNUSUAL, 0
        if flags & _DELIVERY_MODE:
            mode = header[offset]
            offset += 1
            if mode == 2:
                found = PERSISTENT
            elif mode != 1:
                return UNUSUAL, 0
        decided = offset
        if flags & _AFTER_DELIVERY_MODE:
            if flags & _PRIORITY:
                found |= header[offset]
                decided = offset = offset + 1
            if flags & _CORRELATION_ID:
                decided = offset + 1
                offset = decided + header[offset]
            if flags & _REPLY_TO:
                size = header[offset]
                if size == _REPLY_TO_OCTETS:
                    return UNUSUAL, 0
                decided = offset + 1
                offset = decided + size
            if flags & _EXPIRATION:
                start = offset + 1
                decided = offset = start + header[offset]
                digits = header[start:offset]
                if not digits.isdigit() or int(digits) > EXPIRATION_MS_MAX:
                    return UNUSUAL, 0
                found |= (int(digits) + 1) << EXPIRATION_AT
            if flags & _MESSAGE_ID:
                decided = offset + 1
                offset = decided + header[offset]
            if flags & _TIMESTAMP:
                offset += 8
            if flags & _AFTER_TIMESTAMP:
                decided, offset = _after_timestamp(header, flags, offset, user)
    except (IndexError, struct.error):
        return UNUSUAL, 0
    return (found, decided) if offset == len(header) else (UNUSUAL, 0)


def _after_timestamp(header: bytes, flags: int, offset: int, user: bytes) -> tuple[int, int]:
    """`ordinary` for the properties behind the timestamp: how many octets decide the header, and
    the offset behind the properties; -1 if they name another user."""
    decided = offset
    if flags & _TYPE:
        decided = offset + 1
        offset = decided + header[offset]
    if flags & _USER_ID:
        start = offset + 1
        decided = offset = start + header[offset]
        if header[start:offset] != user:
            return 0, -1
    if flags & _APP_ID:
        decided = offset + 1
        offset = decided + header[offset]
    if flags & _CLUSTER_ID:
        decided = offset + 1
        offset = decided + header[offset]
    return decided, offset


def _may_have_copies(header: bytes, start: int, end: int) -> bool:
    """Whether the headers between these offsets may name CC or BCC.

    A name in a table is its length and its octets, so most tables need not be decoded.
    """
    return header.find(b"\x02CC", start, end) > 0 or header.find(b"\x03BCC", start, end) > 0


def may_have_copies(header: bytes, facts: Facts) -> bool:
    """Whether the headers may name CC or BCC; if not, they need not be decoded."""
    if facts.headers is None:
        return False
    start, size = facts.headers
    return _may_have_copies(header, start, start + size)


def headers(header: bytes) -> Table:
    """The `headers` property; empty when there is none."""
    span = scan(header).headers
    if span is None:
        return {}
    try:
        return decode_table(header, span[0])[0]
    except TableError as error:
        raise MalformedProperties(f"the headers are no field table: {error}") from error


def named_headers(header: bytes, names: Collection[bytes]) -> Table:
    """The headers with these names, of a content header that `scan` accepts."""
    start, end = find_headers(header)
    if start == end or not names:
        return {}
    try:
        return decode_named(header, start, names)
    except TableError as error:
        raise MalformedProperties(f"the headers are no field table: {error}") from error


def find_headers(header: bytes) -> tuple[int, int]:
    """The offsets at which the headers begin and end in a content header that `scan` accepts.
    Without headers both are the offset at which they would be."""
    flags, offset = header[FLAGS_AT], FLAGS_AT + 2
    for flag in (_CONTENT_TYPE >> 8, _CONTENT_ENCODING >> 8):
        if flags & flag:
            offset += 1 + header[offset]
    if not flags & HAS_HEADERS:
        return offset, offset
    return offset, offset + _encoded_bytes(header, offset, "table")


def with_pairs(header: bytes, pairs: Mapping[bytes, bytes]) -> bytes:
    """A content header that `scan` accepts with these pairs, encoded and by their names, in place
    of its headers, in the order of `sorted_by_key`."""
    start, end = find_headers(header)
    table = b"".join([pairs[name] for name in sorted(pairs)])
    flags = _SHORT.unpack_from(header, FLAGS_AT)[0] & _DEFINED | _HEADERS
    return b"".join(
        (
            header[:FLAGS_AT],
            _SHORT.pack(flags),
            header[FLAGS_AT + 2 : start],
            _LONG.pack(len(table)),
            table,
            header[end:],
        )
    )


def property_bytes(header: bytes, name: str) -> bytes | None:
    """The bytes of one property by its name in `PROPERTIES`; None if it is absent. A short string
    comes without its length, the others as they are on the wire."""
    flag, wire_type = _BY_NAME[name]
    span = _locate(header).get(flag)
    if span is None:
        return None
    start, end = span
    return header[start + 1 : end] if wire_type == "shortstr" else header[start:end]


def identity(header: bytes) -> bytes | None:
    """The octets of `message_id`, or else of `correlation_id`; None if the header has neither or is
    malformed. This runs for each message of a queue that records the lives of messages."""
    try:
        (flags,) = _SHORT.unpack_from(header, FLAGS_AT)
        if not flags & (_MESSAGE_ID | _CORRELATION_ID):
            return None
        offset = FLAGS_AT + 2
        if flags & _CONTENT_TYPE:
            offset += 1 + header[offset]
        if flags & _CONTENT_ENCODING:
            offset += 1 + header[offset]
        if flags & _HEADERS:
            offset += 4 + _LONG.unpack_from(header, offset)[0]
        if flags & _DELIVERY_MODE:
            offset += 1
        if flags & _PRIORITY:
            offset += 1
        found = None
        if flags & _CORRELATION_ID:
            start = offset + 1
            offset = start + header[offset]
            found = header[start:offset]
        if flags & _MESSAGE_ID:
            if flags & _REPLY_TO:
                offset += 1 + header[offset]
            if flags & _EXPIRATION:
                offset += 1 + header[offset]
            start = offset + 1
            found = header[start : start + header[offset]] or found
    except (IndexError, struct.error):
        return None
    return found or None


def replace(
    header: bytes,
    *,
    headers: Table | Keep | None = UNCHANGED,
    reply_to: bytes | Keep | None = UNCHANGED,
    expiration: bytes | Keep | None = UNCHANGED,
) -> bytes:
    """The header with these properties set, or removed if None; the others stay as they are."""
    changes: dict[int, bytes | None] = {}
    if headers is not UNCHANGED:
        changes[_HEADERS] = None if headers is None else encode_table(headers)
    if reply_to is not UNCHANGED:
        changes[_REPLY_TO] = None if reply_to is None else _encode_shortstr(reply_to)
    if expiration is not UNCHANGED:
        changes[_EXPIRATION] = None if expiration is None else _encode_shortstr(expiration)
    return _rewrite(header, changes)


def encode_properties(
    body_size: int, values: Mapping[str, str | int], headers: Table | None = None
) -> bytes:
    """A header with these properties, by their names in the specification.

    Raises ValueError for a property that does not exist, or whose value is not of its type.
    """
    unknown = values.keys() - _BY_NAME.keys()
    if unknown:
        raise ValueError(f"there is no property {min(unknown)}")
    changes: dict[int, bytes | None] = {}
    for name, value in values.items():
        flag, wire_type = _BY_NAME[name]
        changes[flag] = _encode_value(name, wire_type, value)
    if headers is not None:
        changes[_HEADERS] = encode_table(headers)
    return _rewrite(struct.pack(">HHQH", 60, 0, body_size, 0), changes)


def _encode_value(name: str, wire_type: str, value: str | int) -> bytes:
    if wire_type == "shortstr":
        if not isinstance(value, str):
            raise ValueError(f"{name} should be a string")
        return _encode_shortstr(to_octets(value))
    size = {"octet": 1, "timestamp": 8}.get(wire_type)
    if size is None or isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} should be a whole number")
    if not 0 <= value < 1 << 8 * size:
        raise ValueError(f"{name} should be below {1 << 8 * size}")
    return value.to_bytes(size, "big")


def parse_expiration(raw: bytes) -> int:
    """The time to live in milliseconds. Raises `InvalidExpiration` with RabbitMQ's reasons
    (amqp_semantics.md section 4.3)."""
    number = _INTEGER.match(raw)
    if number is None:
        raise InvalidExpiration("no_integer")
    leftover = raw[number.end() :]
    if leftover:
        raise InvalidExpiration(f"{{leftover_string,{_erlang_string(leftover)}}}")
    value = int(number.group())
    if value < 0:
        raise InvalidExpiration(f"{{value_negative,{value}}}")
    if value > EXPIRATION_MS_MAX:
        raise InvalidExpiration(f"{{value_too_large,{value}}}")
    return value


_BY_NAME: Mapping[str, tuple[int, str]] = {
    name: (flag, wire_type) for name, flag, wire_type in PROPERTIES
}
_INTEGER = re.compile(rb"[+-]?[0-9]+")


def _truncated(header: bytes) -> MalformedProperties:
    return MalformedProperties(f"a content header of {len(header)} bytes ends in its properties")


def _too_long(header: bytes, end: int) -> MalformedProperties:
    behind = len(header) - end
    return MalformedProperties(f"a content header has {behind} bytes behind its properties")


def _locate(header: bytes) -> dict[int, tuple[int, int]]:
    """The positions of the properties in the header: flag to (start, end)."""
    spans: dict[int, tuple[int, int]] = {}
    try:
        (flags,) = _SHORT.unpack_from(header, FLAGS_AT)
        offset = FLAGS_AT + 2
        for _, flag, wire_type in PROPERTIES:
            if flags & flag:
                end = offset + _encoded_bytes(header, offset, wire_type)
                spans[flag] = (offset, end)
                offset = end
    except (IndexError, struct.error) as error:
        raise _truncated(header) from error
    if offset > len(header):
        raise _truncated(header)
    return spans


def _encoded_bytes(header: bytes, offset: int, wire_type: str) -> int:
    """How many bytes the property at `offset` takes, its length prefix included."""
    if wire_type == "shortstr":
        return 1 + header[offset]
    if wire_type == "table":
        length: int = _LONG.unpack_from(header, offset)[0]
        return 4 + length
    return 1 if wire_type == "octet" else 8


def _rewrite(header: bytes, changes: Mapping[int, bytes | None]) -> bytes:
    spans = _locate(header)
    (flags,) = _SHORT.unpack_from(header, FLAGS_AT)
    flags &= _DEFINED
    last = max((end for _, end in spans.values()), default=FLAGS_AT + 2)
    parts = [b""]
    for _, flag, _ in PROPERTIES:
        if flag in changes:
            encoded = changes[flag]
        elif flag in spans:
            start, end = spans[flag]
            encoded = header[start:end]
        else:
            continue
        if encoded is None:
            flags &= ~flag
        else:
            flags |= flag
            parts.append(encoded)
    parts.append(header[last:])
    parts[0] = header[:FLAGS_AT] + _SHORT.pack(flags)
    return b"".join(parts)


def sorted_by_key(table: Table) -> Table:
    """The table in the order in which RabbitMQ leaves tables to which it has added a key."""
    # Sorted by the bytes of the names: code points would put escaped bytes and astral planes in
    # another order.
    return dict(sorted(table.items(), key=lambda pair: to_octets(pair[0])))


def _encode_shortstr(value: bytes) -> bytes:
    if len(value) > 255:
        raise ValueError(f"a short string has {len(value)} bytes, of 255 at most")
    return bytes((len(value),)) + value


def _erlang_string(value: bytes) -> str:
    """A list of bytes as RabbitMQ shows it in an error text."""
    if all(32 <= byte < 127 for byte in value):
        text = value.decode("ascii").replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'
    return "[" + ",".join(str(byte) for byte in value) + "]"
