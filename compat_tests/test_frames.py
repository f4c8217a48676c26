"""Malformed and misplaced frames: reference 0 and 1.9. All of them close the connection."""

import contextlib
import struct

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.methods import METHODS, encode_header, encode_method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import BODY, HEADER, HEARTBEAT, METHOD, SocketClosed

AREA = "Frames"

PUBLISH = (60, 40)


def publishing(client: RawClient) -> int:
    """A channel on which basic.publish has just been sent: a content header has to follow."""
    channel = client.channel()
    channel.send("basic.publish", routing_key="nowhere")
    return channel.number


def test_wrong_end_octet_is_a_frame_error(client: RawClient) -> None:
    client.send_frame(METHOD, 1, b"abc", end=0xCD)
    client.expect_close(
        501, 'type 1, all octets = <<"abc">>: {invalid_frame_end_marker,205}', offender=(0, 0)
    )


def test_wrong_end_octet_shows_only_the_first_octets_of_a_long_payload(client: RawClient) -> None:
    client.send_frame(BODY, 1, b"abcdefghijklmnopqrstuvwxyz", end=0)
    client.expect_close(
        501,
        'type 3, first 16 octets = <<"abcdefghijklmnop">>: {invalid_frame_end_marker,0}',
    )


def test_too_large_payload_is_a_frame_error(raw: Raw) -> None:
    client = raw(frame_max=4096)
    client.send_bytes(struct.pack(">BHI", BODY, 1, 4097))
    client.expect_close(
        501, "type 3, all octets = <<>>: {frame_too_large,4097,4088}", offender=(0, 0)
    )


def test_payload_of_frame_max_is_tolerated(raw: Raw) -> None:
    """Eight bytes more than strictly legal, since the overhead of the frame counts as well."""
    client = raw(frame_max=4096)
    channel = client.channel()
    queue = channel.own_queue()
    channel.send("basic.publish", routing_key=queue)
    client.send_frame(HEADER, channel.number, encode_header({}, 4096))
    client.send_frame(BODY, channel.number, b"x" * 4096)
    assert len(channel.got(queue).body) == 4096


def test_unknown_frame_type_is_a_frame_error(client: RawClient) -> None:
    client.send_frame(5, 0, b"")
    client.expect_close(501, "type 5, all octets = <<>>: unknown_frame", offender=(0, 0))


def test_heartbeat_with_payload_is_a_frame_error(client: RawClient) -> None:
    client.send_frame(HEARTBEAT, 0, b"x")
    client.expect_close(501, 'type 8, all octets = <<"x">>: unknown_frame', offender=(0, 0))


def test_heartbeat_with_payload_on_a_channel_is_a_frame_error(client: RawClient) -> None:
    client.send_frame(HEARTBEAT, 1, b"x")
    client.expect_close(501, 'type 8, all octets = <<"x">>: unknown_frame', offender=(0, 0))


def test_heartbeat_on_a_channel_is_unexpected(client: RawClient) -> None:
    client.channel(1)
    client.send_frame(HEARTBEAT, 1, b"")
    client.expect_close(505, "type 8, all octets = <<>>", offender=(0, 0))


@pytest.mark.parametrize("type", [HEADER, BODY])
def test_content_on_channel_zero_is_unexpected(client: RawClient, type: int) -> None:
    client.send_frame(type, 0, b"x")
    # A header of one octet cannot be decoded, which makes it a frame error of its own kind.
    if type == BODY:
        client.expect_close(505, 'type 3, all octets = <<"x">>', offender=(0, 0))
    else:
        assert client.expect("connection.close")["reply_code"] in (501, 505)


@pytest.mark.parametrize(
    ("type", "payload"), [(HEADER, encode_header({}, 0)), (BODY, b"x")], ids=["header", "body"]
)
def test_content_where_a_method_is_due_is_unexpected(
    client: RawClient, type: int, payload: bytes
) -> None:
    channel = client.channel()
    client.send_frame(type, channel.number, payload)
    client.expect_close(505, "expected method frame, got non method frame instead", offender=(0, 0))


@pytest.mark.parametrize(
    ("type", "payload"),
    [(METHOD, encode_method("basic.qos", {})), (BODY, b"x")],
    ids=["method", "body"],
)
def test_anything_but_the_header_after_publish_is_unexpected(
    client: RawClient, type: int, payload: bytes
) -> None:
    client.send_frame(type, publishing(client), payload)
    client.expect_close(
        505,
        "expected content header for class 60, got non content header frame instead",
        offender=PUBLISH,
    )


def test_header_of_another_class_is_unexpected(client: RawClient) -> None:
    client.send_frame(HEADER, publishing(client), encode_header({}, 0, class_id=50))
    client.expect_close(
        505, "expected content header for class 60, got one for class 50 instead", offender=PUBLISH
    )


@pytest.mark.parametrize(
    ("type", "payload"),
    [(METHOD, encode_method("basic.qos", {})), (HEADER, encode_header({}, 1))],
    ids=["method", "header"],
)
def test_anything_but_a_body_after_the_header_is_unexpected(
    client: RawClient, type: int, payload: bytes
) -> None:
    number = publishing(client)
    client.send_frame(HEADER, number, encode_header({}, 3))
    client.send_frame(type, number, payload)
    client.expect_close(
        505,
        "expected content body, got non content body frame instead",
        offender=PUBLISH,
    )


def test_body_longer_than_announced_is_unexpected(client: RawClient) -> None:
    """RabbitMQ notices it at the next frame, so the test sends one."""
    number = publishing(client)
    client.send_frame(HEADER, number, encode_header({}, 2))
    client.send_frame(BODY, number, b"abc")
    client.send_method(number, "basic.qos")
    client.expect_close(
        505,
        "expected content body, got non content body frame instead",
        offender=PUBLISH,
    )


def test_body_may_come_in_any_number_of_frames(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.send("basic.publish", routing_key=queue)
    ch.client.send_frame(HEADER, ch.number, encode_header({}, 5))
    for piece in (b"a", b"", b"bc", b"de"):
        ch.client.send_frame(BODY, ch.number, piece)
    ch.got(queue, b"abcde")


def test_contents_of_two_channels_may_interleave(client: RawClient) -> None:
    one, two = client.channel(), client.channel()
    queue = one.own_queue()
    for channel in (one, two):
        channel.send("basic.publish", routing_key=queue)
    for channel in (one, two):
        client.send_frame(HEADER, channel.number, encode_header({}, 2))
    for piece in (b"1", b"2"):
        for channel in (two, one):
            client.send_frame(BODY, channel.number, piece)
    two.ping()
    one.ping()
    assert one.bodies(queue) == [b"12", b"12"]


def test_truncated_method_is_a_frame_error(client: RawClient) -> None:
    number = client.channel().number
    client.send_frame(METHOD, number, struct.pack(">HHH", 50, 10, 0))
    close = client.expect("connection.close")
    assert close["reply_code"] == 501
    assert close["reply_text"].startswith("FRAME_ERROR - cannot decode <<")


@pytest.mark.parametrize("type", [HEADER, BODY])
def test_content_on_a_channel_that_is_not_open_is_unexpected(client: RawClient, type: int) -> None:
    client.send_frame(type, 7, encode_header({}, 0))
    text = "expected method frame, got non method frame instead"
    client.expect_close(505, text, offender=(0, 0))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("queue.declare", b"\0\0"),
        ("basic.qos", b"abc"),
        ("basic.return", b""),
        ("connection.open-ok", b"\0abc"),
    ],
)
def test_close_names_the_method_that_cannot_be_read_and_shows_its_arguments(
    client: RawClient, name: str, arguments: bytes
) -> None:
    method = METHODS[name]
    ids = (method.class_id, method.method_id)
    number = client.channel().number
    client.send_frame(METHOD, number, struct.pack(">HH", *ids) + arguments)
    shown = ",".join(str(octet) for octet in arguments)
    client.expect_close(501, f"cannot decode <<{shown}>>", offender=ids)


@pytest.mark.parametrize("on_channel", [False, True], ids=["channel 0", "a channel"])
def test_method_without_a_whole_id_is_an_unknown_frame(client: RawClient, on_channel: bool) -> None:
    number = client.channel().number if on_channel else 0
    client.send_frame(METHOD, number, b"\0\x3c\0")
    text = "type 1, all octets = <<0,60,0>>: unknown_frame"
    client.expect_close(501, text, offender=(0, 0))


def test_content_header_without_a_whole_size_is_an_unknown_frame(ch: RawChannel) -> None:
    ch.send("basic.publish")
    ch.client.send_frame(HEADER, ch.number, b"\0\x3c\0\0")
    text = "type 2, all octets = <<0,60,0,0>>: unknown_frame"
    ch.client.expect_close(501, text, offender=(0, 0))


def test_truncated_method_on_channel_zero_is_an_internal_error(client: RawClient) -> None:
    client.send_frame(METHOD, 0, struct.pack(">HHH", 10, 50, 0))
    client.expect_close(541, None, offender=(0, 0))


def test_unknown_method_ends_the_connection(client: RawClient) -> None:
    """RabbitMQ crashes here and resets the socket; an error code is the better answer."""
    number = client.channel().number
    client.send_frame(METHOD, number, struct.pack(">HH", 60, 999))
    with contextlib.suppress(SocketClosed):
        assert client.expect("connection.close")["reply_code"] in (501, 503, 540)


def test_heartbeats_are_welcome_between_the_frames_of_a_content(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.send("basic.publish", routing_key=queue)
    ch.client.send_heartbeat()
    ch.client.send_frame(HEADER, ch.number, encode_header({}, 1))
    ch.client.send_heartbeat()
    ch.client.send_frame(BODY, ch.number, b"x")
    ch.got(queue, b"x")


def test_long_reply_text_is_cut_to_255_bytes(ch: RawChannel) -> None:
    name = "n" * 250
    ch.send("queue.declare", queue=name, passive=True)
    text = ch.expect("channel.close")["reply_text"]
    assert text == f"NOT_FOUND - no queue '{name}"[:252] + "..."
