"""A channel to a server process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from server_process import ServerProcess

ARGUMENTS = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]


@contextmanager
def channel_of(server: ServerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        # The node may be gone: closing says so, and ends the socket all the same.
        with suppress(AMQPError):
            connection.close()
