"""Opening, closing and misusing channels: reference 2."""

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.methods import encode_header, encode_method
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import HEADER, METHOD

AREA = "Channels"


def in_error(client: RawClient) -> RawChannel:
    """A channel that the broker has closed, and whose close-ok has not been sent."""
    channel = client.channel()
    channel.send("queue.declare", queue="no-such-queue", passive=True)
    channel.expect("channel.close")
    return channel


def test_open_ok_carries_nothing(client: RawClient) -> None:
    client.send_method(1, "channel.open")
    assert client.expect("channel.open-ok", 1)["reserved_1"] == b""


def test_second_open_closes_the_connection(ch: RawChannel) -> None:
    ch.send("channel.open")
    ch.client.expect_close(504, "second 'channel.open' seen", offender=(20, 10))


def test_second_open_while_the_broker_is_closing_closes_the_connection(client: RawClient) -> None:
    in_error(client).send("channel.open")
    client.expect_close(504, "second 'channel.open' seen")


@pytest.mark.parametrize("name", ["queue.declare", "basic.get", "channel.flow", "tx.select"])
def test_method_before_open_closes_the_connection(client: RawClient, name: str) -> None:
    client.send_method(7, name, **({"queue": "q"} if name == "basic.get" else {}))
    client.expect_close(504, "expected 'channel.open'")


def test_closed_channel_must_be_opened_again(ch: RawChannel) -> None:
    ch.close()
    ch.send("queue.declare")
    ch.client.expect_close(504, "expected 'channel.open'")


def test_number_may_be_used_again_after_our_close(ch: RawChannel) -> None:
    ch.close()
    ch.call("channel.open")
    ch.ping()


def test_number_may_be_used_again_after_the_broker_closed_it(ch: RawChannel) -> None:
    ch.refused(
        404, f"no queue 'none' in vhost '{ch.client.broker.vhost}'", "basic.get", queue="none"
    )
    ch.ping()


def test_other_channels_survive_a_channel_error(client: RawClient) -> None:
    other = client.channel()
    in_error(client)
    other.ping()


def test_channel_in_error_ignores_methods_and_contents(client: RawClient) -> None:
    channel = in_error(client)
    channel.send("channel.flow", active=True)
    channel.publish(b"ignored", "nowhere", mandatory=True)
    channel.send("basic.qos", prefetch_size=1)
    channel.send("channel.close-ok")
    channel.call("channel.open")
    channel.ping()


def test_channel_in_error_answers_close(client: RawClient) -> None:
    channel = in_error(client)
    channel.close()
    channel.send("channel.close-ok")
    client.channel().ping()


def test_flow_on_is_answered(ch: RawChannel) -> None:
    assert ch.call("channel.flow", active=True)["active"] is True


def test_flow_off_is_not_implemented(ch: RawChannel) -> None:
    ch.send("channel.flow", active=False)
    ch.client.expect_close(540, "active=false", offender=(20, 20))


def test_access_request_gets_ticket_one(ch: RawChannel) -> None:
    assert ch.call("access.request", realm="/data", active=True)["ticket"] == 1


def test_tickets_are_ignored(ch: RawChannel) -> None:
    ch.call("queue.declare", ticket=4711, exclusive=True)


@pytest.mark.parametrize(
    "name", ["queue.declare-ok", "basic.consume-ok", "basic.deliver", "connection.open"]
)
def test_methods_the_broker_does_not_take_close_the_connection(ch: RawChannel, name: str) -> None:
    ch.send(name)
    if name == "basic.deliver":
        # The method carries content: the broker handles it when the content has come.
        ch.client.send_frame(HEADER, ch.number, encode_header({}, 0))
    ch.client.expect_close(503, "unimplemented method")


def test_close_requeues_unacked_messages_where_they_were(ch: RawChannel, client: RawClient) -> None:
    queue = ch.own_queue()
    for body in (b"1", b"2", b"3"):
        ch.publish(body, queue)
    other = client.channel()
    ch.ping()
    other.got(queue, b"1", no_ack=False)
    other.got(queue, b"2", no_ack=False)
    other.close()
    messages = [ch.got(queue, body) for body in (b"1", b"2", b"3")]
    assert [message["redelivered"] for message in messages] == [True, True, False]


def test_close_cancels_consumers_and_drops_auto_delete_queues_before_close_ok(
    client: RawClient, ch: RawChannel, names: Names
) -> None:
    kept, dropped = names.new(), names.new()
    other = client.channel()
    other.declare(kept)
    other.declare(dropped, auto_delete=True)
    other.consume(kept)
    other.consume(dropped)
    other.close()
    assert ch.consumers(kept) == 0
    assert not ch.queue_exists(dropped)


def test_methods_may_be_pipelined(ch: RawChannel) -> None:
    for number in range(20):
        ch.send("queue.declare", exclusive=True)
        ch.send("basic.qos", prefetch_count=number)
    for _ in range(20):
        ch.expect("queue.declare-ok")
        ch.expect("basic.qos-ok")


def test_last_declared_queue_is_meant_by_an_empty_name(ch: RawChannel) -> None:
    name = ch.own_queue()
    ch.publish(b"m", name)
    ch.got("", b"m")
    ch.consume("")
    assert ch.call("queue.purge")["message_count"] == 0
    ch.bind("", "amq.direct", "key")
    ch.call("queue.unbind", exchange="amq.direct", routing_key="key")
    ch.call("queue.delete")
    ch.expect("basic.cancel")
    assert not ch.queue_exists(name)


def test_passive_and_nowait_declares_count_as_declared(ch: RawChannel, names: Names) -> None:
    first, second = ch.own_queue(), names.new()
    ch.send("queue.declare", queue=second, exclusive=True, nowait=True)
    ch.publish(b"second", second)
    ch.got("", b"second")
    ch.declare(first, passive=True)
    ch.publish(b"first", first)
    ch.got("", b"first")


def test_empty_name_and_key_in_bind_both_mean_the_last_queue(ch: RawChannel) -> None:
    name = ch.own_queue()
    ch.bind("", "amq.direct", "")
    ch.publish(b"m", name, "amq.direct")
    ch.got(name, b"m")


@pytest.mark.parametrize(
    "name", ["basic.get", "basic.consume", "queue.purge", "queue.delete", "queue.bind"]
)
def test_empty_name_without_a_declared_queue_is_not_found(ch: RawChannel, name: str) -> None:
    fields = {"exchange": "amq.direct"} if name == "queue.bind" else {}
    ch.refused(404, "no previously declared queue", name, **fields)


def test_last_declared_queue_belongs_to_its_channel(client: RawClient, ch: RawChannel) -> None:
    client.channel().own_queue()
    ch.refused(404, "no previously declared queue", "basic.get")


def test_nowait_errors_still_close_the_channel(ch: RawChannel, vhost: str) -> None:
    ch.refused(
        404,
        f"no queue 'none' in vhost '{vhost}'",
        "queue.bind",
        queue="none",
        exchange="amq.direct",
        nowait=True,
    )


def test_nowait_success_is_silent(ch: RawChannel, names: Names) -> None:
    queue, exchange = names.new(), names.new()
    ch.send("queue.declare", queue=queue, nowait=True)
    ch.send("exchange.declare", exchange=exchange, type="direct", nowait=True)
    ch.send("queue.bind", queue=queue, exchange=exchange, routing_key="k", nowait=True)
    ch.send("exchange.bind", destination=exchange, source="amq.fanout", nowait=True)
    ch.send("exchange.unbind", destination=exchange, source="amq.fanout", nowait=True)
    ch.send("basic.consume", queue=queue, consumer_tag="t", nowait=True)
    ch.send("basic.cancel", consumer_tag="t", nowait=True)
    ch.send("queue.purge", queue=queue, nowait=True)
    ch.send("confirm.select", nowait=True)
    ch.send("exchange.delete", exchange=exchange, nowait=True)
    ch.send("queue.delete", queue=queue, nowait=True)
    ch.expect_silence()
    assert not ch.queue_exists(queue)


def test_channels_of_several_connections_are_apart(raw: Raw) -> None:
    one, two = raw().channel(1), raw().channel(1)
    one.close()
    two.ping()


def test_close_ok_on_a_channel_never_opened_is_an_error(client: RawClient) -> None:
    client.send_frame(METHOD, 7, encode_method("channel.close-ok", {}))
    client.expect_close(504, "expected 'channel.open'", offender=(20, 41))
