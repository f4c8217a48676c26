"""What is sampled of each kind of thing, as one tuple of numbers, and what they are called."""

from __future__ import annotations

from warren.amqp.connection import Connection
from warren.core.exchange import Exchange
from warren.core.message_stats import MessageStats
from warren.core.queue import Queue
from warren.mgmt.statistics.history import Figures

MESSAGES = len(MessageStats._fields)
"""Where what follows the message stats begins."""

LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS = ("recv_oct", "send_oct")

WAYS_OUT = (
    "messages_expired",
    "messages_dropped",
    "messages_rejected",
    "messages_refused",
    "messages_purged",
)
"""What left queues, or never came in, without being taken; Warren's own."""

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
    "mem_used",
    "disk_free",
    "fd_used",
    "sockets_used",
    "proc_used",
)
EXCHANGE = ("publish_in", "publish_out")
CONNECTION = OCTETS


def queue_figures(queue: Queue) -> Figures:
    ready, unacked = queue.backing.length, queue.unacked
    length = ready + unacked + queue.kept_dead[0]
    return (*queue.stats(), length, ready, unacked, *queue.ways_out.counts())


def exchange_figures(exchange: Exchange) -> Figures:
    return (exchange.published_in, exchange.published_out)


def connection_figures(connection: Connection) -> Figures:
    return (connection.received_octets, connection.sent_octets)
