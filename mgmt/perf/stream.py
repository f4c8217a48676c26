"""Cuts a broker's octets into frames, and counts them in one loop over one buffer.

Deliveries and confirms are counted and never become objects; other methods are decoded. The
delivery tags of a channel have no gaps, so the last one stands for all.
"""

from __future__ import annotations

import struct

from warren.amqp.frames import BODY, END, FRAME_END, HEAD, HEADER, HEARTBEAT, METHOD, OVERHEAD
from warren.amqp.methods import MalformedMethod, Method, UnknownMethod, decode_method
from warren.mgmt.perf.errors import ProtocolFault
from warren.mgmt.perf.publication import MAGIC, STAMP, STAMPED_BYTES_MIN

FRAME_MAX = 128 * 1024
"""The frame size we ask for, which is RabbitMQ's own default."""

_KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_INDEX = struct.Struct(">I")
_TAG = struct.Struct(">Q")
_CONFIRM = struct.Struct(">QB")

_DELIVER = 60 << 16 | 60
_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120
_RETURN = 60 << 16 | 50


class Arrivals:
    """The contents of one read.

    `stamps` are the sending times of complete deliveries that have one; `confirms` are (delivery
    tag, multiple, is a nack).
    """

    __slots__ = (
        "body_bytes",
        "confirms",
        "deliveries",
        "last_tag",
        "methods",
        "returned",
        "stamps",
    )

    def __init__(self) -> None:
        self.deliveries = 0
        self.last_tag = 0
        self.body_bytes = 0
        self.stamps: list[int] = []
        self.confirms: list[tuple[int, bool, bool]] = []
        self.returned = 0
        self.methods: list[Method] = []


class Stream:
    """The octets that the broker sends on one connection with one channel."""

    __slots__ = ("_awaited", "_in_delivery", "_is_first_body", "_rest", "_stamp", "_tag")

    def __init__(self) -> None:
        self._rest = b""
        self._in_delivery = False
        self._is_first_body = False
        self._tag = 0
        self._stamp = 0
        self._awaited = 0

    def receive_data(self, data: bytes) -> Arrivals:
        """Count the frames in these octets. Raises `ProtocolFault` if they are not frames."""
        arrivals = Arrivals()
        if self._rest:
            data = self._rest + data
        try:
            end = self._read_frames(data, arrivals)
        except (IndexError, struct.error, MalformedMethod, UnknownMethod) as error:
            raise ProtocolFault(f"the broker sent a method that cannot be read: {error}") from error
        self._rest = data[end:]
        return arrivals

    def _read_frames(self, data: bytes, arrivals: Arrivals) -> int:
        """Read the complete frames; returns the offset after them."""
        end = len(data)
        offset = 0
        in_delivery = self._in_delivery
        is_first_body = self._is_first_body
        tag = self._tag
        stamp = self._stamp
        awaited = self._awaited
        deliveries = body_bytes = 0
        stamps = arrivals.stamps
        read_head = HEAD.unpack_from
        read_stamp = STAMP.unpack_from
        while end - offset >= OVERHEAD:
            kind, _, size = read_head(data, offset)
            start = offset + 7
            last = start + size
            if last >= end:
                _check_head(kind, size)
                break
            if data[last] != FRAME_END:
                raise ProtocolFault(
                    f"the broker sent a frame of type {kind} and {size} octets that ends in "
                    f"0x{data[last]:02X}, not 0x{END.hex().upper()}"
                )
            offset = last + 1
            if kind == BODY:
                if not in_delivery:
                    continue
                if is_first_body:
                    is_first_body = False
                    if size >= STAMPED_BYTES_MIN and data[start : start + 4] == MAGIC:
                        (stamp,) = read_stamp(data, start + 4)
                    else:
                        stamp = 0
                body_bytes += size
                awaited -= size
                if not awaited:
                    deliveries += 1
                    arrivals.last_tag = tag
                    if stamp:
                        stamps.append(stamp)
            elif kind == METHOD:
                (index,) = _INDEX.unpack_from(data, start)
                if index == _DELIVER:
                    in_delivery = True
                    (tag,) = _TAG.unpack_from(data, start + 5 + data[start + 4])
                elif index == _ACK or index == _NACK:
                    confirmed, bits = _CONFIRM.unpack_from(data, start + 4)
                    arrivals.confirms.append((confirmed, bool(bits & 1), index == _NACK))
                elif index == _RETURN:
                    in_delivery = False
                    arrivals.returned += 1
                else:
                    arrivals.methods.append(decode_method(data[start:last]))
            elif kind == HEADER:
                (awaited,) = _TAG.unpack_from(data, start + 4)
                is_first_body = True
                if in_delivery and not awaited:
                    deliveries += 1
                    arrivals.last_tag = tag
            elif kind != HEARTBEAT:
                _check_head(kind, size)
        arrivals.deliveries = deliveries
        arrivals.body_bytes = body_bytes
        self._in_delivery = in_delivery
        self._is_first_body = is_first_body
        self._tag = tag
        self._stamp = stamp
        self._awaited = awaited
        return offset


def _check_head(kind: int, size: int) -> None:
    if kind not in _KINDS or size > FRAME_MAX:
        raise ProtocolFault(
            f"this is no AMQP 0-9-1 broker: it sent a frame of type {kind} and {size} octets"
        )
