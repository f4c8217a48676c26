"""pika, as its users use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from warren import Broker


@pytest.fixture
def channel(warren_broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(warren_broker.url))
    yield connection.channel()
    connection.close()


def own_queue(channel: BlockingChannel, **arguments: Any) -> str:
    name: str = channel.queue_declare("", exclusive=True, **arguments).method.queue
    return name


def test_messages_are_consumed_in_order_and_acknowledged(channel: BlockingChannel) -> None:
    queue = own_queue(channel)
    for number in range(1000):
        channel.basic_publish("", queue, b"%d" % number)
    received: list[bytes] = []

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        received.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(received) == 1000:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=50)
    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert received == [b"%d" % number for number in range(1000)]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_properties_and_headers_arrive_as_they_were_sent(channel: BlockingChannel) -> None:
    queue = own_queue(channel)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"text": "ü", "number": -7, "flag": True, "list": [1, "two"], "table": {"x": 1}},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.basic_publish("", queue, b"x" * 300_000, sent)
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method.message_count == 0 and len(body) == 300_000
    assert properties == sent
    assert channel.basic_get(queue) == (None, None, None)


def test_publishes_are_confirmed_and_returned(channel: BlockingChannel) -> None:
    queue = own_queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"fits", mandatory=True)
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"one too many")
    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    (returned,) = unroutable.value.messages
    assert returned.body == b"lost" and returned.method.reply_code == 312


def test_transactions_commit_and_roll_back(channel: BlockingChannel) -> None:
    queue = own_queue(channel)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.tx_commit()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"committed"


def test_deleting_a_queue_cancels_its_consumers(
    warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("doomed", durable=True)
    consumer = channel.consume("doomed", inactivity_timeout=30)
    with pika.BlockingConnection(pika.URLParameters(warren_broker.url)) as other:
        other.channel().basic_publish("", "doomed", b"last words")
        assert next(consumer)[2] == b"last words"
        other.channel().queue_delete("doomed")
    # The generator ends when the broker cancels its consumer.
    assert list(consumer) == []


def test_errors_close_the_channel_and_not_the_connection(
    warren_broker: Broker,
) -> None:
    with pika.BlockingConnection(pika.URLParameters(warren_broker.url)) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.queue_declare("missing", passive=True)
        assert closed.value.reply_code == 404
        assert closed.value.reply_text == "NOT_FOUND - no queue 'missing' in vhost '/'"
        assert connection.channel().queue_declare("made").method.queue == "made"


def test_a_wrong_password_is_an_authentication_error(warren_broker: Broker) -> None:
    url = warren_broker.url_for(password="wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(pika.URLParameters(url))


def test_users_and_virtual_hosts_of_the_embedded_broker_are_usable(warren_broker: Broker) -> None:
    warren_broker.add_vhost("ten ants/1")
    warren_broker.add_user("ant/1", "p@ss:word")
    warren_broker.set_permissions("ant/1", "ten ants/1", configure="^mine", write=".*", read="")
    url = warren_broker.url_for("ten ants/1", "ant/1", "p@ss:word")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("mine")
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.basic_get("mine")


def test_the_asynchronous_adapter_publishes_and_consumes(warren_broker: Broker) -> None:
    """`SelectConnection`: every step in the callback of the one before."""
    steps: list[str] = []

    def on_open(connection: pika.SelectConnection) -> None:
        steps.append("open")
        connection.channel(on_open_callback=on_channel)

    def on_channel(channel: Any) -> None:
        steps.append("channel")
        channel.confirm_delivery(lambda frame: steps.append(frame.method.NAME))
        channel.queue_declare("", exclusive=True, callback=lambda ok: on_queue(channel, ok))

    def on_queue(channel: Any, ok: Any) -> None:
        steps.append("queue")
        channel.basic_publish("", ok.method.queue, b"hello")
        channel.basic_consume(ok.method.queue, on_message)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        steps.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        channel.connection.close()

    connection = pika.SelectConnection(
        pika.URLParameters(warren_broker.url),
        on_open_callback=on_open,
        on_open_error_callback=lambda _, error: steps.append(repr(error)),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    assert steps[:3] == ["open", "channel", "queue"]
    # Which of the two comes first is nobody's promise.
    assert sorted(steps[3:]) == ["Basic.Ack", "hello"]
