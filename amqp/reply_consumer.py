"""The consumer of amq.rabbitmq.reply-to on a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from warren.amqp.methods import make
from warren.core.messages.message import Envelope

if TYPE_CHECKING:
    from warren.amqp.channel import Channel


class ReplyConsumer:
    """Writes replies to its channel. The delivery tag is the next one, and stays the next one."""

    __slots__ = ("_channel", "address", "address_octets", "tag")

    def __init__(self, channel: Channel, tag: str) -> None:
        self._channel = channel
        self.tag = tag
        node = channel.connection.node
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
        self._channel.connection.node.replies.close(self.address)
