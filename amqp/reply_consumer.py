"""The consumer of amq.rabbitmq.reply-to on a channel."""

from __future__ import annotations

from typing import Protocol

from pamqp import commands

from warren.amqp.methods import Method, make
from warren.core.messages.message import Envelope
from warren.core.node import Node


class ReplyChannel(Protocol):
    """The part of a channel that its reply consumer uses."""

    last_delivery_tag: int

    def write_content(self, method: Method, envelope: Envelope, body: bytes) -> None:
        """Write a method that carries content."""
        ...


class ReplyConsumer:
    """Writes replies to its channel. Each has the next delivery tag, but does not use it up:
    replies cannot be acknowledged."""

    __slots__ = ("_channel", "_replies", "address", "address_octets", "tag")

    def __init__(self, channel: ReplyChannel, tag: str, node: Node) -> None:
        self._channel = channel
        self._replies = node.replies
        self.tag = tag
        self.address = node.replies.open(node.new_token(), self)
        self.address_octets = self.address.encode()

    def deliver(self, envelope: Envelope, body: bytes) -> None:
        method = make(
            commands.Basic.Deliver,
            consumer_tag=self.tag,
            delivery_tag=self._channel.last_delivery_tag + 1,
            redelivered=False,
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
        )
        self._channel.write_content(method, envelope, body)

    def end(self) -> None:
        self._replies.close(self.address)
