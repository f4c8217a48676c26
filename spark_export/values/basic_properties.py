"""The properties of the class basic on the wire: their order, flags and types (4.2.6).

A content header's payload is: class id u16 = 60, weight u16, body size u64, flags u16, and the
properties whose flag is set, in the order of `PROPERTIES`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

WireType: TypeAlias = Literal["shortstr", "octet", "table", "timestamp"]

FIXED_BYTES: Final = 14
"""Octets of a payload before the first property."""

FLAGS_AT: Final = 12


class Property(NamedTuple):
    """A property; its name is also that of its column."""

    name: str
    flag: int
    wire_type: WireType


PROPERTIES: Final = (
    Property("content_type", 0x8000, "shortstr"),
    Property("content_encoding", 0x4000, "shortstr"),
    Property("headers", 0x2000, "table"),
    Property("delivery_mode", 0x1000, "octet"),
    Property("priority", 0x0800, "octet"),
    Property("correlation_id", 0x0400, "shortstr"),
    Property("reply_to", 0x0200, "shortstr"),
    Property("expiration", 0x0100, "shortstr"),
    Property("message_id", 0x0080, "shortstr"),
    Property("timestamp", 0x0040, "timestamp"),
    Property("type", 0x0020, "shortstr"),
    Property("user_id", 0x0010, "shortstr"),
    Property("app_id", 0x0008, "shortstr"),
    Property("cluster_id", 0x0004, "shortstr"),
)

BY_NAME: Final[Mapping[str, Property]] = {one.name: one for one in PROPERTIES}

_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")


def message_id(payload: bytes) -> str | None:
    """The message id in a content header's payload, None if there is none.

    Raises ValueError for a payload that ends too early.
    """
    try:
        (flags,) = _SHORT.unpack_from(payload, FLAGS_AT)
        at = FIXED_BYTES
        for name, flag, wire_type in PROPERTIES:
            if not flags & flag:
                continue
            if name == "message_id":
                text = payload[at + 1 : at + 1 + payload[at]]
                return text.decode("utf-8", "replace")
            if wire_type == "shortstr":
                at += 1 + payload[at]
            elif wire_type == "table":
                at += 4 + _LONG.unpack_from(payload, at)[0]
            else:
                at += 1 if wire_type == "octet" else 8
    except (IndexError, struct.error) as error:
        raise ValueError(f"a content header of {len(payload)} octets ends too early") from error
    return None
