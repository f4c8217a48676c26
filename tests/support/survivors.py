"""What must hold on a node whatever a peer has sent: nothing of it stays behind, and nobody else
is any the worse.

`Stage` is a node with a witness on it; a fuzzed peer plays on the stage, is lost, and then
`check` looks around.
"""

from __future__ import annotations

import struct
from functools import partial

from pamqp import commands
from pipe import Broker, Client, publish_frames

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.amqp.guarded_clock import Guarded
from warren.amqp.heartbeat import Heartbeat
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.deadline import Deadline
from warren.core.vhosts.vhost import VirtualHost

CHANNEL_MAX = 8
FRAME_MAX = 4096
BUFFER_MAX = 64 * 1024
"""Octets a connection may keep of what it was sent: a frame, and what came in the same read."""


class Stage:
    """A broker, and a witness who publishes to itself and must go on getting it.

    On a stage that is `traced` another client listens to copies of everything.
    """

    def __init__(self, traced: bool = False) -> None:
        self.broker = Broker(channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, max_message_size=100_000)
        self.witness = self.broker.connects()
        self.witness.opens_channel(1)
        self.witness.declares("witness", exclusive=True)
        self.witness.consumes("witness")
        self.witness.selects_confirms()
        self._seen = 0
        if traced:
            self.broker.node.trace("/", True)
            self.witness.opens_channel(2)
            self.witness.declares("trace", channel=2, exclusive=True)
            self.witness.sends(
                commands.Queue.Bind,
                2,
                queue="trace",
                exchange="amq.rabbitmq.trace",
                routing_key="#",
            )
            self.witness.receives(commands.Queue.BindOk)
            self.witness.consumes("trace", channel=2, no_ack=True)

    def peer(self) -> Client:
        """A peer through the handshake, with channels 1 to 3 open."""
        peer = self.broker.connects(channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, heartbeat_s=60)
        peer.opens_channel(1)
        peer.opens_channel(2)
        peer.opens_channel(3)
        return peer

    def check_while_connected(self, peer: Client) -> None:
        """What the node keeps for the peer has limits."""
        connection = peer.connection
        assert len(connection._buffer) <= BUFFER_MAX, len(connection._buffer)
        assert connection.channel_count <= CHANNEL_MAX, connection.channel_count
        self.check_entities()

    def check_after(self, peer: Client) -> None:
        """The peer is lost: nothing of it is left, and the witness still gets its messages."""
        node = self.broker.node
        assert list(node.clients) == [self.witness.connection], node.clients
        assert not node.replies._receivers, node.replies._receivers
        mine = self.witness.connection
        for timer in self.broker.clock.timers:
            callback = timer.callback
            if isinstance(callback, Guarded):
                callback = callback.callback
            owner = getattr(callback, "__self__", None)
            if isinstance(callback, partial):
                # The timeout of a channel's deliveries.
                (owner,) = callback.args
            if isinstance(owner, Deadline):
                owner = getattr(owner.callback, "__self__", None)
            if isinstance(owner, LocalQueue):
                assert not owner.deleted, f"timer of the deleted queue {owner.name!r}"
            elif isinstance(owner, Heartbeat):
                assert owner is mine.heartbeat, timer.callback
            elif isinstance(owner, Channel):
                assert owner.connection is mine, timer.callback
            else:
                assert owner is mine, timer.callback
        for queue in self.broker.vhost.queues.values():
            if queue.exclusive_owner is mine:
                continue
            assert queue.exclusive_owner is None, queue.name
            assert not queue.consumers and not queue.ring.top, queue.name
            assert queue.active_consumer is None, queue.name
            assert queue.unacked == 0, (queue.name, queue.unacked)
        self.check_entities()
        self.check_witness()

    def check_entities(self) -> None:
        """The maps of the virtual host agree with each other and with the store."""
        check_vhost(self.broker.vhost)
        for kind, live in (
            ("queue", set(self.broker.vhost.queues)),
            (
                "exchange",
                {
                    name
                    for name in self.broker.vhost.exchanges
                    if name and not name.startswith("amq.")
                },
            ),
        ):
            stored = {record.key[2] for record in self.broker.metadata.records((kind, "/"))}
            assert stored == live, (kind, stored ^ live)

    def check_witness(self) -> None:
        self._seen += 1
        body = struct.pack(">Q", self._seen)
        self.witness.sends_octets(publish_frames(1, "", "witness", body))
        bodies = []
        confirmed = False
        self.broker.settle()
        for frame in self.witness.frames():
            if frame.kind == 3 and frame.channel == 1:
                bodies.append(frame.payload)
            elif frame.kind == 1:
                confirmed |= isinstance(frame.method, commands.Basic.Ack)
        assert confirmed, "the witness' publish is not confirmed"
        assert body in bodies, "the witness' message does not come back"
        self.witness.acks(0, multiple=True)


def check_vhost(vhost: VirtualHost) -> None:
    """Bindings have both their ends and are known to both; queues know their own numbers."""
    at_sources = {binding for x in vhost.exchanges.values() for binding in x.bindings}
    at_destinations = {
        b for bindings in vhost._contents.bindings._by_destination.values() for b in bindings
    }
    assert at_sources == at_destinations, at_sources ^ at_destinations
    for binding in at_sources:
        ends = vhost.queues if binding.destination_kind == "queue" else vhost.exchanges
        assert binding.destination in ends, binding
        assert binding.source in vhost.exchanges, binding
    owned = {name for queues in vhost._contents.exclusive._owned.values() for name in queues}
    assert owned == {q.name for q in vhost.queues.values() if q.exclusive_owner is not None}
    for queue in vhost.queues.values():
        in_ring = {c for level in queue.ring._levels.values() for c in level}
        assert in_ring == {c for c in queue.consumers if not c.blocked}, queue.name
        assert queue.backing.length >= 0 and queue.backing.ready_bytes >= 0, queue.name
        assert queue.unacked >= 0, queue.name


def connections_alive(objects: list[object]) -> int:
    return sum(isinstance(thing, Connection) for thing in objects)
