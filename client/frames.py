"""Frames of AMQP 0-9-1 (4.2.3) and the octets of the methods that are sent with each message.

    octet type | short channel | long payload size | payload | octet 0xCE

Methods that are sent once (declare, consume, close) are encoded by pamqp, but without its checks:
pamqp refuses names that brokers take (other characters, more than 127 of them). Names in
basic.publish and basic.deliver stay octets, whatever they are.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

from pamqp import base, commands, frame
from pamqp.exceptions import PAMQPException

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
END: Final = b"\xce"
HEAD: Final = struct.Struct(">BHI")
"""Type, channel and size of the payload."""
OVERHEAD: Final = 8
"""Octets of a frame besides its payload."""
HEARTBEAT_FRAME: Final = HEAD.pack(HEARTBEAT, 0, 0) + END

SHORT_STRING_MAX: Final = 255

_ACK = struct.Struct(">BHIIQBB")
_BASIC_ACK = 60 << 16 | 80
_NACK_BITS_REQUEUE = 2
_BASIC_NACK = 60 << 16 | 120
_BASIC_PUBLISH = struct.Struct(">IH")
_PUBLISH_ID = 60 << 16 | 40


_NO_TABLE = bytes(4)


def method_frame(channel: int, kind: type[base.Frame], **arguments: Any) -> bytes:
    """A frame with this method. Raises ValueError for arguments that do not fit their wire type.

    The table `arguments` at a method's end may be given as octets, with their length.
    """
    table = arguments.get("arguments")
    if isinstance(table, bytes):
        arguments["arguments"] = {}
    method = _unchecked(kind.index)(**arguments)
    try:
        octets = frame.marshal(method, channel)
    except (PAMQPException, struct.error, TypeError, OverflowError) as error:
        raise ValueError(f"{kind.name}: {error}") from error
    if not isinstance(table, bytes):
        return octets
    payload = octets[HEAD.size : -1]
    assert payload.endswith(_NO_TABLE)
    payload = payload[: -len(_NO_TABLE)] + table
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


@cache
def _unchecked(index: int) -> type[base.Frame]:
    """A class with the same arguments that takes any values."""
    kind: Any = commands.INDEX_MAPPING[index]
    parts = {"__slots__": kind.__slots__, "validate": lambda self: None}
    made: type[base.Frame] = type(kind.__name__, (kind,), parts)
    return made


def ack_frame(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    return _ACK.pack(METHOD, channel, 13, _BASIC_ACK, delivery_tag, multiple, FRAME_END)


def nack_frame(channel: int, delivery_tag: int, *, multiple: bool, requeue: bool) -> bytes:
    bits = multiple | (_NACK_BITS_REQUEUE if requeue else 0)
    return _ACK.pack(METHOD, channel, 13, _BASIC_NACK, delivery_tag, bits, FRAME_END)


def publish_frame(channel: int, exchange: bytes, routing_key: bytes, *, mandatory: bool) -> bytes:
    payload = b"".join(
        (
            _BASIC_PUBLISH.pack(_PUBLISH_ID, 0),
            short_string(exchange),
            short_string(routing_key),
            b"\x01" if mandatory else b"\x00",
        )
    )
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


def content_frames(channel: int, header: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """The content header and the body, in frames of at most `frame_max` octets.

    Raises ValueError for a header that does not fit into one frame: it cannot be split.
    """
    if len(header) + OVERHEAD > frame_max:
        raise ValueError(
            f"properties of {len(header)} octets do not fit a frame of {frame_max} octets"
        )
    parts = [HEAD.pack(HEADER, channel, len(header)), header, END]
    room = frame_max - OVERHEAD
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        parts += (HEAD.pack(BODY, channel, len(piece)), piece, END)
    return parts


def short_string(octets: bytes) -> bytes:
    """The octets as a short string. Raises ValueError if they are too long."""
    if len(octets) > SHORT_STRING_MAX:
        raise ValueError(f"a short string of {len(octets)} octets, of {SHORT_STRING_MAX} at most")
    return bytes((len(octets),)) + octets


def read_short_string(data: bytes, at: int) -> tuple[bytes, int]:
    """The octets, and the offset of their end. Raises IndexError if the data ends before."""
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise IndexError(f"a short string at octet {at} runs past the end at {len(data)}")
    return data[start:end], end
