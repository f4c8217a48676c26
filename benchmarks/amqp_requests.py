"""Octets of AMQP requests, for benchmarks that prepare everything before they begin.

Queues and exchanges are durable, and requests ask for no answer unless they say so.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from amqp_socket import FRAME_BYTES_MAX, frame, method, short_string, table

DURABLE, EXCLUSIVE, AUTO_DELETE, NOWAIT = 2, 4, 4, 16
"""Bits of declarations; the third is exclusive for queues and auto-delete for exchanges."""
CONSUMER_TAG = "c"


def queue_declare(
    queue: str, arguments: Mapping[str, str | int] | None = None, bits: int = DURABLE | NOWAIT
) -> bytes:
    fields = b"\0\0" + short_string(queue) + bytes([bits]) + table(arguments or {})
    return method(50, 10, fields)


def exchange_declare(
    exchange: str,
    kind: str,
    arguments: Mapping[str, str | int] | None = None,
    bits: int = DURABLE | NOWAIT,
) -> bytes:
    fields = b"\0\0" + short_string(exchange) + short_string(kind)
    return method(40, 10, fields + bytes([bits]) + table(arguments or {}))


def bind(
    queue: str,
    exchange: str,
    key: str = "",
    arguments: Mapping[str, str | int] | None = None,
    *,
    nowait: bool = True,
) -> bytes:
    names = short_string(queue) + short_string(exchange) + short_string(key)
    return method(50, 20, b"\0\0" + names + bytes([nowait]) + table(arguments or {}))


def exchange_bind(destination: str, source: str) -> bytes:
    names = short_string(destination) + short_string(source) + short_string("")
    return method(40, 30, b"\0\0" + names + b"\1" + table({}))


def publish(
    exchange: str,
    key: str,
    body: bytes,
    *,
    persistent: bool = False,
    expiration: str = "",
    headers: Mapping[str, str | int] | None = None,
    message_id: str = "",
) -> bytes:
    flags, properties = 0x1000, b""
    if headers is not None:
        flags |= 0x2000
        properties += table(headers)
    properties += b"\2" if persistent else b"\1"
    if expiration:
        flags |= 0x0100
        properties += short_string(expiration)
    if message_id:
        flags |= 0x0080
        properties += short_string(message_id)
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    frames = [method(60, 40, b"\0\0" + short_string(exchange) + short_string(key) + b"\0")]
    frames.append(frame(2, 1, header))
    piece = FRAME_BYTES_MAX - 8
    frames += (frame(3, 1, body[at : at + piece]) for at in range(0, len(body), piece))
    return b"".join(frames)


def consume(queue: str, tag: str = CONSUMER_TAG, *, no_ack: bool = False) -> bytes:
    fields = short_string(queue) + short_string(tag) + bytes([8 | no_ack << 1])
    return method(60, 20, b"\0\0" + fields + table({}))


def cancel(tag: str = CONSUMER_TAG) -> bytes:
    return method(60, 30, short_string(tag) + b"\1")


def get(queue: str) -> bytes:
    """Acknowledged with its delivery."""
    return method(60, 70, b"\0\0" + short_string(queue) + b"\1")


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method(60, 80, struct.pack(">QB", tag, multiple))


def nack(tag: int, *, requeue: bool, multiple: bool = False) -> bytes:
    return method(60, 120, struct.pack(">QB", tag, multiple | requeue << 1))


def purge(queue: str) -> bytes:
    return method(50, 30, b"\0\0" + short_string(queue) + b"\1")


def queue_delete(queue: str) -> bytes:
    return method(50, 40, b"\0\0" + short_string(queue) + bytes([4]))


def exchange_delete(exchange: str) -> bytes:
    return method(40, 20, b"\0\0" + short_string(exchange) + bytes([2]))


TX_SELECT = method(90, 10)
TX_COMMIT = method(90, 20)
TX_ROLLBACK = method(90, 30)
CHANNEL_CLOSE = method(20, 40, struct.pack(">H", 200) + short_string("") + bytes(4))
CHANNEL_CLOSE_OK = (20, 41)
