"""A channel to the broker of a test, and all that a queue there has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from warren import Broker


@contextmanager
def open_channel(broker: Broker) -> Iterator[BlockingChannel]:
    """With confirms. There are no heartbeats: Spark may keep a test busy for long."""
    parameters = pika.URLParameters(broker.url)
    parameters.heartbeat = 0
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


class Got(NamedTuple):
    method: Basic.GetOk
    properties: BasicProperties
    body: bytes


def drain(channel: BlockingChannel, queue: str) -> list[Got]:
    """Get all that is in the queue."""
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        assert properties is not None and body is not None
        found.append(Got(method, properties, body))
