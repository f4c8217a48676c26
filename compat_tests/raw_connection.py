"""An AMQP connection on which a test can send anything, also what the protocol forbids.

It answers nothing by itself; heartbeats that arrive are counted and skipped. Every wait has a
deadline: `Silence` is raised if nothing comes, `SocketClosed` if the socket is closed, and
`Surprise`, which says what came, if that is not what the test expects.
"""

import contextlib
import select
import socket
import struct
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Self

from warren.compat_tests.broker import Broker
from warren.compat_tests.field_table import Table, encode_pairs
from warren.compat_tests.methods import (
    CONTENT_METHODS,
    Method,
    decode_method,
    decode_properties,
    encode_method,
)

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

# The time to wait for something that must come; long, since the machine may be busy.
PATIENCE_S = 8.0

# The largest reply text is a short string; longer ones end in three dots.
REPLY_TEXT_BYTES_MAX = 255

REPLY_NAMES = {
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

ALL_CAPABILITIES: dict[str, Any] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class SocketClosed(Exception):
    """The broker closed the connection."""


class Silence(Exception):
    """Nothing came before the deadline."""


class Surprise(AssertionError):
    """Something came that the test does not expect."""


@dataclass(frozen=True)
class Frame:
    type: int
    channel: int
    payload: bytes


def reply_text(code: int, explanation: str | None) -> str:
    """The full reply text: name of the code, dash, explanation, cut to what fits."""
    if explanation is None:
        return REPLY_NAMES[code]
    text = f"{REPLY_NAMES[code]} - {explanation}".encode()
    if len(text) > REPLY_TEXT_BYTES_MAX:
        text = text[: REPLY_TEXT_BYTES_MAX - 3] + b"..."
    return text.decode()


class RawConnection:
    """One connection. A new one is connected by TCP, and has sent nothing yet; see `open`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.socket = socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame_max = 4096
        self.heartbeats_seen = 0
        self._received = bytearray()
        self._inbox: dict[int, deque[Method]] = defaultdict(deque)
        self._content: dict[int, tuple[Method, int | None]] = {}

    # Handshake

    def open(
        self,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        capabilities: Table | None = None,
        client_properties: Table | None = None,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
    ) -> Self:
        """The whole handshake, with heartbeats off unless wanted."""
        self.start()
        self.send_start_ok(user, password, capabilities, client_properties)
        self.tune(channel_max, frame_max, heartbeat)
        self.send_method(0, "connection.open", virtual_host=self._vhost(vhost))
        self.expect("connection.open-ok")
        return self

    def start(self) -> Method:
        """Sends the protocol header and returns the broker's connection.start."""
        self.send_bytes(PROTOCOL_HEADER)
        return self.expect("connection.start")

    def send_start_ok(
        self,
        user: str | None = None,
        password: str | None = None,
        capabilities: Table | None = None,
        client_properties: Table | None = None,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        locale: str = "en_US",
    ) -> None:
        """Sends connection.start-ok; without other values it logs in as the user of the broker's
        URL."""
        user = self.broker.user if user is None else user
        password = self.broker.password if password is None else password
        if response is None and mechanism == "AMQPLAIN":
            response = encode_pairs({"LOGIN": user, "PASSWORD": password})
        elif response is None:
            response = f"\0{user}\0{password}".encode()
        properties = {
            "product": "conformance suite",
            "capabilities": ALL_CAPABILITIES if capabilities is None else capabilities,
            **(client_properties or {}),
        }
        self.send_method(
            0,
            "connection.start-ok",
            client_properties=properties,
            mechanism=mechanism,
            response=response,
            locale=locale,
        )

    def tune(
        self, channel_max: int | None = None, frame_max: int | None = None, heartbeat: int = 0
    ) -> Method:
        """Waits for connection.tune and answers it; values that are not given are those of the
        offer."""
        offer = self.expect("connection.tune")
        self.frame_max = offer["frame_max"] if frame_max is None else frame_max
        self.send_method(
            0,
            "connection.tune-ok",
            channel_max=offer["channel_max"] if channel_max is None else channel_max,
            frame_max=self.frame_max,
            heartbeat=heartbeat,
        )
        return offer

    def _vhost(self, vhost: str | None) -> str:
        return self.broker.vhost if vhost is None else vhost

    # Sending

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, type: int, channel: int, payload: bytes, end: int = FRAME_END) -> None:
        self.send_bytes(frame_bytes(type, channel, payload, end))

    def send_method(self, channel: int, name: str, **fields: Any) -> None:
        self.send_frame(METHOD, channel, encode_method(name, fields))

    def send_heartbeat(self) -> None:
        self.send_frame(HEARTBEAT, 0, b"")

    # Receiving

    def read_frame(self, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame as it is, heartbeats included."""
        deadline = time.monotonic() + timeout_s
        type, channel, size = struct.unpack(">BHI", self._read_exactly(7, deadline))
        payload = self._read_exactly(size, deadline)
        end = self._read_exactly(1, deadline)[0]
        if end != FRAME_END:
            raise Surprise(f"a frame of the broker ends in 0x{end:02X}")
        return Frame(type, channel, payload)

    def read_bytes(self, size: int, timeout_s: float = PATIENCE_S) -> bytes:
        """The next bytes as they are."""
        return self._read_exactly(size, time.monotonic() + timeout_s)

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        while len(self._received) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Silence("the broker said nothing before the deadline")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError as error:
                raise SocketClosed(f"the broker cut the socket: {error}") from error
            if not data:
                raise SocketClosed("the broker closed the socket")
            self._received += data
        piece = bytes(self._received[:size])
        del self._received[:size]
        return piece

    def next_method(self, channel: int, timeout_s: float = PATIENCE_S) -> Method:
        """The next method on this channel; methods on other channels are kept for later."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox[channel]:
            if self._inbox[0] and self._inbox[0][0].name == "connection.close":
                raise Surprise(f"waiting on channel {channel}, got {self._inbox[0][0]}")
            self._take_in(self.read_frame(max(0.0, deadline - time.monotonic())))
        return self._inbox[channel].popleft()

    def next_either(self, channel: int, timeout_s: float = PATIENCE_S) -> Method:
        """The next method on this channel or on channel 0, on which connections are closed."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox[channel] and not self._inbox[0]:
            self._take_in(self.read_frame(max(0.0, deadline - time.monotonic())))
        return self._inbox[channel if self._inbox[channel] else 0].popleft()

    def has_more(self, patience_s: float) -> bool:
        """Whether anything comes before the deadline, be it only the beginning of a frame."""
        if self._received or any(self._inbox.values()):
            return True
        return bool(select.select([self.socket], [], [], patience_s)[0])

    def _take_in(self, frame: Frame) -> None:
        """Adds one frame to what has arrived on its channel."""
        if frame.type == HEARTBEAT:
            self.heartbeats_seen += 1
        elif frame.type == METHOD:
            method = decode_method(frame.channel, frame.payload)
            if method.name in CONTENT_METHODS:
                self._content[frame.channel] = (method, None)
            else:
                self._inbox[frame.channel].append(method)
        elif frame.type in (HEADER, BODY) and frame.channel in self._content:
            self._take_in_content(frame)
        else:
            raise Surprise(f"the broker sent {frame} where a method was due")

    def _take_in_content(self, frame: Frame) -> None:
        method, size = self._content[frame.channel]
        if (frame.type == HEADER) != (size is None):
            raise Surprise(f"the broker sent {frame} out of turn after {method.name}")
        if frame.type == HEADER:
            size = struct.unpack_from(">Q", frame.payload, 4)[0]
            method.property_bytes = frame.payload[12:]
            method.properties = decode_properties(method.property_bytes)
        else:
            method.body += frame.payload
        self._content[frame.channel] = (method, size)
        if size is not None and len(method.body) >= size:
            del self._content[frame.channel]
            self._inbox[frame.channel].append(method)

    def expect(self, name: str, channel: int = 0, timeout_s: float = PATIENCE_S) -> Method:
        """The next method on this channel, which must be the one named."""
        method = self.next_method(channel, timeout_s)
        if method.name != name:
            raise Surprise(f"wanted {name} on channel {channel}, got {method}")
        return method

    def expect_close(
        self,
        code: int,
        explanation: str | None,
        offender: tuple[int, int] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Method:
        """Waits for a connection.close with this code and text, and answers it. `offender` is the
        class and method id of the method that the broker complains about."""
        while True:
            method = self.next_method(0, timeout_s)
            if method.name not in ("connection.blocked", "connection.unblocked"):
                break
        if method.name != "connection.close":
            raise Surprise(f"wanted connection.close {code}, got {method}")
        check_close(method, code, explanation, offender)
        with contextlib.suppress(OSError):
            self.send_method(0, "connection.close-ok")
        return method

    def expect_socket_closed(self, timeout_s: float = PATIENCE_S) -> float:
        """Waits until the broker closes the socket without another frame; returns the seconds that
        took."""
        started = time.monotonic()
        try:
            frame = self.read_frame(timeout_s)
        except SocketClosed:
            return time.monotonic() - started
        raise Surprise(f"wanted the socket to be closed, got {frame}")

    # Ending

    def close(self) -> None:
        """Sends connection.close, waits for close-ok, and closes the socket."""
        self.send_method(0, "connection.close", reply_code=200, reply_text="bye")
        self.expect("connection.close-ok")
        self.socket.close()

    def abandon(self) -> None:
        """Closes the socket and sends nothing; does nothing if it is closed already."""
        self.socket.close()


def frame_bytes(type: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", type, channel, len(payload)) + payload + bytes([end])


def check_close(
    method: Method, code: int, explanation: str | None, offender: tuple[int, int] | None
) -> None:
    wanted = (code, reply_text(code, explanation))
    got = (method["reply_code"], method["reply_text"])
    if got != wanted:
        raise Surprise(f"wanted {method.name} {wanted}, got {got}")
    by = (method["class_id"], method["method_id"])
    if offender is not None and by != offender:
        raise Surprise(f"wanted {method.name} for method {offender}, got {by}")
