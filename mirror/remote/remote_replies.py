"""Direct replies to channels of other nodes: the address names the node of its channel."""

from __future__ import annotations

from typing import Any

from warren.core.errors import BrokerError
from warren.core.messages.message import Envelope
from warren.core.scheduling.waiting import Waiting
from warren.core.vhosts.reply_to import Replies
from warren.mirror.messages.calls import Calls

REPLY = "reply"
ALIVE = "reply.alive"


class RemoteReplies:
    """Implements `core.vhosts.reply_to.RepliesElsewhere`, and answers the other nodes."""

    def __init__(self, replies: Replies, node: str, calls: Calls) -> None:
        self._replies = replies
        self._calls = calls
        replies.node = node
        replies.elsewhere = self
        calls.serve(REPLY, self._delivered)
        calls.serve(ALIVE, self._asked)

    def deliver(self, node: str, address: str, envelope: Envelope, body: bytes) -> None:
        """Send a reply; as with a channel of this node, there is no answer whether it arrived."""
        self._calls.ask(
            node,
            REPLY,
            address,
            envelope.routing_key,
            envelope.header,
            envelope.persistent,
            envelope.priority,
            body,
        )

    async def alive(self, node: str, address: str) -> bool:
        try:
            return bool(await self._calls.ask(node, ALIVE, address))
        except BrokerError:
            return False

    def _delivered(self, _node: str, address: str, key: str, *facts: Any) -> Waiting[None]:
        header, persistent, priority, body = facts
        envelope = Envelope("", key, header, persistent, priority, None)
        return self._deliver(address, envelope, body)

    async def _deliver(self, address: str, envelope: Envelope, body: bytes) -> None:
        self._replies.deliver(address, envelope, body)

    async def _asked(self, _node: str, address: str) -> bool:
        return await self._replies.alive(address)
