"""connection.tune and its limits: reference 1.4."""

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawClient

AREA = "Connection: tuning"


def offered(raw: Raw) -> tuple[RawClient, int, int, int]:
    """A client with an unanswered offer: channels, frame size, heartbeat."""
    client = raw.connected()
    client.start()
    client.send_start_ok()
    tune = client.expect("connection.tune")
    return client, tune["channel_max"], tune["frame_max"], tune["heartbeat"]


def accepts(client: RawClient, channel_max: int, frame_max: int, heartbeat: int = 0) -> None:
    client.send_method(
        0,
        "connection.tune-ok",
        channel_max=channel_max,
        frame_max=frame_max,
        heartbeat=heartbeat,
    )
    client.send_method(0, "connection.open", virtual_host=client.broker.vhost)
    client.expect("connection.open-ok")


def test_offer_has_the_defaults_of_rabbitmq(raw: Raw) -> None:
    _, channel_max, frame_max, heartbeat = offered(raw)
    assert (channel_max, frame_max, heartbeat) == (2047, 131072, 60)


def test_smallest_legal_values_are_accepted(raw: Raw) -> None:
    client, _, _, _ = offered(raw)
    accepts(client, 1, 4096)


def test_values_as_offered_are_accepted(raw: Raw) -> None:
    client, channel_max, frame_max, heartbeat = offered(raw)
    accepts(client, channel_max, frame_max, heartbeat)


def test_heartbeat_of_the_client_wins_however_large(raw: Raw) -> None:
    client, channel_max, frame_max, _ = offered(raw)
    accepts(client, channel_max, frame_max, 65535)


@pytest.mark.slow
def test_values_out_of_range_are_dropped_silently_after_three_seconds(raw: Raw) -> None:
    """All of them wait at the same time. None gets a close frame."""
    clients = []
    for channel_max, frame_max in [(10, 4095), (10, 0), (10, 131073), (0, 8192), (2048, 8192)]:
        client, _, _, _ = offered(raw)
        client.send_method(
            0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=0
        )
        clients.append(client)
    assert 2.0 <= clients[0].expect_socket_closed(6.0) <= 6.0
    for client in clients[1:]:
        client.expect_socket_closed(3.0)


def test_channel_max_limits_the_count_not_the_number(raw: Raw) -> None:
    client = raw(channel_max=5)
    client.channel(4000).ping()
    client.channel(65535).ping()


def test_one_channel_too_many_closes_the_connection(raw: Raw) -> None:
    client = raw(channel_max=2)
    client.channel(1)
    client.channel(2)
    client.send_method(3, "channel.open")
    client.expect_close(
        530,
        "number of channels opened (2) has reached the negotiated channel_max (2)",
        offender=(0, 0),
    )


def test_one_channel_too_many_is_told_before_that_it_is_not_open(raw: Raw) -> None:
    client = raw(channel_max=1)
    client.channel(1)
    client.send_method(2, "basic.qos")
    client.expect_close(
        530,
        "number of channels opened (1) has reached the negotiated channel_max (1)",
        offender=(0, 0),
    )


def test_closed_channels_do_not_count(raw: Raw) -> None:
    client = raw(channel_max=1)
    for number in (1, 2, 3):
        client.channel(number).close()


def test_body_is_delivered_in_frames_of_the_negotiated_size(raw: Raw, names: Names) -> None:
    client = raw(frame_max=4096)
    channel = client.channel()
    queue = channel.own_queue()
    body = bytes(range(256)) * 40
    channel.publish(body, queue)
    channel.send("basic.get", queue=queue, no_ack=True)
    frames = [client.read_frame() for _ in range(5)]
    assert [frame.type for frame in frames] == [1, 2, 3, 3, 3]
    assert [len(frame.payload) for frame in frames[2:]] == [4088, 4088, len(body) - 2 * 4088]
    assert b"".join(frame.payload for frame in frames[2:]) == body


def test_body_of_exactly_one_frame_is_one_frame(raw: Raw) -> None:
    client = raw(frame_max=4096)
    channel = client.channel()
    queue = channel.own_queue()
    channel.publish(b"x" * 4088, queue)
    channel.send("basic.get", queue=queue, no_ack=True)
    assert [len(client.read_frame().payload) for _ in range(3)][2] == 4088
    channel.ping()


def test_empty_body_has_no_body_frame(raw: Raw) -> None:
    client = raw()
    channel = client.channel()
    queue = channel.own_queue()
    channel.publish(b"", queue)
    channel.send("basic.get", queue=queue, no_ack=True)
    assert [client.read_frame().type for _ in range(2)] == [1, 2]
    channel.ping()
