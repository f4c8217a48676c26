"""Quorum queues for tests: declared, filled, and watched until they have settled.

A quorum queue deals with verdicts in its own time, and a RabbitMQ answers basic.get before it has
dealt with a basic.nack that came first. So tests wait for the number of ready messages.
"""

from typing import Any

from warren.compat_tests.api import Api, eventually
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

QUORUM = {"x-queue-type": "quorum"}


def quorum_queue(ch: RawChannel, names: Names, **arguments: Any) -> str:
    """A fresh quorum queue; `x_max_length` is `x-max-length`."""
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
    """Fetch so many messages and keep them; returns their delivery tags."""
    return [ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(count)]


def contents(ch: RawChannel, queue: str, count: int) -> list[bytes]:
    """The bodies of the messages, once so many are ready."""
    ch.becomes_ready(queue, count)
    return [message.body for message in ch.arriving(queue, count)]


def shown(api: Api, vhost: str, queue: str, key: str, value: Any) -> dict[str, Any]:
    """What the API shows of the queue once it shows this value, which may take two rounds."""
    row: dict[str, Any] = eventually(
        lambda: api.get("queues", vhost, queue), lambda row: row.get(key, _MISSING) == value
    )
    return row


_MISSING = object()
