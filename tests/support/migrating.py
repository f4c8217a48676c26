"""Two brokers, and moves from one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
import uvloop
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel

from warren import Broker
from warren.mgmt.migrate.command import migrate
from warren.mgmt.migrate.run import (
    MigrationProgress,
    MoveAudience,
    MoveOptions,
    QueueResult,
    move_messages,
)
from warren.mgmt.migrate.side import Side, side

Message = tuple[bytes, pika.BasicProperties]


def management(broker: Broker) -> str:
    return broker.http_url.replace("//", "//guest:guest@")


@contextmanager
def channel_at(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def declare(*brokers: Broker, queue: str, **options: Any) -> None:
    for broker in brokers:
        with channel_at(broker.url) as channel:
            channel.queue_declare(queue, durable=True, **options)


def publish(url: str, queue: str, *messages: Message) -> None:
    with channel_at(url) as channel:
        channel.tx_select()
        for body, properties in messages:
            channel.basic_publish("", queue, body, properties)
        channel.tx_commit()


def numbered(count: int, **properties: Any) -> list[Message]:
    return [
        (b"%d" % n, pika.BasicProperties(message_id=f"id-{n}", delivery_mode=2, **properties))
        for n in range(count)
    ]


def drain(url: str, queue: str) -> list[Message]:
    taken = []
    with channel_at(url) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return taken
            taken.append((body, properties))


def bodies(url: str, queue: str) -> list[bytes]:
    return [body for body, _ in drain(url, queue)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(migrate, arguments)


def move(source: Side, target: Side, **options: Any) -> dict[str, QueueResult]:
    audience = options.pop("audience", None)
    stop_when = options.pop("stop_when", None)

    async def work() -> list[QueueResult]:
        stop = asyncio.Event()
        if stop_when is not None:
            stop_when(stop)
        async with asyncio.timeout(60):
            return await move_messages(source, target, MoveOptions(**options), stop, audience)

    return {result.name: result for result in uvloop.run(work())}


def sides(source: Broker, target: Broker) -> tuple[Side, Side]:
    return side("source", management(source)), side("target", management(target))


class AfterMessages(MoveAudience):
    """Does something once when so many messages were moved."""

    def __init__(self, count: int, do: Callable[[], None]) -> None:
        self._count = count
        self._do: Callable[[], None] | None = do
        self.done = False

    def progress(self, progress: MigrationProgress) -> None:
        if progress.moved >= self._count and not self.done:
            self.done = True
            assert self._do is not None
            self._do()


def declare_delayed(broker: Broker, queue: str, *delays_ms: int) -> None:
    """An exchange `dly` that sends one message to the queue after each of these times."""
    with channel_at(broker.url) as channel:
        channel.exchange_declare(
            "dly", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        channel.queue_bind(queue, "dly")
        channel.confirm_delivery()
        for delay in delays_ms:
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
            channel.basic_publish("dly", "k", b"later", properties)
