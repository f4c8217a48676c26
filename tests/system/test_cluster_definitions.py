"""What a client has defined at one node of a cluster is there at all nodes when it is told so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from running_cluster import RunningCluster

ROUNDS = 60


@contextmanager
def channels(cluster: RunningCluster) -> Iterator[list[BlockingChannel]]:
    """A confirming channel at each node."""
    with ExitStack() as stack:
        opened = []
        for name in "abc":
            connection = pika.BlockingConnection(pika.URLParameters(cluster[name].url))
            stack.enter_context(connection)
            channel = connection.channel()
            channel.confirm_delivery()
            opened.append(channel)
        yield opened


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queue_takes_messages_of_all_nodes_once_it_is_declared(
    running_cluster: RunningCluster, kind: str
) -> None:
    with channels(running_cluster) as opened:
        for number in range(ROUNDS):
            here, *others = opened[number % 3 :] + opened[: number % 3]
            name = f"at once {number}"
            here.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            for channel in others:
                channel.basic_publish("", name, b"first", mandatory=True)
            assert others[0].queue_declare(name, passive=True).method.message_count == 2
            others[1].queue_delete(name)


def test_binding_counts_at_all_nodes_once_it_is_made(running_cluster: RunningCluster) -> None:
    with channels(running_cluster) as opened:
        opened[0].queue_declare("bound", durable=True)
        for number in range(ROUNDS):
            here, *others = opened[number % 3 :] + opened[: number % 3]
            exchange = f"at once {number}"
            here.exchange_declare(exchange, "fanout")
            others[0].queue_bind("bound", exchange)
            for channel in opened:
                channel.basic_publish(exchange, "", b"one", mandatory=True)
            others[1].exchange_delete(exchange)
        opened[0].queue_delete("bound")
