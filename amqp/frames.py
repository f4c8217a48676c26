"""Frames on the wire (AMQP 0-9-1 section 4.2.3): their octets, and the error texts for bad ones.

    octet type | short channel | long payload size | payload | octet 0xCE

`Connection` cuts the stream into frames itself, in one loop with the reading of publishes and
acknowledgements; this module has what it shares with the writers.
"""

from __future__ import annotations

import struct
from typing import cast

from warren.core.erlang_text import binary_text

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x09"
"""The header that some old clients send for 0-9-1; RabbitMQ serves them."""

METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT = 8

FRAME_END = 0xCE
END = b"\xce"
OVERHEAD = 8
"""Octets of a frame besides its payload."""

FRAME_US = 2
"""The cost of reading a frame, without the work that it asks for, in the microseconds of
`core/scheduling/turns.py`."""

FRAME_MIN_SIZE = 4096
"""Section 4.2.3: both peers must accept frames of 4096 octets before anything is negotiated."""

HEAD = struct.Struct(">BHI")
"""Type, channel and payload size."""

HEADS_MAX = 256
"""Heads kept in a `FrameHeads`, each for one size."""

HEARTBEAT_FRAME = HEAD.pack(HEARTBEAT, 0, 0) + END

_SHOWN_OCTETS = 16


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + END


class FrameHeads(dict[int, bytes]):
    """The first octets of frames of one type and channel, by the number of octets that follow them.

    Messages have few different sizes: looking a head up costs a third of packing it.
    """

    __slots__ = ("_after", "_before", "_channel", "_kind", "_more")

    def __init__(
        self, kind: int, channel: int, *, before: bytes = b"", after: bytes = b"", more: int = 0
    ) -> None:
        """`before` precedes every head. `after` begins the payload. The size in a lookup counts
        neither it nor `more` further octets of the payload."""
        self._kind = kind
        self._channel = channel
        self._before = before
        self._after = after
        self._more = len(after) + more

    def __missing__(self, size: int) -> bytes:
        if len(self) >= HEADS_MAX:
            self.clear()
        head = HEAD.pack(self._kind, self._channel, size + self._more)
        octets = self[size] = self._before + head + self._after
        return octets


def content_frames(channel: int, header: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """A header frame, and body frames of at most `frame_max`, in parts; an empty body has no frame.

    The octets of the body are not copied: a body may have a hundred megabytes.
    """
    room = frame_max - OVERHEAD if frame_max else len(body) or 1
    parts = [frame(HEADER, channel, header)]
    octets = memoryview(body)
    for start in range(0, len(body), room):
        # The code that writes the parts takes any bytes-like object.
        piece = cast(bytes, octets[start : start + room])
        parts += (HEAD.pack(BODY, channel, len(piece)), piece, END)
    return parts


def described(kind: int, payload: bytes) -> str:
    """The start of the error texts of amqp_semantics.md section 1.9."""
    if len(payload) > _SHOWN_OCTETS:
        return f"type {kind}, first 16 octets = {binary_text(payload[:_SHOWN_OCTETS])}"
    return f"type {kind}, all octets = {binary_text(payload)}"
