"""Direct reply-to (amqp_semantics.md section 8): replies that go to a channel without a queue.

A channel that consumes from the pseudo queue amq.rabbitmq.reply-to gets an address; a publish to
the default exchange with that routing key is delivered straight to it.
"""

from __future__ import annotations

from typing import Protocol

from warren.core.messages.message import Envelope

REPLY_TO_NAME = "amq.rabbitmq.reply-to"
REPLY_TO = REPLY_TO_NAME.encode()
REPLY_TO_PREFIX = "amq.rabbitmq.reply-to."


class ReplyReceiver(Protocol):
    def deliver(self, envelope: Envelope, body: bytes) -> None: ...


class Replies:
    """The channels that wait for replies, by address."""

    def __init__(self) -> None:
        self._receivers: dict[str, ReplyReceiver] = {}

    def open(self, token: str, receiver: ReplyReceiver) -> str:
        """Register a channel; returns its address. The token must be unguessable."""
        address = REPLY_TO_PREFIX + token
        self._receivers[address] = receiver
        return address

    def close(self, address: str) -> None:
        del self._receivers[address]

    def alive(self, address: str) -> bool:
        return address in self._receivers

    def deliver(self, address: str, envelope: Envelope, body: bytes) -> None:
        """Hand a reply to the channel with this address; dropped when that is gone."""
        receiver = self._receivers.get(address)
        if receiver is not None:
            receiver.deliver(envelope, body)
