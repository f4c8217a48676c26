"""The client's side of AMQP against a broker that is a list of frames."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import base, commands, frame, header

from warren.client.events import (
    Answered,
    Cancelled,
    ChannelClosed,
    ConnectionEnded,
    Delivered,
    Event,
    Opened,
    PublishesConfirmed,
    PublishingBlocked,
    PublishRefused,
)
from warren.client.frames import HEARTBEAT_FRAME, method_frame
from warren.client.handshake import PROTOCOL_HEADER, SILENCES_MAX, Login, Tuning
from warren.client.protocol import ANSWER_S, ClientProtocol, Phase

START = (commands.Connection.Start(mechanisms="PLAIN EXTERNAL"), 0)
TUNE = (commands.Connection.Tune(2047, 65536, 60), 0)
OPEN_OK = (commands.Connection.OpenOk(), 0)
PERSISTENT = b"\x00\x3c\0\0" + bytes(8) + b"\x10\0\x02"
"""A content header of delivery mode 2, for an empty body."""


def octets(*frames: tuple[base.Frame, int]) -> bytes:
    return b"".join(frame.marshal(one, channel) for one, channel in frames)


def content(content_header: bytes, body: bytes = b"", *, channel: int = 1) -> bytes:
    number = channel.to_bytes(2, "big")
    sized = content_header[:4] + len(body).to_bytes(8, "big") + content_header[12:]
    parts = b"\x02" + number + len(sized).to_bytes(4, "big") + sized + b"\xce"
    if body:
        parts += b"\x03" + number + len(body).to_bytes(4, "big") + body + b"\xce"
    return parts


def login(mechanism: Any = "PLAIN") -> Login:
    return Login("guest", "secret", "/", "Shovel s", mechanism)


def opened(**tuning: int) -> ClientProtocol:
    protocol = ClientProtocol(login(), Tuning(**tuning), 0)
    assert protocol.receive_data(octets(START, TUNE, OPEN_OK), 0) == [Opened()]
    sent(protocol)
    return protocol


def with_channel(number: int = 1, *, confirms: bool = True) -> ClientProtocol:
    protocol = opened()
    protocol.ask(number, commands.Channel.Open, 0)
    protocol.receive_data(octets((commands.Channel.OpenOk(), number)), 0)
    if confirms:
        protocol.ask(number, commands.Confirm.Select, 0)
        protocol.receive_data(octets((commands.Confirm.SelectOk(), number)), 0)
    sent(protocol)
    return protocol


def sent(protocol: ClientProtocol) -> bytes:
    return b"".join(protocol.data_to_send(0))


def methods(data: bytes) -> list[Any]:
    found = []
    while data:
        length, _, method = frame.unmarshal(data)
        found.append(method)
        data = data[length:]
    return found


def publish(protocol: ClientProtocol, key: str, body: bytes = b"") -> int:
    content_header = PERSISTENT[:4] + len(body).to_bytes(8, "big") + PERSISTENT[12:]
    return protocol.publish(1, b"", key.encode(), content_header, body, mandatory=True)


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return octets((commands.Basic.Ack(tag, multiple), 1))


def nack(tag: int, *, multiple: bool = False) -> bytes:
    return octets((commands.Basic.Nack(tag, multiple), 1))


def returned(key: str, body: bytes = b"") -> bytes:
    return octets((commands.Basic.Return(312, "NO_ROUTE", "", key), 1)) + content(PERSISTENT, body)


# Opening


def test_login_with_a_password_sends_it_and_the_name_of_the_connection() -> None:
    protocol = ClientProtocol(login(), Tuning(heartbeat_s=10), 0)
    assert sent(protocol) == PROTOCOL_HEADER
    protocol.receive_data(octets(START), 0)
    (start_ok,) = methods(sent(protocol))
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", "\0guest\0secret")
    assert start_ok.client_properties["connection_name"] == "Shovel s"
    assert start_ok.client_properties["capabilities"]["authentication_failure_close"]


def test_external_login_sends_no_password() -> None:
    protocol = ClientProtocol(login("EXTERNAL"), Tuning(), 0)
    sent(protocol)
    protocol.receive_data(octets(START), 0)
    (start_ok,) = methods(sent(protocol))
    assert (start_ok.mechanism, start_ok.response) == ("EXTERNAL", "")


def test_mechanism_that_is_not_offered_ends_the_connection() -> None:
    protocol = ClientProtocol(login("EXTERNAL"), Tuning(), 0)
    events = protocol.receive_data(octets((commands.Connection.Start(mechanisms="PLAIN"), 0)), 0)
    assert events == [
        ConnectionEnded(0, "the broker sent the login mechanisms PLAIN, not EXTERNAL")
    ]


def test_the_smaller_of_both_wishes_counts() -> None:
    protocol = ClientProtocol(login(), Tuning(heartbeat_s=10, channel_max=5), 0)
    sent(protocol)
    protocol.receive_data(octets(START), 0)
    sent(protocol)
    protocol.receive_data(octets(TUNE), 0)
    tune_ok, opening = methods(sent(protocol))
    assert (tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat) == (5, 65536, 10)
    assert opening.virtual_host == "/"


def test_refused_login_says_why() -> None:
    protocol = ClientProtocol(login(), Tuning(), 0)
    protocol.receive_data(octets(START), 0)
    close = commands.Connection.Close(403, "ACCESS_REFUSED - no", 0, 0)
    assert protocol.receive_data(octets((close, 0)), 0) == [
        ConnectionEnded(403, "ACCESS_REFUSED - no")
    ]
    assert protocol.phase is Phase.CLOSED


def test_socket_that_closes_during_the_login_says_what_that_means() -> None:
    protocol = ClientProtocol(login(), Tuning(), 0)
    protocol.receive_data(octets(START), 0)
    (ended,) = protocol.receive_eof("the broker closed the socket")
    assert isinstance(ended, ConnectionEnded)
    assert ended.text == "the broker closed the socket, as some brokers do that refuse a login"


def test_octets_may_come_one_by_one() -> None:
    protocol = ClientProtocol(login(), Tuning(), 0)
    events: list[Event] = []
    for octet in octets(START, TUNE, OPEN_OK):
        events += protocol.receive_data(bytes((octet,)), 0)
    assert events == [Opened()]


# Questions


def test_answers_come_in_the_order_of_questions_by_channel() -> None:
    protocol = with_channel(confirms=False)
    protocol.ask(2, commands.Channel.Open, 0)
    protocol.ask(1, commands.Queue.Declare, 0, queue="q", passive=True)
    protocol.ask(1, commands.Basic.Qos, 0, prefetch_count=10)
    declared = commands.Queue.DeclareOk("q", 3, 1)
    events = protocol.receive_data(
        octets((declared, 1), (commands.Channel.OpenOk(), 2), (commands.Basic.QosOk(), 1)), 0
    )
    answers = [event for event in events if isinstance(event, Answered)]
    assert [(one.channel, one.method.name) for one in answers] == [
        (1, "Queue.DeclareOk"),
        (2, "Channel.OpenOk"),
        (1, "Basic.QosOk"),
    ]


def test_names_that_pamqp_refuses_are_sent() -> None:
    protocol = with_channel(confirms=False)
    protocol.ask(1, commands.Queue.Declare, 0, queue="wörter & spaces " * 10, passive=True)
    (declare,) = (frame.unmarshal(_with_plain_name(sent(protocol)))[2],)
    assert declare.passive


def _with_plain_name(data: bytes) -> bytes:
    """pamqp, which reads here, refuses the name that was sent."""
    size = data[13]
    return data[:14] + b"a" * size + data[14 + size :]


def test_name_that_is_too_long_is_refused_and_nothing_is_sent() -> None:
    protocol = with_channel(confirms=False)
    with pytest.raises(ValueError):
        protocol.ask(1, commands.Queue.Declare, 0, queue="a" * 256)
    assert sent(protocol) == b""


def test_answer_nobody_waits_for_ends_the_connection() -> None:
    protocol = with_channel()
    (ended,) = protocol.receive_data(octets((commands.Basic.QosOk(), 1)), 0)
    assert isinstance(ended, ConnectionEnded)
    assert "Basic.QosOk" in ended.text


def test_channel_that_was_closed_can_be_opened_again() -> None:
    protocol = with_channel()
    close = commands.Channel.Close(404, "NOT_FOUND - no queue 'q'", 50, 10)
    events = protocol.receive_data(octets((close, 1)), 0)
    assert events == [ChannelClosed(1, 404, "NOT_FOUND - no queue 'q'")]
    assert [method.name for method in methods(sent(protocol))] == ["Channel.CloseOk"]
    protocol.ask(1, commands.Channel.Open, 0)
    (answered,) = protocol.receive_data(octets((commands.Channel.OpenOk(), 1)), 0)
    assert isinstance(answered, Answered)


def test_deliveries_on_a_channel_that_is_being_closed_are_dropped() -> None:
    protocol = with_channel()
    protocol.ask(1, commands.Channel.Close, 0, reply_code=200, reply_text="", class_id=0,
                 method_id=0)  # fmt: skip
    deliver = commands.Basic.Deliver("c", 1, False, "", "q")
    data = (
        octets((deliver, 1)) + content(PERSISTENT, b"x") + octets((commands.Channel.CloseOk(), 1))
    )
    (answered,) = protocol.receive_data(data, 0)
    assert isinstance(answered, Answered)


# Messages


def test_delivery_has_its_octets_as_they_came() -> None:
    protocol = with_channel()
    deliver = octets((commands.Basic.Deliver("c", 7, True, "x", "k"), 1))
    body = bytes(range(256))
    events = protocol.receive_data(deliver + content(PERSISTENT, body), 0)
    sized = PERSISTENT[:4] + (256).to_bytes(8, "big") + PERSISTENT[12:]
    assert events == [Delivered(1, 7, True, b"x", b"k", sized, body)]


def test_body_of_several_frames_is_joined() -> None:
    protocol = with_channel()
    deliver = octets((commands.Basic.Deliver("c", 1, False, "", "q"), 1))
    sized = PERSISTENT[:4] + (4).to_bytes(8, "big") + PERSISTENT[12:]
    head = b"\x02\0\x01" + len(sized).to_bytes(4, "big") + sized + b"\xce"
    halves = b"\x03\0\x01\0\0\0\x02ab\xce" + b"\x03\0\x01\0\0\0\x02cd\xce"
    (event,) = protocol.receive_data(deliver + head + halves, 0)
    assert isinstance(event, Delivered)
    assert event.body == b"abcd"


def test_large_body_is_published_in_frames_the_broker_takes() -> None:
    protocol = with_channel()
    publish(protocol, "q", bytes(100_000))
    sizes = []
    data = sent(protocol)
    while data:
        size = int.from_bytes(data[3:7], "big")
        sizes.append((data[0], size))
        data = data[size + 8 :]
    assert sizes == [(1, 10), (2, 15), (3, 65528), (3, 34472)]


def test_properties_that_do_not_fit_a_frame_are_refused_before_anything_is_sent() -> None:
    protocol = with_channel()
    with pytest.raises(ValueError, match="do not fit"):
        protocol.publish(1, b"", b"q", bytes(70_000), b"", mandatory=True)
    assert sent(protocol) == b""
    assert protocol.unconfirmed(1) == 0


def test_cancel_of_the_broker_is_reported() -> None:
    protocol = with_channel()
    assert protocol.receive_data(octets((commands.Basic.Cancel("c", True), 1)), 0) == [
        Cancelled(1, "c")
    ]


def test_acks_and_nacks_say_multiple_and_requeue() -> None:
    protocol = with_channel()
    protocol.ack(1, 5, multiple=True)
    protocol.nack(1, 6, requeue=True)
    acked, nacked = methods(sent(protocol))
    assert (acked.delivery_tag, acked.multiple) == (5, True)
    assert (nacked.delivery_tag, nacked.multiple, nacked.requeue) == (6, False, True)


# Confirms


def test_confirms_in_any_order_end_each_publish_once() -> None:
    protocol = with_channel()
    assert [publish(protocol, "q") for _ in range(5)] == [1, 2, 3, 4, 5]
    assert protocol.receive_data(ack(4), 0) == [PublishesConfirmed(1, [4])]
    assert protocol.receive_data(ack(3, multiple=True), 0) == [PublishesConfirmed(1, [1, 2, 3])]
    assert protocol.receive_data(ack(0, multiple=True), 0) == [PublishesConfirmed(1, [5])]
    assert protocol.unconfirmed(1) == 0


def test_confirms_that_come_together_are_one_event() -> None:
    protocol = with_channel()
    for _ in range(3):
        publish(protocol, "q")
    assert protocol.receive_data(ack(1) + ack(3) + ack(2), 0) == [PublishesConfirmed(1, [1, 3, 2])]


def test_nacked_publishes_are_refused() -> None:
    protocol = with_channel()
    for _ in range(3):
        publish(protocol, "q")
    events = protocol.receive_data(ack(2) + nack(3, multiple=True), 0)
    assert events[0] == PublishesConfirmed(1, [2])
    assert [event.tag for event in events[1:] if isinstance(event, PublishRefused)] == [1, 3]


def test_returned_publish_is_refused_when_its_confirm_comes() -> None:
    protocol = with_channel()
    for key in ("a", "gone", "b"):
        publish(protocol, key)
    assert protocol.receive_data(returned("gone"), 0) == []
    events = protocol.receive_data(ack(3, multiple=True), 0)
    assert events == [PublishRefused(1, 2, "312 NO_ROUTE"), PublishesConfirmed(1, [1, 3])]


def test_equal_publishes_that_were_returned_are_refused_one_by_one() -> None:
    protocol = with_channel()
    for _ in range(3):
        publish(protocol, "gone")
    protocol.receive_data(returned("gone") + returned("gone"), 0)
    events = protocol.receive_data(ack(3, multiple=True), 0)
    assert [event.tag for event in events if isinstance(event, PublishRefused)] == [1, 2]
    assert events[-1] == PublishesConfirmed(1, [3])


def test_return_of_another_message_ends_the_connection() -> None:
    protocol = with_channel()
    publish(protocol, "a", b"one")
    (ended,) = protocol.receive_data(returned("a", b"two"), 0)
    assert isinstance(ended, ConnectionEnded)


@pytest.mark.parametrize("data", [ack(2), ack(0), ack(2, multiple=True), nack(7)])
def test_confirm_of_what_was_not_published_ends_the_connection(data: bytes) -> None:
    protocol = with_channel()
    publish(protocol, "q")
    (ended,) = protocol.receive_data(data, 0)
    assert isinstance(ended, ConnectionEnded)


def test_channel_without_confirms_has_no_tags() -> None:
    protocol = with_channel(confirms=False)
    assert publish(protocol, "q") == 0
    assert protocol.unconfirmed(1) == 0


# Ends


def test_blocking_and_its_end_are_reported() -> None:
    protocol = opened()
    events = protocol.receive_data(octets((commands.Connection.Blocked("low on memory"), 0)), 0)
    assert events == [PublishingBlocked("low on memory")]
    assert protocol.blocked == "low on memory"
    assert protocol.receive_data(octets((commands.Connection.Unblocked(), 0)), 0) == [
        PublishingBlocked(None)
    ]
    assert protocol.blocked is None


def test_close_of_the_broker_is_answered() -> None:
    protocol = opened()
    close = commands.Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0)
    assert protocol.receive_data(octets((close, 0)), 0) == [
        ConnectionEnded(320, "CONNECTION_FORCED - bye")
    ]
    assert [method.name for method in methods(sent(protocol))] == ["Connection.CloseOk"]


def test_own_close_ends_when_the_broker_has_answered() -> None:
    protocol = with_channel()
    protocol.close(0)
    assert [method.name for method in methods(sent(protocol))] == ["Connection.Close"]
    late = octets((commands.Connection.Unblocked(), 0))
    assert protocol.receive_data(late, 0) == []
    assert protocol.receive_data(octets((commands.Connection.CloseOk(), 0)), 0) == [
        ConnectionEnded(200, "Goodbye")
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\0\0\x08\0",
        b"\x01\0\0\xff\xff\xff\xff",
        b"\x09\0\0\0\0\0\0\xce",
        b"\x01\0\0\0\0\0\x01\0\xff",
        b"\x01\0\0\0\0\0\x04\0\x63\0\x63\xce",
        b"\x01\0\x01\0\0\0\x05\0\x3c\0\x3c\xff\xce",
        b"\x02\0\x01\0\0\0\x01\0\xce",
        b"\x03\0\x01\0\0\0\x01\0\xce",
        octets((commands.Basic.Ack(1), 9)),
    ],
)
def test_nonsense_ends_the_connection_and_never_raises(data: bytes) -> None:
    protocol = with_channel()
    events = protocol.receive_data(data + bytes(8), 0)
    assert isinstance(events[-1], ConnectionEnded)
    assert protocol.receive_data(b"more", 0) == []


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 6))
@example(1145, 1)
def test_damaged_frames_never_raise(seed: int, changes: int) -> None:
    random = Random(seed)
    protocol = with_channel()
    for _ in range(3):
        publish(protocol, "q", b"x")
    declared = (commands.Queue.DeclareOk("q", 3, 1), 1)
    protocol.ask(1, commands.Queue.Declare, 0, queue="q")
    data = bytearray(
        octets((commands.Basic.Deliver("c", 1, False, "x", "k"), 1))
        + content(PERSISTENT, b"body")
        + ack(1)
        + returned("q", b"x")
        + nack(3, multiple=True)
        + octets(declared, (commands.Connection.Blocked("r"), 0), (commands.Basic.Cancel("c"), 1))
        + octets((commands.Channel.Close(404, "t", 0, 0), 1))
    )
    for _ in range(changes):
        data[random.randrange(len(data))] = random.randrange(256)
    half = random.randrange(len(data))
    protocol.receive_data(bytes(data[:half]), 0)
    protocol.receive_data(bytes(data[half:]), 0)
    protocol.receive_eof("over")
    assert protocol.phase is Phase.CLOSED


# Time


def test_heartbeats_are_sent_when_nothing_else_was() -> None:
    protocol = opened(heartbeat_s=10)
    assert protocol.deadline() == 5
    protocol.receive_data(HEARTBEAT_FRAME, 5)
    assert protocol.tick(5) == []
    assert b"".join(protocol.data_to_send(5)) == HEARTBEAT_FRAME
    assert protocol.deadline() == 10


def test_silence_ends_the_connection() -> None:
    protocol = opened(heartbeat_s=10)
    (ended,) = protocol.tick(SILENCES_MAX * 10)
    assert isinstance(ended, ConnectionEnded)
    assert ended.text.startswith("heartbeat timeout")


def test_silence_says_nothing_while_nobody_listened() -> None:
    protocol = opened(heartbeat_s=10)
    protocol.did_not_listen(SILENCES_MAX * 10)
    assert protocol.tick(SILENCES_MAX * 10) == []
    (ended,) = protocol.tick(2 * SILENCES_MAX * 10)
    assert isinstance(ended, ConnectionEnded)


def test_answer_that_does_not_come_ends_the_connection() -> None:
    protocol = opened(heartbeat_s=0)
    assert protocol.deadline() is None
    protocol.ask(1, commands.Channel.Open, 7)
    assert protocol.deadline() == 7 + ANSWER_S
    (ended,) = protocol.tick(7 + ANSWER_S)
    assert isinstance(ended, ConnectionEnded)


def test_pamqp_knows_the_header_of_these_tests() -> None:
    assert isinstance(frame.unmarshal(content(PERSISTENT))[2], header.ContentHeader)


def test_arguments_that_are_octets_go_out_as_they_are() -> None:
    table = b"\0\0\0\x05\x01ks\0\x02"
    octets_sent = method_frame(
        2, commands.Exchange.Bind, destination="d", source="s", routing_key="k", arguments=table
    )
    _, channel, method = frame.unmarshal(octets_sent)
    assert channel == 2
    assert isinstance(method, commands.Exchange.Bind)
    assert (method.destination, method.source, method.arguments) == ("d", "s", {"k": 2})
    assert octets_sent.endswith(table + b"\xce")


def test_what_the_broker_says_of_itself_is_kept() -> None:
    protocol = ClientProtocol(login(), Tuning(), 0)
    start = commands.Connection.Start(
        mechanisms="PLAIN", server_properties={"cluster_name": "there"}
    )
    protocol.receive_data(octets((start, 0)), 0)
    assert protocol.server_properties["cluster_name"] == "there"
