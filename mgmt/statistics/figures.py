"""The figures sampled of each kind of object, as one tuple of numbers, and their names."""

from __future__ import annotations

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.core.exchanges.exchange import Exchange
from warren.core.messages.message_stats import MessageStats
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.statistics.history import Figures
from warren.mgmt.statistics.track import SampledKind

MESSAGES = len(MessageStats._fields)
"""The index of the first figure after the message stats."""

LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS = ("recv_oct", "send_oct")

MACHINE = ("mem_used", "disk_free", "fd_used", "sockets_used", "proc_used")
LEVELS = (*LENGTHS, *MACHINE)
"""Figures that may decrease; all others are counters."""

WAYS_OUT = (
    "messages_expired",
    "messages_dropped",
    "messages_rejected",
    "messages_refused",
    "messages_purged",
)
"""Messages that left queues without being consumed, or were refused by them; Warren's own."""

QUEUE = (*MessageStats._fields, *LENGTHS, *WAYS_OUT)
VHOST = (*MessageStats._fields, *LENGTHS, *OCTETS)
NODE = (
    *VHOST,
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
    *MACHINE,
)
EXCHANGE = ("publish_in", "publish_out")
CONNECTION = OCTETS


def queue_figures(queue: LocalQueue) -> Figures:
    ready, unacked = queue.backing.length, queue.unacked
    length = ready + unacked + queue.set_aside[0]
    return (*queue.stats(), length, ready, unacked, *queue.ways_out.counts())


def exchange_figures(exchange: Exchange) -> Figures:
    return (exchange.published_in, exchange.published_out)


def connection_figures(connection: Connection) -> Figures:
    return (connection.received_octets, connection.sent_octets)


def queue_activity(queue: LocalQueue) -> float:
    """A number that changes with any activity of the queue.

    The length counts by an irrational share, so its changes cannot cancel those of other counts.
    """
    moved = (
        queue.published
        + 2 * (queue.acked + queue.given_back)
        + queue.unacked
        + queue.got
        + queue.got_no_ack
        + queue.got_nothing
    )
    return moved + LENGTH_SHARE * queue.backing.length


def queue_key(queue: LocalQueue) -> tuple[str, str, int]:
    """The key of a queue; a later queue of the same name has another key."""
    return (queue.vhost_name, queue.name, queue.queue_id)


LENGTH_SHARE = 2**-0.5

QUEUES = SampledKind(QUEUE, queue_figures, queue_activity, LEVELS, queue_key)
EXCHANGES = SampledKind(EXCHANGE, exchange_figures, lambda exchange: exchange.published_in)
CHANNELS = SampledKind(MessageStats._fields, Channel.stats, lambda channel: sum(channel.stats()))
CONNECTIONS = SampledKind(
    CONNECTION, connection_figures, lambda one: one.received_octets + one.sent_octets
)
