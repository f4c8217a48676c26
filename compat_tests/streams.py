"""Streams for tests: declared, filled with one confirmed message at a time, and read.

RabbitMQ delivers whole chunks; a message that is confirmed before the next one is published is a
chunk of its own.
"""

from typing import Any

from warren.compat_tests.methods import Method
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

STREAM = {"x-queue-type": "stream"}
OFFSET = "x-stream-offset"


def stream(ch: RawChannel, names: Names, **arguments: Any) -> str:
    """Declare a new stream; `x_max_age` becomes the argument `x-max-age`."""
    queue = names.new()
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    ch.declare(queue, durable=True, arguments={**STREAM, **table})
    return queue


def described(queue: str, vhost: str) -> str:
    return f"queue '{queue}' in vhost '{vhost}'"


def fill(ch: RawChannel, queue: str, count: int, first: int = 0, **properties: Any) -> None:
    """Publish `count` numbers over a channel of their own; each is confirmed before the next."""
    publisher = ch.client.channel()
    publisher.call("confirm.select")
    for number in range(first, first + count):
        publisher.publish(b"%d" % number, queue, **properties)
        publisher.confirms(1)
    publisher.close()


def read_from(ch: RawChannel, queue: str, offset: Any = None, prefetch: int = 100) -> str:
    """Start a reader; returns its tag."""
    ch.call("basic.qos", prefetch_count=prefetch)
    arguments = {} if offset is None else {OFFSET: offset}
    return ch.consume(queue, arguments=arguments)


def offset_of(delivery: Method) -> int:
    offset: int = delivery.headers[OFFSET]
    return offset


def read(ch: RawChannel, count: int) -> list[bytes]:
    """Wait for `count` deliveries and acknowledge each; returns their bodies."""
    bodies = []
    for _ in range(count):
        delivery = ch.delivery()
        bodies.append(delivery.body)
        ch.ack(delivery["delivery_tag"])
    return bodies
