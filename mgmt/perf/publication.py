"""The octets of the messages that a producer sends.

    basic.publish frame | content header frame | body frames

All of this is encoded once per routing key and size. Only the time of sending changes: a body of at
least `STAMPED_BYTES_MIN` starts with `MAGIC` and a 64-bit time of the monotonic clock in
nanoseconds, which only consumers on the same host can use. The rest of the body is noise that no
broker can compress.
"""

from __future__ import annotations

import struct
from hashlib import shake_256

from pamqp import commands

from warren.amqp.field_table import encode_table
from warren.amqp.frames import BODY, END, HEAD, HEADER, METHOD, OVERHEAD, frame
from warren.amqp.methods import encode_method, make
from warren.core.field import Table

MAGIC = b"WPRF"
STAMP = struct.Struct(">Q")
STAMPED_BYTES_MIN = len(MAGIC) + STAMP.size

BURST_MESSAGES_MAX = 64
"""Messages that share a stamp and a write: at 200,000 messages per second they take a third of a
millisecond."""

BURST_BYTES_MAX = 64 * 1024

CHANNEL = 1
"""The only channel of each connection."""

_CONTENT_HEADER = struct.Struct(">HHQH")
_BASIC_CLASS = 60
_FLAG_HEADERS = 0x2000
_FLAG_DELIVERY_MODE = 0x1000


def encode_properties(headers: Table, persistent: bool) -> tuple[int, bytes]:
    """Property flags and property bytes of a content header."""
    flags = 0
    octets = b""
    if headers:
        flags |= _FLAG_HEADERS
        octets += encode_table(headers)
    if persistent:
        flags |= _FLAG_DELIVERY_MODE
        octets += b"\2"
    return flags, octets


class Publications:
    """An endless sequence of publishes: each routing key in turn, with each size in turn."""

    def __init__(
        self,
        exchange: str,
        routing_keys: list[str],
        sizes: tuple[int, ...],
        *,
        headers: Table,
        persistent: bool,
        mandatory: bool,
        frame_max: int,
    ) -> None:
        properties = encode_properties(headers, persistent)
        contents = [_content(size, properties, frame_max) for size in sizes]
        publishes = [_publish_frame(exchange, key, mandatory) for key in routing_keys]
        # The octets before the stamp, whether there is one, the octets after it, the body's size.
        self._messages = [
            (publish + before, stamped, after, size)
            for size, (before, stamped, after) in zip(sizes, contents, strict=True)
            for publish in publishes
        ]
        self._next = 0
        longest = max(len(before) + len(after) for before, _, after, _ in self._messages)
        self.burst_max = max(1, min(BURST_MESSAGES_MAX, BURST_BYTES_MAX // longest))
        """Messages to take at a time."""

    def take(self, count: int, now_ns: int) -> tuple[bytes, int]:
        """The next `count` messages, stamped with `now_ns`, and the size of their bodies."""
        stamp = STAMP.pack(now_ns)
        messages = self._messages
        if len(messages) == 1:
            before, stamped, after, size = messages[0]
            message = before + stamp + after if stamped else before + after
            return message * count, size * count
        parts: list[bytes] = []
        body_bytes = 0
        for place in range(self._next, self._next + count):
            before, stamped, after, size = messages[place % len(messages)]
            parts += (before, stamp, after) if stamped else (before, after)
            body_bytes += size
        self._next = (self._next + count) % len(messages)
        return b"".join(parts), body_bytes


def _publish_frame(exchange: str, routing_key: str, mandatory: bool) -> bytes:
    publish = make(
        commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory
    )
    return frame(METHOD, CHANNEL, encode_method(publish))


def _content(size: int, properties: tuple[int, bytes], frame_max: int) -> tuple[bytes, bool, bytes]:
    """Header and body frames: the octets before the stamp, whether there is one, and the rest."""
    flags, octets = properties
    header = frame(HEADER, CHANNEL, _CONTENT_HEADER.pack(_BASIC_CLASS, 0, size, flags) + octets)
    room = frame_max - OVERHEAD
    noise = shake_256(b"warren perf").digest(size)
    first = min(size, room)
    further = b"".join(
        frame(BODY, CHANNEL, noise[start : start + room]) for start in range(first, size, room)
    )
    if not size:
        return header, False, b""
    before = header + HEAD.pack(BODY, CHANNEL, first)
    if size < STAMPED_BYTES_MIN:
        return before, False, noise + END
    return before + MAGIC, True, noise[STAMPED_BYTES_MIN:first] + END + further
