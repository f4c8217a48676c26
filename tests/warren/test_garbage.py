"""Connections leave no cycles behind: the server's collector looks at old objects hardly ever."""

from __future__ import annotations

import gc
import time

import pika

from warren import Broker
from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.core.queues.local_queue import LocalQueue


def use(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(queue, lambda *_: None)
    channel.basic_publish("", queue, b"never acknowledged")
    connection.process_data_events(0.05)
    transactional = connection.channel()
    transactional.tx_select()
    transactional.basic_publish("", queue, b"never committed")
    connection.close()


def alive() -> list[object]:
    return [o for o in gc.get_objects() if isinstance(o, Connection | Channel | LocalQueue)]


def test_a_connection_that_ends_is_freed_without_the_collector(warren_broker: Broker) -> None:
    gc.collect()
    gc.disable()
    # Of tests in this process that end no connection, messages that were out keep some.
    before = {id(one) for one in alive()}

    def leftovers() -> list[object]:
        return [one for one in alive() if id(one) not in before]

    try:
        for _ in range(5):
            use(warren_broker)
        deadline = time.monotonic() + 20
        while leftovers() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert leftovers() == []
    finally:
        gc.enable()
