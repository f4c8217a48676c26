"""aio-pika, as its users use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from warren import Broker

PATIENCE_S = 30


@asynccontextmanager
async def channel_of(broker: Broker) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel(on_return_raises=True)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def test_publishes_are_confirmed_and_messages_iterated(warren_broker: Broker) -> None:
    async def test() -> None:
        async with channel_of(warren_broker) as channel:
            queue = await channel.declare_queue("work", durable=True)
            bodies = [b"%d" % number for number in range(200)]
            confirmations = await asyncio.gather(
                *(
                    channel.default_exchange.publish(
                        aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                        "work",
                    )
                    for body in bodies
                )
            )
            assert {type(confirmation).__name__ for confirmation in confirmations} == {"Ack"}
            received = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        received.append(message.body)
                    if len(received) == len(bodies):
                        break
            assert received == bodies

    run(test())


def test_unroutable_mandatory_messages_raise(warren_broker: Broker) -> None:
    async def test() -> None:
        async with channel_of(warren_broker) as channel:
            with pytest.raises(aio_pika.exceptions.PublishError):
                await channel.default_exchange.publish(aio_pika.Message(b"lost"), "nowhere")

    run(test())


def test_topic_and_headers_exchanges_route(warren_broker: Broker) -> None:
    async def test() -> None:
        async with channel_of(warren_broker) as channel:
            topic = await channel.declare_exchange("t", aio_pika.ExchangeType.TOPIC)
            headers = await channel.declare_exchange("h", aio_pika.ExchangeType.HEADERS)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(topic, "*.error.#")
            await queue.bind(headers, "", arguments={"x-match": "all", "colour": "red"})
            for key in ("db.error", "db.error.disk.full", "db.info"):
                await topic.publish(aio_pika.Message(key.encode()), key, mandatory=False)
            for colour in ("red", "blue"):
                message = aio_pika.Message(colour.encode(), headers={"colour": colour})
                await headers.publish(message, "", mandatory=False)
            received = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                received.append(message.body)
            assert received == [b"db.error", b"db.error.disk.full", b"red"]

    run(test())


def test_remote_procedure_calls_answer_through_direct_reply_to(warren_broker: Broker) -> None:
    async def test() -> None:
        async with channel_of(warren_broker) as server, channel_of(warren_broker) as client:
            requests = await server.declare_queue("square")

            async def answer(request: AbstractIncomingMessage) -> None:
                async with request.process():
                    assert request.reply_to is not None
                    assert request.reply_to.startswith("amq.rabbitmq.reply-to.")
                    reply = aio_pika.Message(
                        b"%d" % (int(request.body) ** 2),
                        correlation_id=request.correlation_id,
                    )
                    await server.default_exchange.publish(reply, request.reply_to, mandatory=False)

            await requests.consume(answer)
            replies: asyncio.Queue[tuple[str | None, bytes]] = asyncio.Queue()

            async def on_reply(reply: AbstractIncomingMessage) -> None:
                replies.put_nowait((reply.correlation_id, reply.body))

            reply_to = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
            await reply_to.consume(on_reply, no_ack=True)
            for number in range(5):
                request = aio_pika.Message(
                    b"%d" % number, correlation_id=str(number), reply_to="amq.rabbitmq.reply-to"
                )
                await client.default_exchange.publish(request, "square")
            answers = dict([await replies.get() for _ in range(5)])
            assert answers == {str(n): b"%d" % (n * n) for n in range(5)}

    run(test())


def test_a_robust_connection_comes_back_with_its_consumers(warren_broker: Broker) -> None:
    """The broker closes the connection; queue, binding and consumer are declared anew."""

    async def test() -> None:
        connection = await aio_pika.connect_robust(warren_broker.url, reconnect_interval=0.05)
        async with connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("e", auto_delete=True)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchange, "key")
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                received.put_nowait(message.body)
                await message.ack()

            await queue.consume(on_message)
            await exchange.publish(aio_pika.Message(b"before"), "key")
            assert await received.get() == b"before"
            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: reconnected.set())
            await asyncio.to_thread(warren_broker.call, lambda node: node.close_all("for the test"))
            await reconnected.wait()
            async with channel_of(warren_broker) as other:
                again = await other.get_exchange("e")
                await again.publish(aio_pika.Message(b"after"), "key")
            assert await received.get() == b"after"

    run(test())
