"""Quorum queues for tests: declared, filled, and watched until they have settled.

A quorum queue handles acks and nacks later than it gets them: RabbitMQ may answer a basic.get
before it has handled the basic.nack that was sent first. So tests wait for the number of ready
messages.
"""

from typing import Any

from warren.compat_tests.api import Api, eventually
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

QUORUM = {"x-queue-type": "quorum"}


def quorum_queue(ch: RawChannel, names: Names, **arguments: Any) -> str:
    """Declare a new quorum queue; `x_max_length` becomes the argument `x-max-length`."""
    queue = names.new()
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    ch.declare(queue, durable=True, arguments={**QUORUM, **table})
    return queue


def fill(ch: RawChannel, queue: str, count: int) -> None:
    """Publish `0`, `1` and so on, and wait until they are there."""
    before = ch.ready(queue)
    for number in range(count):
        ch.publish(b"%d" % number, queue, delivery_mode=2)
    ch.becomes_ready(queue, before + count)


def take(ch: RawChannel, queue: str, count: int) -> list[int]:
    """Fetch `count` messages without settling them; returns their delivery tags."""
    return [ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(count)]


def contents(ch: RawChannel, queue: str, count: int) -> list[bytes]:
    """Wait until `count` messages are ready, and fetch them; returns their bodies."""
    ch.becomes_ready(queue, count)
    return [message.body for message in ch.arriving(queue, count)]


def shown(api: Api, vhost: str, queue: str, key: str, value: Any) -> dict[str, Any]:
    """Wait until `key` has this value in the API's description of the queue, and return that.
    RabbitMQ may need two rounds of its statistics."""
    row: dict[str, Any] = eventually(
        lambda: api.get("queues", vhost, queue), lambda row: row.get(key, _MISSING) == value
    )
    return row


_MISSING = object()
