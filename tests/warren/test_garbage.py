"""Connections leave no cycles behind: the server's collector looks at old objects hardly ever."""

from __future__ import annotations

import gc
import socket
import time
from base64 import b64encode

import pika
import pytest
from aiohttp import web

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


def leave_in_the_middle(broker: Broker, path: str) -> None:
    """Ask for a long answer, read its beginning and close."""
    login = b64encode(b"guest:guest").decode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((broker.host, broker.http_port))
        client.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\n\r\n".encode()
        )
        assert client.recv(10) == b"HTTP/1.1 2"
        # The server has filled the buffers, and waits.
        time.sleep(0.3)


@pytest.mark.parametrize("path", ["/api/queues", "/metrics/per-object"])
def test_an_answer_that_its_client_left_is_freed_without_the_collector(path: str) -> None:
    with Broker(http_port=0) as broker:
        declare_queues(broker, 4000)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                leave_in_the_middle(broker, path)
            deadline = time.monotonic() + 20
            while requests_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert requests_alive() == []
        finally:
            gc.enable()


def declare_queues(broker: Broker, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    for number in range(count):
        channel.queue_declare(f"{number} {'with a long name ' * 10}")
    connection.close()


def requests_alive() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, web.Request)]
