"""An AMQP connection with one channel that costs its client next to nothing; standard library only.

For benchmarks: what is published again and again is encoded once, and deliveries of one size are
counted by their bytes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_BYTES_MAX = 131_072
RECEIVE_BYTES = 1 << 20
PUBLISHES_A_WRITE = 64

CLOSING = {(10, 50), (20, 40)}
"""connection.close and channel.close."""
PASSED_OVER = {(10, 60), (10, 61)}
"""connection.blocked and connection.unblocked."""
GET_EMPTY = (60, 72)

FRAME_HEAD = struct.Struct(">BHI")
"""Type, channel and size of a frame."""


class Refused(Exception):
    """The broker closed the connection or channel; the text is its reason."""


def short_string(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_id: int, method_id: int, fields: bytes = b"", channel: int = 1) -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + fields)


def table(arguments: Mapping[str, str | int]) -> bytes:
    octets = b""
    for key, value in arguments.items():
        octets += short_string(key)
        if isinstance(value, bool):
            octets += b"t" + bytes([value])
        elif isinstance(value, int):
            octets += b"l" + struct.pack(">q", value)
        else:
            data = value.encode()
            octets += b"S" + struct.pack(">I", len(data)) + data
    return struct.pack(">I", len(octets)) + octets


def persistent_publish(queue: str, body: bytes) -> bytes:
    """Everything it takes to publish this to a queue."""
    header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
    frames = [method(60, 40, b"\0\0" + short_string("") + short_string(queue) + b"\0")]
    frames.append(frame(2, 1, header))
    piece = FRAME_BYTES_MAX - 8
    frames += (frame(3, 1, body[at : at + piece]) for at in range(0, len(body), piece))
    return b"".join(frames)


class AmqpSocket:
    """A connection with channel 1 open."""

    def __init__(
        self,
        host: str,
        port: int,
        user: str = "guest",
        password: str = "guest",
        virtual_host: str = "/",
    ) -> None:
        self._buffer = b""
        self.socket = socket.create_connection((host, port), timeout=600)
        try:
            self._open(user, password, virtual_host)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, user: str, password: str, virtual_host: str) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect(10, 10)
        login = f"\0{user}\0{password}".encode()
        fields = table({}) + short_string("PLAIN") + struct.pack(">I", len(login)) + login
        self.socket.sendall(method(10, 11, fields + short_string("en_US"), 0))
        self.expect(10, 30)
        self.socket.sendall(method(10, 31, struct.pack(">HIH", 2047, FRAME_BYTES_MAX, 0), 0))
        self.socket.sendall(method(10, 40, short_string(virtual_host) + b"\0\0", 0))
        self.expect(10, 41)
        self.call(method(20, 10, b"\0"), 20, 11)

    def declare(
        self, queue: str, arguments: Mapping[str, str | int], *, passive: bool = False
    ) -> int:
        """A durable queue; returns how many messages are ready in it."""
        bits = b"\3" if passive else b"\2"
        fields = b"\0\0" + short_string(queue) + bits + table(arguments)
        reply = self.call(method(50, 10, fields), 50, 11)
        ready: int = struct.unpack_from(">I", reply, 5 + reply[4])[0]
        return ready

    def delete(self, queue: str) -> None:
        self.call(method(50, 40, b"\0\0" + short_string(queue) + b"\0"), 50, 41)

    def publish(self, unit: bytes, count: int) -> None:
        """Send the encoded publish so many times; on return the broker has read all of it."""
        many = unit * PUBLISHES_A_WRITE
        for _ in range(count // PUBLISHES_A_WRITE):
            self.socket.sendall(many)
        self.socket.sendall(unit * (count % PUBLISHES_A_WRITE))
        self.prefetch(0)

    def prefetch(self, count: int) -> None:
        self.call(method(60, 10, struct.pack(">IHB", 0, count, 0)), 60, 11)

    def publish_safely(self, unit: bytes) -> None:
        """Publish once more, and wait until that is on disk, and so is all before it."""
        self.call(method(85, 10, b"\0"), 85, 11)
        self.call(unit, 60, 80)

    def drain(self, queue: str, count: int, acked_at_once: int) -> None:
        """Consume and acknowledge so many messages, which are all of one size."""
        self.prefetch(4 * acked_at_once)
        consume = b"\0\0" + short_string(queue) + short_string("drain") + b"\0" + table({})
        self.call(method(60, 20, consume), 60, 21)
        unit, received, acked = self._delivery_bytes(), 0, 0
        octets, self._buffer = len(self._buffer), b""
        while received < count:
            received, left = received + octets // unit, octets % unit
            if received - acked >= acked_at_once or received >= count:
                acked = received
                # Tags count the deliveries of the channel.
                self.socket.sendall(method(60, 80, struct.pack(">QB", received, 1)))
            if received < count:
                octets = left + len(self._receive())
        self.prefetch(0)

    def carry_out(self, requests: bytes) -> None:
        """Send requests, and pass over the answers; on return the broker has done them all."""
        self.socket.sendall(requests)
        self.socket.sendall(method(60, 10, struct.pack(">IHB", 0, 0, 0)))
        self.pass_over_until(60, 11)

    def pass_over_until(self, class_id: int, method_id: int) -> None:
        """Read everything up to this method, and keep nothing of it."""
        self._pass_over(lambda _, name, __: name == (class_id, method_id))

    def pass_over_bodies(self, octets: int) -> None:
        """Read so many octets of bodies and what is between them, and keep nothing of it."""
        missing = octets

        def is_last(kind: int, name: tuple[int, int], size: int) -> bool:
            nonlocal missing
            if name == GET_EMPTY:
                raise Refused("there is no message")
            missing -= size if kind == 3 else 0
            return missing <= 0

        self._pass_over(is_last)

    def _pass_over(self, is_last: Callable[[int, tuple[int, int], int], bool]) -> None:
        """Read frames up to one; `is_last` gets their kind, their method and their size."""
        buffer, at = self._buffer, 0
        while True:
            while len(buffer) - at >= 8:
                kind, _, size = FRAME_HEAD.unpack_from(buffer, at)
                if len(buffer) - at < size + 8:
                    break
                name = struct.unpack_from(">HH", buffer, at + 7) if kind == 1 else (0, 0)
                if name in CLOSING:
                    reason = buffer[at + 13 :]
                    raise Refused(reason[1 : 1 + reason[0]].decode())
                at += size + 8
                if is_last(kind, name, size):
                    self._buffer = buffer[at:]
                    return
            buffer, at = buffer[at:] + self._receive(), 0

    def _delivery_bytes(self) -> int:
        """How long the first delivery is, which is in the buffer afterwards."""
        at, missing = 0, -1
        while missing:
            while len(self._buffer) - at < 8 or len(self._buffer) - at < self._frame_bytes(at):
                self._buffer += self._receive()
            if self._buffer[at] == 2:
                missing = struct.unpack_from(">Q", self._buffer, at + 11)[0]
            elif self._buffer[at] == 3:
                missing -= self._frame_bytes(at) - 8
            at += self._frame_bytes(at)
        return at

    def _frame_bytes(self, at: int) -> int:
        size: int = struct.unpack_from(">I", self._buffer, at + 3)[0]
        return size + 8

    def _receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Refused("the broker closed the socket")
        return data

    def call(self, request: bytes, class_id: int, method_id: int) -> bytes:
        self.socket.sendall(request)
        return self.expect(class_id, method_id)

    def expect(self, class_id: int, method_id: int) -> bytes:
        """The payload of the next method, which must be this one."""
        while True:
            while len(self._buffer) < 8 or len(self._buffer) < self._frame_bytes(0):
                self._buffer += self._receive()
            size = self._frame_bytes(0)
            kind, payload = self._buffer[0], self._buffer[7 : size - 1]
            self._buffer = self._buffer[size:]
            name = struct.unpack_from(">HH", payload) if kind == 1 else (0, 0)
            if name == (class_id, method_id):
                return payload
            if name in CLOSING:
                raise Refused(payload[7 : 7 + payload[6]].decode())
            if kind != 8 and name not in PASSED_OVER:
                raise Refused(f"wanted {class_id, method_id}, got {name} in a frame of type {kind}")

    def close(self) -> None:
        """Say goodbye, if there is somebody to say it to."""
        try:
            bye = struct.pack(">H", 200) + short_string("bye") + bytes(4)
            self.call(method(10, 50, bye, 0), 10, 51)
        except (OSError, Refused):
            pass
        self.socket.close()


def resident_bytes(pid: int) -> int:
    """The resident memory of a process and its descendants."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            pages[int(name)] = int(fields[21])
            children.setdefault(int(fields[1]), []).append(int(name))
    todo, total = [pid], 0
    while todo:
        one = todo.pop()
        total += pages.get(one, 0)
        todo += children.get(one, [])
    return total * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(directory: str) -> int:
    """What a directory takes on the disk; its files may go while one looks."""
    octets = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                octets += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return octets
