"""How many octets of a queue's messages are unacknowledged.

Nothing is counted for this: the messages that clients hold are added up when a request asks for the
queue. Where that would take long, the next round of samples adds them up, in slices, and the result
is scaled to the number of unacknowledged messages at the time of a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.amqp.consumer import ChannelConsumer
from warren.core.messages.message import Message
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.http.slices import chunks

AT_ONCE = 20_000
"""The most messages that are looked at for one answer."""

CLIENTS_AT_ONCE = 100
"""Up to so many connections are searched for messages taken by basic.get."""

WANTED_S = 600.0
"""A queue that was not asked for in that time is not added up any more."""

LOOKED_AT = 256
"""Messages in one chunk."""


class UnackedOctets:
    """The unacknowledged octets of a node's queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._wanted: dict[LocalQueue, float] = {}
        # For each queue that was asked for: the messages found, and their octets.
        self._found: dict[LocalQueue, tuple[int, int]] = {}

    def of(self, queue: LocalQueue) -> int | None:
        """The octets; None if there are very many messages and no round has added them up yet."""
        if not queue.unacked:
            return 0
        octets = self._at_once(queue)
        if octets is not None:
            return octets
        self._wanted[queue] = self._node.clock.now()
        count, octets = self._found.get(queue, (0, 0))
        return octets * queue.unacked // count if count else None

    async def sample(self) -> None:
        """Add up the queues that were asked for and take long."""
        now = self._node.clock.now()
        self._wanted = {
            queue: asked_at
            for queue, asked_at in self._wanted.items()
            if now - asked_at < WANTED_S and not queue.deleted
        }
        wanted = set(self._wanted)
        found = dict.fromkeys(wanted, (0, 0))
        for messages in self._held(wanted) if wanted else ():
            async for chunk in chunks(messages, LOOKED_AT):
                for message in chunk:
                    # A message that was settled meanwhile has no holder.
                    queue = message.holder.queue if message.holder is not None else None
                    if queue in found:
                        count, octets = found[queue]
                        found[queue] = (count + 1, octets + message.body_bytes)
        self._found = found

    def _held(self, wanted: Collection[LocalQueue]) -> Iterator[list[Message]]:
        """The messages that clients hold: here channel by channel, then those of other nodes."""
        for channel in list(_channels(self._node)):
            yield list(channel.unacked.values())
        for queue in wanted:
            for held in self._node.held_afar(queue):
                yield list(held.messages.values())

    def _at_once(self, queue: LocalQueue) -> int | None:
        if queue.unacked > AT_ONCE:
            return None
        elsewhere = self._node.held_afar(queue)
        held = [message.body_bytes for afar in elsewhere for message in afar.messages.values()]
        consuming = {c.channel for c in queue.consumers if isinstance(c, ChannelConsumer)}
        for channels in (consuming, self._all_channels()):
            if sum([len(channel.unacked) for channel in channels]) > AT_ONCE:
                return None
            here = [
                message.body_bytes
                for channel in channels
                for message in channel.unacked.values()
                if message.holder.queue is queue
            ]
            if len(held) + len(here) == queue.unacked:
                return sum(held) + sum(here)
        return None

    def _all_channels(self) -> list[Channel]:
        """All channels, to find messages taken by basic.get; none if there are many clients."""
        return list(_channels(self._node)) if len(self._node.clients) <= CLIENTS_AT_ONCE else []


def _channels(node: Node) -> Iterator[Channel]:
    for client in node.clients:
        if isinstance(client, Connection):
            yield from client.channels.values()
