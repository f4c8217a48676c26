"""How connections end: reference 1.10."""

import time

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import PATIENCE_S, Silence

AREA = "Connection: closing"


def test_close_is_answered_and_the_socket_left_to_the_client(client: RawClient) -> None:
    client.send_method(0, "connection.close", reply_code=200, reply_text="bye")
    client.expect("connection.close-ok")
    # With heartbeats off the broker would leave the socket open for thirty seconds.
    with pytest.raises(Silence):
        client.read_frame(0.5)


def test_close_with_open_channels_and_consumers_is_answered(ch: RawChannel) -> None:
    ch.consume(ch.own_queue())
    ch.client.close()


def test_exclusive_queues_are_gone_before_close_ok(raw: Raw, names: Names) -> None:
    owner, other = raw(), raw().channel()
    queue = names.new()
    owner.channel().declare(queue, exclusive=True)
    owner.close()
    assert not other.queue_exists(queue)


def test_socket_is_closed_after_our_close_ok(client: RawClient) -> None:
    client.send_frame(5, 0, b"")
    client.expect_close(501, "type 5, all octets = <<>>: unknown_frame")
    client.expect_socket_closed(5.0)


def test_after_its_close_the_broker_ignores_all_but_close(ch: RawChannel) -> None:
    client = ch.client
    client.send_frame(5, 0, b"")
    client.expect("connection.close")
    ch.send("queue.declare")
    client.send_method(77, "channel.open")
    client.send_method(0, "connection.close", reply_code=200)
    client.expect("connection.close-ok")


@pytest.mark.parametrize(
    "name",
    ["connection.close-ok", "connection.start-ok", "connection.tune-ok", "connection.open"],
)
def test_connection_methods_out_of_turn_are_channel_errors(client: RawClient, name: str) -> None:
    client.send_method(0, name)
    client.expect_close(504, "unexpected method in connection state running")


@pytest.mark.parametrize("name", ["channel.open", "queue.declare", "basic.publish"])
def test_other_methods_on_channel_zero_are_channel_errors(client: RawClient, name: str) -> None:
    client.send_method(0, name)
    client.expect_close(504, "unexpected method in connection state running")


def test_lost_socket_requeues_what_was_unacked(raw: Raw, names: Names) -> None:
    lost, other = raw(), raw().channel()
    queue = names.new()
    channel = lost.channel()
    channel.declare(queue)
    channel.publish(b"m", queue)
    channel.got(queue, b"m", no_ack=False)
    lost.abandon()
    assert other.arriving(queue, 1)[0]["redelivered"] is True


def test_lost_socket_deletes_exclusive_queues(raw: Raw, names: Names) -> None:
    lost, other = raw(), raw().channel()
    queue = names.new()
    lost.channel().declare(queue, exclusive=True)
    lost.abandon()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # As long as the queue exists it is locked; later it is missing.
        other.send("queue.declare", queue=queue, passive=True)
        code = other.expect("channel.close")["reply_code"]
        other.send("channel.close-ok")
        other.call("channel.open")
        if code == 404 or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert code == 404


def name_of_connection(admin: Admin, name: str) -> str:
    """The broker's name of the connection whose client calls itself `name`; RabbitMQ may need
    seconds to show it."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not (found := admin.connections_named(name)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(found) == 1
    return found[0]


def test_operator_closes_connections_with_and_without_a_reason(
    raw: Raw, admin: Admin, names: Names
) -> None:
    first, second = names.new(), names.new()
    plain = raw(client_properties={"connection_name": first})
    reasoned = raw(client_properties={"connection_name": second})
    admin.call("DELETE", "connections", name_of_connection(admin, first))
    plain.expect_close(320, "Closed via management plugin", offender=(0, 0))
    admin.call("DELETE", "connections", name_of_connection(admin, second), reason="too noisy")
    reasoned.expect_close(320, "too noisy", offender=(0, 0))


def expect_vhost_gone(client: RawClient, vhost: str) -> None:
    """Two parts of RabbitMQ notice the deletion; the text is that of the first."""
    close = client.expect("connection.close", 0)
    assert (close["reply_code"], close["class_id"], close["method_id"]) == (320, 0, 0)
    texts = [f"CONNECTION_FORCED - vhost '{vhost}' is {how}" for how in ("deleted", "down")]
    assert close["reply_text"] in texts


def test_deleted_vhost_closes_its_connections(raw: Raw, admin: Admin, own_vhost: str) -> None:
    client = raw(vhost=own_vhost)
    client.channel()
    admin.call("DELETE", "vhosts", own_vhost)
    expect_vhost_gone(client, own_vhost)


def test_consumers_are_cancelled_before_their_vhost_goes(
    raw: Raw, admin: Admin, own_vhost: str
) -> None:
    channel = raw(vhost=own_vhost).channel()
    tag = channel.consume(channel.declare("q")["queue"])
    admin.call("DELETE", "vhosts", own_vhost)
    assert channel.expect("basic.cancel")["consumer_tag"] == tag
    expect_vhost_gone(channel.client, own_vhost)


def test_deleted_user_loses_his_connections(raw: Raw, admin: Admin, own_user: str) -> None:
    client = raw(user=own_user, password="secret")
    client.channel()
    admin.call("DELETE", "users", own_user)
    client.expect_close(320, f"user '{own_user}' is deleted", offender=(0, 0))
