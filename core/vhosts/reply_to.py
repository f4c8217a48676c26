"""Direct reply-to (amqp_semantics.md section 8): replies that go to a channel without a queue.

A channel that consumes from the pseudo queue amq.rabbitmq.reply-to gets an address; a publish to
the default exchange with that routing key is delivered straight to it.
"""

from __future__ import annotations

from typing import Protocol

from warren.core.messages.message import Envelope
from warren.core.scheduling.waiting import Waiting

REPLY_TO_NAME = "amq.rabbitmq.reply-to"
REPLY_TO = REPLY_TO_NAME.encode()
REPLY_TO_PREFIX = "amq.rabbitmq.reply-to."
NODE_MARK = "."
"""Between the token, which has none, and the node."""
ADDRESS_BYTES_MAX = 255
"""A reply address is used as a routing key, which has no more octets."""


class ReplyReceiver(Protocol):
    def deliver(self, envelope: Envelope, body: bytes) -> None: ...


class RepliesElsewhere(Protocol):
    """The channels of other nodes."""

    def deliver(self, node: str, address: str, envelope: Envelope, body: bytes, /) -> None: ...

    def alive(self, node: str, address: str, /) -> Waiting[bool]: ...


class Replies:
    """The channels that wait for replies, by address.

    In a cluster an address ends in the name of its `node`, and what is for others goes `elsewhere`.
    """

    def __init__(self) -> None:
        self.node = ""
        self.elsewhere: RepliesElsewhere | None = None
        self._receivers: dict[str, ReplyReceiver] = {}

    def open(self, token: str, receiver: ReplyReceiver) -> str:
        """Register a channel; returns its address. The token must be unguessable."""
        address = REPLY_TO_PREFIX + token
        named = f"{address}{NODE_MARK}{self.node}"
        if self.elsewhere is not None and len(named.encode()) <= ADDRESS_BYTES_MAX:
            address = named
        self._receivers[address] = receiver
        return address

    def close(self, address: str) -> None:
        del self._receivers[address]

    async def alive(self, address: str) -> bool:
        node = self._node_of(address)
        if node and self.elsewhere is not None:
            return await self.elsewhere.alive(node, address)
        return address in self._receivers

    def deliver(self, address: str, envelope: Envelope, body: bytes) -> None:
        """Hand a reply to the channel with this address; dropped when that is gone."""
        receiver = self._receivers.get(address)
        if receiver is not None:
            receiver.deliver(envelope, body)
        elif self.elsewhere is not None and (node := self._node_of(address)):
            self.elsewhere.deliver(node, address, envelope, body)

    def _node_of(self, address: str) -> str:
        """The other node that has the channel; empty for one that is here, or nowhere."""
        node = address.removeprefix(REPLY_TO_PREFIX).partition(NODE_MARK)[2]
        return "" if node == self.node else node
