"""The publishing side of AMQP against a peer that is a list of frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands, frame, header, heartbeat

from warren.amqp.properties import encode_properties
from warren.client.handshake import PROTOCOL_HEADER, SILENCES_MAX, Login
from warren.spark_export.sink.encoded_rows import EncodedRows
from warren.spark_export.sink.publisher_protocol import (
    Patience,
    PublisherProtocol,
    SinkPhase,
)

PATIENCE = Patience(confirm_s=60, connect_s=30, heartbeat_s=20)

OPENING = (
    (commands.Connection.Start(mechanisms="PLAIN AMQPLAIN"), 0),
    (commands.Connection.Tune(2047, 65536, 60), 0),
    (commands.Connection.OpenOk(), 0),
    (commands.Channel.OpenOk(), 1),
    (commands.Confirm.SelectOk(), 1),
)


def octets(*frames: tuple[base.Frame, int]) -> bytes:
    return b"".join(frame.marshal(one, channel) for one, channel in frames)


def rows(count: int, first_row: int = 0) -> EncodedRows:
    """Row n publishes to key `k<n>` with message id `m<n>`."""
    parts = []
    for number in range(first_row, first_row + count):
        publish = commands.Basic.Publish(exchange="trade", routing_key=f"k{number}")
        properties = encode_properties(1, {"message_id": f"m{number}", "correlation_id": "c"})
        parts.append(
            octets((publish, 1))
            + b"\x02\0\x01"
            + len(properties).to_bytes(4, "big")
            + properties
            + b"\xce\x03\0\x01\0\0\0\x01x\xce"
        )
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return EncodedRows(memoryview(b"".join(parts)), offsets, first_row)


def opened(*, confirms: bool = True, patience: Patience = PATIENCE) -> PublisherProtocol:
    login = Login("guest", "secret", "/", "a test")
    protocol = PublisherProtocol(login, patience, confirms=confirms, now=0)
    for method, channel in OPENING[: 5 if confirms else 4]:
        protocol.receive_data(octets((method, channel)), 0)
    assert protocol.ready
    protocol.data_to_send()
    return protocol


def publishing(count: int) -> PublisherProtocol:
    """One that waits for so many confirms."""
    protocol = opened()
    protocol.published(rows(count), 0, count, 0)
    return protocol


def sent(data: bytes) -> list[Any]:
    """The methods in what was sent."""
    methods = []
    while data:
        consumed, _, one = frame.unmarshal(data)
        methods.append(one)
        data = data[consumed:]
    return methods


def ack(tag: int, multiple: bool = False) -> tuple[base.Frame, int]:
    return commands.Basic.Ack(tag, multiple), 1


def nack(tag: int, multiple: bool = False) -> tuple[base.Frame, int]:
    return commands.Basic.Nack(tag, multiple, False), 1


def returned(number: int) -> bytes:
    """What comes back of row n."""
    method = commands.Basic.Return(312, "NO_ROUTE", "trade", f"k{number}")
    properties = commands.Basic.Properties(message_id=f"m{number}", correlation_id="c")
    content = header.ContentHeader(0, 1, properties)
    body = b"\x03\0\x01\0\0\0\x01x\xce"
    return octets((method, 1)) + frame.marshal(content, 1) + body


def test_it_logs_in_and_asks_for_confirms() -> None:
    protocol = PublisherProtocol(
        Login("mary", "secret", "shop", "an import"), PATIENCE, confirms=True, now=0
    )
    assert protocol.data_to_send() == PROTOCOL_HEADER
    said = []
    for method, channel in OPENING:
        assert not protocol.ready
        protocol.receive_data(octets((method, channel)), 0)
        said.append(sent(protocol.data_to_send()))
    assert protocol.ready
    (start_ok,), (tune_ok, open_vhost), (open_channel,), (select,), nothing = said
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", "\0mary\0secret")
    assert start_ok.client_properties["connection_name"] == "an import"
    assert start_ok.client_properties["capabilities"]["connection.blocked"] is True
    assert (tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat) == (1, 65536, 20)
    assert open_vhost.virtual_host == "shop"
    assert isinstance(open_channel, commands.Channel.Open)
    assert isinstance(select, commands.Confirm.Select)
    assert nothing == []
    assert protocol.frame_max == 65536


def test_the_name_of_a_virtual_host_may_have_255_octets() -> None:
    vhost = "v" * 255
    protocol = PublisherProtocol(Login("mary", "secret", vhost, ""), PATIENCE, confirms=True, now=0)
    protocol.receive_data(octets(*OPENING[:2]), 0)
    assert vhost.encode() in protocol.data_to_send()
    assert protocol.phase is SinkPhase.AWAITING_OPEN_OK


@given(
    data=st.data(),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    cut=st.integers(1, 40),
)
def test_any_order_of_acks_confirms_each_message_once(
    data: st.DataObject, sizes: list[int], cut: int
) -> None:
    """Against a model that is a set of tags; frames come cut into pieces."""
    protocol = opened()
    waiting: set[int] = set()
    portions = [rows(size, sum(sizes[:at])) for at, size in enumerate(sizes)]
    next_tag = 1
    while portions or waiting:
        if portions and (not waiting or data.draw(st.booleans())):
            portion = portions.pop(0)
            protocol.published(portion, 0, len(portion), 0)
            waiting |= set(range(next_tag, next_tag + len(portion)))
            next_tag += len(portion)
        else:
            multiple = data.draw(st.booleans())
            tag = data.draw(st.sampled_from(sorted(waiting)))
            if multiple and data.draw(st.booleans()):
                tag = 0
            waiting -= {one for one in waiting if one <= (tag or next_tag)} if multiple else {tag}
            received = octets(ack(tag, multiple))
            protocol.receive_data(received[:cut], 0)
            protocol.receive_data(received[cut:], 0)
        assert protocol.unconfirmed == len(waiting)
        assert protocol.failure is None


@given(
    count=st.integers(1, 12),
    data=st.data(),
    kind=st.sampled_from(["nack", "nack multiple", "return", "again"]),
)
def test_whatever_else_comes_among_acks_fails_and_names_the_row(
    count: int, data: st.DataObject, kind: str
) -> None:
    protocol = publishing(count)
    waiting = list(range(1, count + 1))
    for tag in data.draw(st.lists(st.sampled_from(waiting), max_size=count - 1, unique=True)):
        protocol.receive_data(octets(ack(tag)), 0)
        waiting.remove(tag)
    assert protocol.failure is None
    tag = data.draw(st.sampled_from(waiting))
    if kind == "nack":
        protocol.receive_data(octets(nack(tag)), 0)
        row, text = tag - 1, "was nacked"
    elif kind == "nack multiple":
        protocol.receive_data(octets(nack(tag, True)), 0)
        row, text = waiting[0] - 1, "was nacked"
    elif kind == "return":
        protocol.receive_data(returned(tag - 1), 0)
        row, text = tag - 1, "was returned: 312 NO_ROUTE"
    else:
        protocol.receive_data(octets(ack(tag), ack(tag)), 0)
        assert protocol.failure is not None
        assert f"an ack of tag {tag}, which was not waited for" in protocol.failure
        return
    assert protocol.failure is not None
    assert f"row {row} " in protocol.failure
    assert text in protocol.failure
    assert f"exchange 'trade', routing key 'k{row}', message id 'm{row}'" in protocol.failure


@pytest.mark.parametrize("tag", [0, 4, 1 << 60])
def test_an_ack_of_what_was_not_sent_is_a_failure(tag: int) -> None:
    protocol = publishing(3)
    protocol.receive_data(octets(ack(tag, multiple=tag != 0)), 0)
    assert protocol.failure is not None
    assert protocol.phase is SinkPhase.CLOSED


def test_a_broker_that_closes_the_channel_says_why() -> None:
    """It refused a message: the channel's last method was basic.publish."""
    protocol = publishing(5)
    protocol.receive_data(octets(ack(1), ack(3), ack(5)), 0)
    close = commands.Channel.Close(406, "PRECONDITION_FAILED - invalid expiration 'soon'", 60, 40)
    protocol.receive_data(octets((close, 1)), 0)
    assert protocol.failure == (
        "the broker closed the channel: 406 PRECONDITION_FAILED - invalid expiration 'soon'; AMQP"
        " does not say which message it refused: one of 2 that were not confirmed, from row 1"
        " (exchange 'trade', routing key 'k1', message id 'm1') to row 3 (exchange 'trade', routing"
        " key 'k3', message id 'm3')"
    )
    protocol.close(1)
    channel_close_ok, connection_close = sent(protocol.data_to_send())
    assert isinstance(channel_close_ok, commands.Channel.CloseOk)
    assert isinstance(connection_close, commands.Connection.Close)
    protocol.receive_data(octets((commands.Connection.CloseOk(), 0)), 1)
    assert protocol.phase is SinkPhase.CLOSED


def test_the_only_message_that_can_have_been_refused_is_named() -> None:
    protocol = publishing(3)
    protocol.receive_data(octets(ack(3), ack(1)), 0)
    close = commands.Connection.Close(540, "NOT_IMPLEMENTED - immediate=true", 60, 40)
    protocol.receive_data(octets((close, 0)), 0)
    assert protocol.failure == (
        "the broker closed the connection: 540 NOT_IMPLEMENTED - immediate=true; it refused row 1"
        " (exchange 'trade', routing key 'k1', message id 'm1')"
    )


def test_a_broker_that_closes_the_connection_says_why_and_is_answered() -> None:
    protocol = publishing(1)
    close = commands.Connection.Close(320, "CONNECTION_FORCED - shutdown", 0, 0)
    protocol.receive_data(octets((close, 0)), 0)
    assert protocol.failure is not None
    assert "closed the connection: 320 CONNECTION_FORCED - shutdown; 1 messages" in protocol.failure
    assert isinstance(sent(protocol.data_to_send())[0], commands.Connection.CloseOk)
    assert protocol.phase is SinkPhase.CLOSED


def test_an_end_while_logging_in_is_explained() -> None:
    protocol = PublisherProtocol(Login("a", "b", "/", ""), PATIENCE, confirms=True, now=0)
    protocol.receive_data(octets(OPENING[0]), 0)
    protocol.receive_eof("the broker closed the socket")
    assert protocol.failure is not None
    assert "as some do who refuse a login" in protocol.failure


def test_the_first_failure_stays() -> None:
    protocol = publishing(2)
    protocol.receive_data(octets(nack(2)), 0)
    first = protocol.failure
    protocol.receive_data(octets(nack(1)), 0)
    protocol.receive_eof("gone")
    assert protocol.failure == first


def test_goodbye_closes_the_channel_first_so_that_returns_come_before() -> None:
    protocol = opened(confirms=False)
    protocol.published(rows(3), 0, 3, 0)
    assert protocol.unconfirmed == 0
    protocol.close(0)
    assert isinstance(sent(protocol.data_to_send())[0], commands.Channel.Close)
    protocol.receive_data(returned(1), 0)
    assert protocol.failure is not None
    assert "a message was returned: 312 NO_ROUTE" in protocol.failure
    protocol.receive_data(octets((commands.Channel.CloseOk(), 1)), 0)
    assert isinstance(sent(protocol.data_to_send())[0], commands.Connection.Close)
    protocol.receive_data(octets((commands.Connection.CloseOk(), 0)), 0)
    assert protocol.phase is SinkPhase.CLOSED


def test_confirms_are_waited_for_so_long_after_the_last_one() -> None:
    protocol = publishing(2)
    assert protocol.deadline() == 10
    protocol.receive_data(octets(ack(1)), 50)
    # The broker is alive; it just does not confirm.
    protocol.receive_data(heartbeat.Heartbeat().marshal(), 100)
    protocol.tick(109.9)
    assert protocol.failure is None
    protocol.tick(110)
    assert protocol.failure is not None
    assert "a confirm did not come within 60 s; 1 messages were not confirmed" in protocol.failure


def test_nothing_is_waited_for_when_all_is_confirmed() -> None:
    protocol = opened(patience=PATIENCE._replace(heartbeat_s=0))
    assert protocol.deadline() is None
    protocol.tick(1e9)
    assert protocol.failure is None


def test_blocked_time_does_not_count() -> None:
    protocol = publishing(1)
    protocol.receive_data(octets((commands.Connection.Blocked("low on memory"), 0)), 10)
    assert protocol.blocked == "low on memory"
    for now in range(20, 2000, 20):
        protocol.receive_data(heartbeat.Heartbeat().marshal(), now)
        protocol.tick(now)
    assert protocol.failure is None
    protocol.receive_data(octets((commands.Connection.Unblocked(), 0)), 2000)
    assert protocol.blocked is None
    protocol.receive_data(heartbeat.Heartbeat().marshal(), 2059)
    protocol.tick(2059)
    assert protocol.failure is None
    protocol.tick(2060)
    assert protocol.failure is not None


def test_a_broker_that_does_not_open_the_connection_is_given_up() -> None:
    protocol = PublisherProtocol(Login("a", "b", "/", ""), PATIENCE, confirms=True, now=0)
    assert protocol.deadline() == 30
    protocol.receive_data(octets(OPENING[0]), 25)
    protocol.tick(54)
    assert protocol.failure is None
    protocol.tick(55)
    assert protocol.failure == ("connection.tune did not come within 30 s")


def test_heartbeats_are_sent_at_half_time_and_missed_after_two() -> None:
    protocol = opened()
    assert protocol.heartbeat_s == 20
    protocol.tick(9.9)
    assert protocol.data_to_send() == b""
    protocol.tick(10)
    assert protocol.data_to_send() == heartbeat.Heartbeat().marshal()
    # One is enough, even when it cannot leave.
    protocol.tick(10)
    assert protocol.data_to_send() == b""
    silence_s = SILENCES_MAX * 20
    protocol.tick(silence_s - 0.1)
    assert protocol.failure is None
    protocol.tick(silence_s)
    assert protocol.failure is not None
    assert "silent for 40 s, with heartbeats every 20 s" in protocol.failure


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (b"AMQP\x01\x01\x00\x0a", "speaks another protocol"),
        (b"\x01\x00\x00\xff\xff\xff\xff\x00", "a frame of 4294967303 octets"),
        (b"\x08\x00\x00\x00\x00\x00\x00\x00", "a frame ends in 0x00"),
        (b"\x01\x00\x00\x00\x00\x00\x04\x00\x63\x00\x63\xce", "a method that cannot be read"),
        (b"\x01\x00\x00\x00\x00\x00\x02\x00\x63\xce", "a method that cannot be read"),
        (b"\x05\x00\x00\x00\x00\x00\x01\x00\xce", "a frame of type 5"),
        (b"\x02\x00\x01\x00\x00\x00\x01\x00\xce", "a content header that belongs to nothing"),
        (octets((commands.Connection.OpenOk(), 0)), "connection.open-ok, when confirms was waited"),
        (octets((commands.Channel.FlowOk(True), 1)), "FlowOk on channel 1"),
        (octets((commands.Basic.Ack(1), 2)), "Ack on channel 2"),
    ],
)
def test_nonsense_breaks_off_and_never_raises(received: bytes, text: str) -> None:
    protocol = publishing(1)
    protocol.receive_data(received, 0)
    assert protocol.failure is not None
    assert "the broker sent what was not to be expected" in protocol.failure
    assert text in protocol.failure
    assert protocol.phase is SinkPhase.CLOSED


@given(st.binary(max_size=300), st.booleans())
def test_no_octets_make_it_raise(data: bytes, early: bool) -> None:
    protocol = (
        PublisherProtocol(Login("a", "b", "/", ""), PATIENCE, confirms=True, now=0)
        if early
        else publishing(3)
    )
    protocol.receive_data(data, 0)
    protocol.receive_data(b"\x01\0\x01" + len(data).to_bytes(4, "big") + data + b"\xce", 0)
    protocol.tick(1000)
