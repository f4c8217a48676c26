"""Deliveries: a consumer that writes what it is handed to its connection.

A delivery is three frames. All but the delivery tag and the body depend only on the envelope, so
they are kept for the envelope last delivered; a run of messages that share an envelope costs one
`struct.pack` and one list extension each.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from warren.amqp.frames import BODY, END, FRAME_END, HEAD, HEADER, METHOD, OVERHEAD, content_frames
from warren.core.consumers import Blocked, Consumer
from warren.core.field import Table
from warren.core.firehose import TracedClient
from warren.core.message import Envelope, Message
from warren.core.queue import Queue

if TYPE_CHECKING:
    from warren.amqp.channel import Channel

_BASIC_DELIVER = struct.pack(">HH", 60, 60)
_pack_tag = struct.Struct(">Q").pack
_pack_next_head = struct.Struct(">BBHI").pack
"""The end of one frame and the head of the next."""
_PREFETCH = Blocked.PREFETCH


def short_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return bytes((len(raw),)) + raw


class Outdated:
    """Holds what a consumer had got before its queue moved to another leader."""

    __slots__ = ("limited", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.limited = True

    def settled(self, count: int) -> None:
        """The new leader counts anew."""


class ChannelConsumer(Consumer):
    """A consumer of a channel of an AMQP connection."""

    __slots__ = (
        "_channel",
        "_envelope",
        "_exchange",
        "_head",
        "_last_envelope",
        "_method_tails",
        "_output",
        "_routing_key",
        "_tag_octets",
        "_tail",
    )

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: Table,
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive, priority, prefetch, arguments)
        self._channel = channel
        self._output = channel.connection.output
        self._tag_octets = short_string(tag)
        self._envelope: Envelope | None = None
        self._last_envelope: Envelope | None = None
        self._exchange: str | None = None
        self._routing_key: str | None = None
        self._head = b""
        self._method_tails = (b"", b"")
        self._tail = b""

    @property
    def channel(self) -> Channel:
        """The channel it was subscribed on."""
        return self._channel

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        channel = self._channel
        delivery_tag = channel.last_delivery_tag = channel.last_delivery_tag + 1
        if envelope is self._envelope and not redelivered:
            self._output += (self._head, _pack_tag(delivery_tag), self._tail, body, END)
        else:
            self._write(delivery_tag, envelope, body, redelivered)
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def take(self, message: Message) -> None:
        channel = self._channel
        delivery_tag = channel.last_delivery_tag = channel.last_delivery_tag + 1
        channel.unacked[delivery_tag] = message
        message.holder = self
        self.unacked += 1
        if self.unacked >= self.prefetch:
            self.block(_PREFETCH)
        if channel.limit:
            channel.count_limited(1)
        envelope = message.envelope
        if envelope is self._envelope and not message.redelivered:
            self._output += (self._head, _pack_tag(delivery_tag), self._tail, message.body, END)
        else:
            self._write(delivery_tag, envelope, message.body, message.redelivered)
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def take_many(self, messages: list[Message]) -> None:
        channel = self._channel
        unacked = channel.unacked
        output = self._output
        delivery_tag = channel.last_delivery_tag
        for message in messages:
            delivery_tag += 1
            unacked[delivery_tag] = message
            message.holder = self
            envelope = message.envelope
            if envelope is self._envelope and not message.redelivered:
                output += (self._head, _pack_tag(delivery_tag), self._tail, message.body, END)
            else:
                self._write(delivery_tag, envelope, message.body, message.redelivered)
        channel.last_delivery_tag = delivery_tag
        self.unacked += len(messages)
        if self.unacked >= self.prefetch:
            self.block(_PREFETCH)
        if channel.limit:
            channel.count_limited(len(messages))
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def capacity(self) -> int:
        room = self.prefetch - self.unacked
        channel = self._channel
        return min(room, channel.limit - channel.limited_unacked) if channel.limit else room

    def traced_as(self) -> TracedClient:
        return self._channel.traced_as()

    def cancelled(self) -> None:
        self._channel.consumer_cancelled(self)

    def move_to(self, queue: Queue) -> None:
        held = Outdated(self.queue)
        for message in self._channel.unacked.values():
            if message.holder is self:
                message.holder = held
        self._channel.may_have_from(queue)
        self.unacked = 0
        self.blocked &= ~(Blocked.PREFETCH | Blocked.NOT_ACTIVE | Blocked.MOVING)
        self.queue = queue

    def _write(self, delivery_tag: int, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        """Write a delivery; when its envelope comes a second time, keep what does not change."""
        if envelope.exchange is not self._exchange or envelope.routing_key is not self._routing_key:
            self._address(envelope)
        channel = self._channel
        if redelivered:
            channel.redelivered += 1
            self.queue.redelivered += 1
        number = channel.number
        header = envelope.header
        method_tail = self._method_tails[redelivered]
        frame_max = channel.connection.frame_max
        if not body or len(body) > frame_max - OVERHEAD:
            self._output += (self._head, _pack_tag(delivery_tag), method_tail)
            self._output += content_frames(number, header, body, frame_max)
            return
        header_head = HEAD.pack(HEADER, number, len(header))
        body_head = _pack_next_head(FRAME_END, BODY, number, len(body))
        tag = _pack_tag(delivery_tag)
        self._output += (self._head, tag, method_tail, header_head, header, body_head, body, END)
        if envelope is self._last_envelope and not redelivered:
            self._envelope = envelope
            self._tail = b"".join((method_tail, header_head, header, body_head))
        self._last_envelope = envelope

    def _address(self, envelope: Envelope) -> None:
        """Prepare the method frame for this exchange and routing key."""
        self._envelope = None
        self._exchange = envelope.exchange
        self._routing_key = envelope.routing_key
        names = short_string(envelope.exchange) + short_string(envelope.routing_key)
        start = _BASIC_DELIVER + self._tag_octets
        size = len(start) + 8 + 1 + len(names)
        self._head = HEAD.pack(METHOD, self._channel.number, size) + start
        self._method_tails = (b"\x00" + names + END, b"\x01" + names + END)


def delivery_frames(
    channel: int, method: bytes, header: bytes, body: bytes, frame_max: int
) -> list[bytes]:
    """A method that carries content (basic.return, basic.get-ok), with its content, in parts."""
    return [
        HEAD.pack(METHOD, channel, len(method)) + method + END,
        *content_frames(channel, header, body, frame_max),
    ]
