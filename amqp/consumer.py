"""Deliveries: a consumer that writes the messages handed to it to its connection.

A delivery is three frames, written in parts. The parts that depend on exchange and routing key, and
the heads of frames, are kept from delivery to delivery. For messages that share an envelope, all
but the delivery tag and the body is one kept part.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol, cast

from warren.amqp.delivery_limit import DeliveryLimit
from warren.amqp.frames import END, HEAD, METHOD, OVERHEAD, FrameHeads, content_frames
from warren.amqp.peer import Peer
from warren.core.field import Table, to_octets
from warren.core.messages.message import Envelope, HeldQueue, Message, address_of
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.consumers import Blocked, ConsumedQueue, Consumer
from warren.core.queues.queue import Queue

_BASIC_DELIVER = struct.pack(">HH", 60, 60)
_pack_tag = struct.Struct(">Q").pack
_pack_tag_and_bit = struct.Struct(">Q?").pack
"""The delivery tag, and whether the message is redelivered."""
TAG_AND_BIT_OCTETS = 9
_PREFETCH = Blocked.PREFETCH


class DeliveringConnection(Protocol):
    """The part of a connection that deliveries use. `flush_requested`: it will be flushed soon."""

    output: list[bytes]
    frame_max: int
    flush_requested: bool
    peer: Peer

    @property
    def user_name(self) -> str: ...

    def request_flush(self) -> None: ...


class DeliveringChannel(Protocol):
    """The part of a channel that its consumers use."""

    number: int
    last_delivery_tag: int
    unacked: dict[int, Message]
    limit: DeliveryLimit | None
    redelivered: int
    header_heads: FrameHeads
    body_heads: FrameHeads

    @property
    def connection(self) -> DeliveringConnection: ...

    def may_have_from(self, queue: ConsumedQueue) -> None:
        """Note a queue that may hand out messages here."""
        ...

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """The queue of a consumer is gone."""
        ...

    def traced_as(self) -> TracedClient: ...


class Outdated:
    """The holder of messages that a consumer got before its queue moved to another leader."""

    __slots__ = ("limited", "queue")

    def __init__(self, queue: HeldQueue) -> None:
        self.queue = queue
        self.limited = True

    def settled(self, count: int) -> None:
        """Nothing to do: the new leader counts anew."""


class ChannelConsumer(Consumer):
    """A consumer of a channel of an AMQP connection."""

    __slots__ = (
        "_channel",
        "_envelope",
        "_head",
        "_heads",
        "_last_envelope",
        "_output",
        "_room",
        "_tail",
    )

    def __init__(
        self,
        channel: DeliveringChannel,
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
        self._room = channel.connection.frame_max - OVERHEAD
        tag_octets = to_octets(tag)
        start = _BASIC_DELIVER + bytes((len(tag_octets),)) + tag_octets
        self._heads = FrameHeads(METHOD, channel.number, after=start, more=TAG_AND_BIT_OCTETS)
        self._envelope: Envelope | None = None
        self._last_envelope: Envelope | None = None
        self._head = b""
        self._tail = b""

    @property
    def channel(self) -> DeliveringChannel:
        """The channel on which it was subscribed."""
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
        if channel.limit is not None:
            channel.limit.count(1)
        envelope = message.envelope
        if envelope is self._envelope and not message.redelivered:
            self._output += (self._head, _pack_tag(delivery_tag), self._tail, message.body, END)
        else:
            self._write(delivery_tag, envelope, message.body, message.redelivered)
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def take_many(self, messages: list[Message]) -> None:
        channel = self._channel
        output, write = self._output, self._write
        first_tag = channel.last_delivery_tag + 1
        channel.last_delivery_tag += len(messages)
        channel.unacked.update(enumerate(messages, first_tag))
        for delivery_tag, message in enumerate(messages, first_tag):
            message.holder = self
            envelope = message.envelope
            if envelope is self._envelope and not message.redelivered:
                output += (self._head, _pack_tag(delivery_tag), self._tail, message.body, END)
            else:
                write(delivery_tag, envelope, message.body, message.redelivered)
        self.unacked += len(messages)
        if self.unacked >= self.prefetch:
            self.block(_PREFETCH)
        if channel.limit is not None:
            channel.limit.count(len(messages))
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def send_many(self, envelopes: Sequence[Envelope], bodies: Sequence[bytes]) -> None:
        channel = self._channel
        output, write = self._output, self._write
        delivery_tag = channel.last_delivery_tag
        for envelope, body in zip(envelopes, bodies, strict=True):
            delivery_tag += 1
            if envelope is self._envelope:
                output += (self._head, _pack_tag(delivery_tag), self._tail, body, END)
            else:
                write(delivery_tag, envelope, body, False)
        channel.last_delivery_tag = delivery_tag
        if not channel.connection.flush_requested:
            channel.connection.request_flush()

    def capacity(self) -> int:
        room = self.prefetch - self.unacked
        limit = self._channel.limit
        return room if limit is None else min(room, limit.room)

    def leave(self) -> None:
        """The channel has ended, and the queue will forget this consumer in one of the next turns.

        Until then it takes one message at most. That message counts as unacknowledged even if the
        client asked for no acknowledgements, so that the channel gives it back.
        """
        self.__class__ = LeavingConsumer
        self.no_ack = False
        self.prefetch = self.unacked + 1

    def traced_as(self) -> TracedClient:
        return self._channel.traced_as()

    def cancelled(self) -> None:
        self._channel.consumer_cancelled(self)

    def move_to(self, queue: ConsumedQueue) -> None:
        held = Outdated(self.queue)
        for message in self._channel.unacked.values():
            if message.holder is self:
                message.holder = held
        self._channel.may_have_from(queue)
        self.unacked = 0
        of_queue = Blocked.NOT_ACTIVE | Blocked.MOVING | Blocked.CAUGHT_UP
        self.blocked &= ~(Blocked.PREFETCH | of_queue)
        self.queue = queue

    def _write(self, delivery_tag: int, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        """Write a delivery; from an envelope's second time on, keep the parts that do not
        change."""
        channel = self._channel
        if redelivered:
            channel.redelivered += 1
            self.queue.redelivered += 1
        address = envelope.address or _address(envelope)
        head = self._heads[len(address)]
        tag_and_bit = _pack_tag_and_bit(delivery_tag, redelivered)
        header = envelope.header
        size = len(body)
        header_head = channel.header_heads[len(header)]
        if not 0 < size <= self._room:
            self._output += (head, tag_and_bit, address, header_head, header)
            self._write_in_frames(body)
            return
        body_head = channel.body_heads[size]
        self._output += (
            head,
            tag_and_bit,
            address,
            header_head,
            header,
            body_head,
            body,
            END,
        )
        if envelope is self._last_envelope:
            self._envelope = envelope
            self._head = head
            self._tail = b"".join((b"\x00", address, header_head, header, body_head))
        self._last_envelope = envelope

    def _write_in_frames(self, body: bytes) -> None:
        """Write a body of no frame, or of several, behind the payload of its content header. Its
        octets are not copied: it may have a hundred megabytes."""
        heads, room = self._channel.body_heads, self._room
        output, octets = self._output, memoryview(body)
        for start in range(0, len(body), room):
            # The code that writes the parts takes any bytes-like object.
            piece = cast(bytes, octets[start : start + room])
            output += (heads[len(piece)], piece)
        output.append(END)


class LeavingConsumer(ChannelConsumer):
    """A consumer that is still in its queue though its channel has ended. Nothing that it takes is
    sent to the client.

    Messages that another node sends without waiting for acknowledgements are lost, like those that
    were on their way to the client.
    """

    __slots__ = ()

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        self._channel.last_delivery_tag += 1

    def send_many(self, envelopes: Sequence[Envelope], bodies: Sequence[bytes]) -> None:
        self._channel.last_delivery_tag += len(bodies)

    def take(self, message: Message) -> None:
        self.take_many([message])

    def take_many(self, messages: list[Message]) -> None:
        channel = self._channel
        channel.unacked.update(enumerate(messages, channel.last_delivery_tag + 1))
        channel.last_delivery_tag += len(messages)
        for message in messages:
            message.holder = self
        self.unacked += len(messages)
        if self.unacked >= self.prefetch:
            self.block(_PREFETCH)

    def capacity(self) -> int:
        return self.prefetch - self.unacked


def _address(envelope: Envelope) -> bytes:
    return address_of(to_octets(envelope.exchange), to_octets(envelope.routing_key))


def delivery_frames(
    channel: int, method: bytes, header: bytes, body: bytes, frame_max: int
) -> list[bytes]:
    """The frames of a method (basic.return, basic.get-ok) and its content, in parts."""
    return [
        HEAD.pack(METHOD, channel, len(method)) + method + END,
        *content_frames(channel, header, body, frame_max),
    ]
