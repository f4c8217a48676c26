"""An AMQP client for very many messages: one channel, large writes, and little work for each frame.

It understands what a broker says that behaves; `RawClient` is for everything else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import NamedTuple, Self

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY = 1, 2, 3
FRAME_BYTES_MAX = 131_072
RECEIVE_BYTES = 1 << 18
PATIENCE_S = 60.0

START, TUNE, OPEN_OK, CLOSE = (10, 10), (10, 30), (10, 41), (10, 50)
BLOCKED, UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 11), (20, 40)
EXCHANGE_DECLARE_OK = (40, 11)
QUEUE_DECLARE_OK, QUEUE_BIND_OK = (50, 11), (50, 21)
QOS_OK, CONSUME_OK, DELIVER = (60, 11), (60, 21), (60, 60)
PUBLISHER_ACK, PUBLISHER_NACK = (60, 80), (60, 120)
SELECT_OK = (85, 11)
TX_SELECT, TX_SELECT_OK, TX_COMMIT, TX_COMMIT_OK = (90, 10), (90, 11), (90, 20), (90, 21)


class Closed(Exception):
    """The connection is over; the text is what the broker said, if it did."""


class Said(NamedTuple):
    """A method the broker said; `body` is that of a delivery."""

    name: tuple[int, int]
    fields: bytes
    body: bytes = b""


def short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_id: int, method_id: int, fields: bytes = b"", *, channel: int = 1) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + fields)


def table(items: dict[str, str | int | bool]) -> bytes:
    octets = b""
    for key, value in items.items():
        if isinstance(value, bool):
            octets += short(key) + b"t" + bytes([value])
        elif isinstance(value, int):
            octets += short(key) + b"l" + struct.pack(">q", value)
        else:
            octets += short(key) + b"S" + struct.pack(">I", len(value)) + value.encode()
    return struct.pack(">I", len(octets)) + octets


def content(body: bytes, *, persistent: bool, priority: int, expiration: str = "") -> bytes:
    """The frames that follow basic.publish."""
    flags = 0x1900 if expiration else 0x1800
    head = struct.pack(">HHQHBB", 60, 0, len(body), flags, 2 if persistent else 1, priority)
    head += short(expiration) if expiration else b""
    frames = [frame(HEADER, 1, head)]
    piece = FRAME_BYTES_MAX - 8
    for start in range(0, len(body), piece):
        frames.append(frame(BODY, 1, body[start : start + piece]))
    return b"".join(frames)


def publish(exchange: str, routing_key: str) -> bytes:
    return method(60, 40, b"\0\0" + short(exchange) + short(routing_key) + b"\0")


class BulkClient:
    """A connection with channel 1 open. Whatever it is asked for raises `Closed` at the end."""

    def __init__(self, port: int) -> None:
        self._buffer = b""
        self._delivery: bytes = b""
        self._size = -1
        self._parts: list[bytes] = []
        self.told_blocked = 0
        self.told_unblocked = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        except OSError as error:
            raise Closed(str(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self) -> Self:
        try:
            self._shake_hands()
        except BaseException:
            self.close()
            raise
        return self

    def _shake_hands(self) -> None:
        self.send(PROTOCOL_HEADER)
        self.expect(START)
        capabilities = struct.pack(">I", 21) + short("connection.blocked") + b"t\x01"
        properties = short("capabilities") + b"F" + capabilities
        login = b"\0guest\0guest"
        fields = struct.pack(">I", len(properties)) + properties + short("PLAIN")
        fields += struct.pack(">I", len(login)) + login + short("en_US")
        self.send(method(10, 11, fields, channel=0))
        self.expect(TUNE)
        self.send(method(10, 31, struct.pack(">HIH", 2047, FRAME_BYTES_MAX, 0), channel=0))
        self.send(method(10, 40, short("/") + b"\0\0", channel=0))
        self.expect(OPEN_OK)
        self.call(method(20, 10, b"\0"), CHANNEL_OPEN_OK)

    def declare(self, queue: str, arguments: dict[str, str | int | bool] | None = None) -> int:
        """A durable queue; returns how many messages are ready in it."""
        fields = b"\0\0" + short(queue) + b"\2" + table(arguments or {})
        reply = self.call(method(50, 10, fields), QUEUE_DECLARE_OK)
        ready: int = struct.unpack_from(">I", reply.fields, 1 + reply.fields[0])[0]
        return ready

    def ready(self, queue: str) -> int:
        reply = self.call(
            method(50, 10, b"\0\0" + short(queue) + b"\1" + table({})), QUEUE_DECLARE_OK
        )
        ready: int = struct.unpack_from(">I", reply.fields, 1 + reply.fields[0])[0]
        return ready

    def declare_fanout(self, exchange: str, queues: list[str]) -> None:
        fields = b"\0\0" + short(exchange) + short("fanout") + b"\2" + table({})
        self.call(method(40, 10, fields), EXCHANGE_DECLARE_OK)
        for queue in queues:
            fields = b"\0\0" + short(queue) + short(exchange) + b"\0\0" + table({})
            self.call(method(50, 20, fields), QUEUE_BIND_OK)

    def confirm_select(self) -> None:
        self.call(method(85, 10, b"\0"), SELECT_OK)

    def tx_select(self) -> None:
        self.call(method(*TX_SELECT), TX_SELECT_OK)

    def qos(self, prefetch: int) -> None:
        self.call(self.qos_bytes(prefetch), QOS_OK)

    @staticmethod
    def qos_bytes(prefetch: int) -> bytes:
        return method(60, 10, struct.pack(">IHB", 0, prefetch, 0))

    def consume(self, queue: str) -> None:
        """Deliveries may come before anything else does from here on."""
        self.send(method(60, 20, b"\0\0" + short(queue) + short("c") + b"\0" + table({})))

    def call(self, request: bytes, reply: tuple[int, int]) -> Said:
        self.send(request)
        return self.expect(reply)

    def expect(self, name: tuple[int, int]) -> Said:
        """The next thing said must be this."""
        while True:
            for said in self.receive(one=True):
                if said.name != name:
                    raise AssertionError(f"wanted {name}, got {said.name} {said.fields[:80]!r}")
                return said

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def has_input(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self, *, one: bool = False) -> list[Said]:
        """What the broker says next, at least a part of a frame; all of it, or one at a time."""
        said = self._parse(one)
        if said:
            return said
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        self._buffer += data
        return self._parse(one)

    def _parse(self, one: bool) -> list[Said]:
        buffer, at, found = self._buffer, 0, []
        while len(buffer) - at >= 8 and not (one and found):
            kind, size = buffer[at], int.from_bytes(buffer[at + 3 : at + 7], "big")
            end = at + 8 + size
            if end > len(buffer):
                break
            payload = buffer[at + 7 : end - 1]
            at = end
            if kind == METHOD:
                name = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
                if name == DELIVER:
                    self._delivery = payload[4:]
                elif name == BLOCKED:
                    self.told_blocked += 1
                elif name == UNBLOCKED:
                    self.told_unblocked += 1
                elif name in (CLOSE, CHANNEL_CLOSE):
                    length = payload[6]
                    raise Closed(payload[7 : 7 + length].decode())
                else:
                    found.append(Said(name, payload[4:]))
            elif kind == HEADER:
                self._size = int.from_bytes(payload[4:12], "big")
            elif kind == BODY:
                self._size -= len(payload)
                self._parts.append(payload)
            if kind in (HEADER, BODY) and self._size == 0:
                found.append(Said(DELIVER, self._delivery, b"".join(self._parts)))
                self._parts = []
        self._buffer = buffer[at:]
        return found

    def close(self) -> None:
        """Cut the connection; what is not acknowledged goes back to its queue.

        A thread that is sending or receiving ends with `Closed`.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Delivery(NamedTuple):
    tag: int
    redelivered: bool
    body: bytes


def delivery(said: Said) -> Delivery:
    at = 1 + said.fields[0]
    tag = int.from_bytes(said.fields[at : at + 8], "big")
    return Delivery(tag, bool(said.fields[at + 8]), said.body)


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method(60, 80, struct.pack(">QB", tag, multiple))


def nack(tag: int, *, requeue: bool, multiple: bool = False) -> bytes:
    return method(60, 120, struct.pack(">QB", tag, multiple | requeue << 1))
