"""Acknowledgements of single messages that come one behind the other: most consumers send these.

They are recognised by their octets and settled together, so that a queue removes many messages in
one call. What comes of it is the same as if each had been served by itself.
"""

from __future__ import annotations

import struct
from typing import Final

from warren.amqp.channel import Channel
from warren.amqp.settling import FEW, SETTLED_PER_US, unknown_delivery_tag
from warren.amqp.verdict import Verdict
from warren.core.messages.message import Message

ACKS_MAX: Final = 512
"""Acknowledgements served together at most."""

_ACK_BYTES = 21
_TAG_AT = 11
"""The octets of the frame of a basic.ack, and the offset of the delivery tag in it."""

_TAG_AND_BITS = struct.Struct(">QB")
_BITS_BYTES = 2
"""The octets behind the tag: the bits, and the end of the frame."""


def serve_acks(channel: Channel, data: bytes, pos: int) -> int:
    """Serve a basic.ack, whose whole frame begins at `pos`. If it is for one message, serve those
    right behind it, too, that are for one message of the same channel each. Returns how many octets
    these further frames have.

    Raises `PreconditionFailed` for a tag that is not outstanding, when those before it are served.
    """
    delivery_tag, bits = _TAG_AND_BITS.unpack_from(data, pos + _TAG_AT)
    head = data[pos : pos + _TAG_AT]
    at = pos + _ACK_BYTES
    alone = bits & 1 or channel.transaction is not None or not data.startswith(head, at)
    if alone or channel.limit is not None:
        # With a limit for all its consumers, each message that is settled may wake many of them.
        channel.ack(delivery_tag, bits & 1 == 1)
        return 0
    tail = data[at - _BITS_BYTES : at]
    tags = [delivery_tag]
    while (
        data.startswith(head, at)
        and data.startswith(tail, at + _ACK_BYTES - _BITS_BYTES)
        and len(tags) < ACKS_MAX
    ):
        tags.append(int.from_bytes(data[at + _TAG_AT : at + _ACK_BYTES - _BITS_BYTES], "big"))
        at += _ACK_BYTES
    take = channel.unacked.pop
    messages: list[Message] = []
    for delivery_tag in tags:
        message = take(delivery_tag, None)
        if message is None:
            break
        messages.append(message)
    if len(messages) > FEW:
        channel.connection.node.turns.spend(len(messages) // SETTLED_PER_US)
    channel.settle(messages, Verdict.ACK)
    if len(messages) < len(tags):
        raise unknown_delivery_tag(delivery_tag)
    return at - pos - _ACK_BYTES
