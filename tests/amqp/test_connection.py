"""A connection from its first octet to its last."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, Frame, method_frame, start_ok

from warren.amqp.frames import OLD_PROTOCOL_HEADER, PROTOCOL_HEADER
from warren.amqp.state import State
from warren.core.definitions.records import VirtualHostRecord
from warren.core.field import Field, longstr
from warren.core.resources.alarms import Resource


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> bytes:
    return method_frame(
        0,
        commands.Connection.TuneOk,
        channel_max=channel_max,
        frame_max=frame_max,
        heartbeat=heartbeat,
    )


def open_vhost(name: str = "/") -> bytes:
    return method_frame(0, commands.Connection.Open, virtual_host=name)


class TestHandshake:
    @pytest.mark.parametrize("header", [PROTOCOL_HEADER, OLD_PROTOCOL_HEADER])
    def test_it_leads_from_the_header_to_open_ok(self, broker: Broker, header: bytes) -> None:
        client = broker.accepts()
        client.sends_octets(header)
        start = client.receives(commands.Connection.Start)
        assert (start.version_major, start.version_minor) == (0, 9)
        assert start.mechanisms == b"PLAIN AMQPLAIN"
        assert start.server_properties["product"] == longstr("RabbitMQ")
        client.sends_octets(start_ok())
        tune = client.receives(commands.Connection.Tune)
        assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
        client.sends_octets(tune_ok() + open_vhost())
        client.receives(commands.Connection.OpenOk)
        assert list(broker.node.clients) == [client.connection]

    def test_it_may_come_octet_by_octet(self, broker: Broker) -> None:
        client = broker.accepts()
        for octet in PROTOCOL_HEADER + start_ok() + tune_ok() + open_vhost():
            client.sends_octets(bytes((octet,)))
        broker.settle()
        assert client.connection.state is State.RUNNING

    def test_another_protocol_is_told_ours_and_cut(self, broker: Broker) -> None:
        client = broker.accepts()
        client.sends_octets(b"GET / HTTP/1.1\r\n\r\n")
        broker.settle()
        assert client.pipe.written == PROTOCOL_HEADER
        assert client.pipe.ended

    @pytest.mark.parametrize("said", [b"", PROTOCOL_HEADER, PROTOCOL_HEADER + start_ok()])
    def test_a_peer_that_says_no_more_is_cut_after_ten_seconds(
        self, broker: Broker, said: bytes
    ) -> None:
        client = broker.accepts()
        client.sends_octets(said)
        broker.advance(9.9)
        assert not client.pipe.ended
        broker.advance(0.1)
        assert client.pipe.aborted
        assert not broker.clock.timers

    @pytest.mark.parametrize(
        "wrong",
        [
            open_vhost(),
            method_frame(0, commands.Connection.Close),
            method_frame(1, commands.Channel.Open),
            method_frame(0, commands.Connection.StartOk, mechanism="NONE"),
            method_frame(0, commands.Connection.StartOk, mechanism="PLAIN", response="guest"),
            Frame(1, 0, b"").octets,
            Frame(3, 0, b"x").octets,
            Frame(1, 0, b"x" * 4097).octets,
        ],
        ids=lambda octets: repr(octets[7:15]),
    )
    def test_anything_else_before_the_end_of_it_fails_without_a_word(
        self, broker: Broker, wrong: bytes
    ) -> None:
        client = broker.accepts()
        client.sends_octets(PROTOCOL_HEADER)
        client.receives(commands.Connection.Start)
        client.sends_octets(wrong)
        client.sends_octets(start_ok())
        broker.advance(2.9)
        client.receives_nothing()
        assert not client.pipe.ended
        broker.advance(0.1)
        assert client.pipe.aborted

    @pytest.mark.parametrize(
        "wrong",
        [
            tune_ok(channel_max=0),
            tune_ok(channel_max=2048),
            tune_ok(frame_max=0),
            tune_ok(frame_max=4095),
            tune_ok(frame_max=131073),
        ],
        ids=["no channels", "2048 channels", "no frame_max", "small frames", "large frames"],
    )
    def test_a_tune_ok_beyond_the_offer_fails_without_a_word(
        self, broker: Broker, wrong: bytes
    ) -> None:
        client = broker.accepts()
        client.sends_octets(PROTOCOL_HEADER + start_ok())
        client.frames()
        client.sends_octets(wrong + open_vhost())
        broker.advance(3)
        client.receives_nothing()
        assert client.pipe.aborted

    def test_a_refused_login_is_told_to_those_who_can_hear_it(self, broker: Broker) -> None:
        client = broker.accepts()
        client.sends_octets(PROTOCOL_HEADER + start_ok(password="wrong"))
        client.receives(commands.Connection.Start)
        close = client.receives_connection_close(403)
        assert close.reply_text == (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details "
            "see the broker logfile."
        )
        broker.advance(3)
        assert client.pipe.aborted

    def test_a_refused_login_is_not_told_to_others(self, broker: Broker) -> None:
        client = broker.accepts()
        client.sends_octets(PROTOCOL_HEADER + start_ok(password="wrong", capabilities=()))
        client.receives(commands.Connection.Start)
        client.receives_nothing()

    def test_guest_may_not_log_in_from_elsewhere(self, broker: Broker) -> None:
        client = broker.accepts(host="192.0.2.1")
        client.sends_octets(PROTOCOL_HEADER + start_ok())
        client.receives(commands.Connection.Start)
        client.receives_connection_close(403)

    @pytest.mark.parametrize(
        ("vhost", "text"),
        [
            ("none", "NOT_ALLOWED - vhost none not found"),
            ("other", "NOT_ALLOWED - access to vhost 'other' refused for user 'guest'"),
        ],
    )
    def test_a_virtual_host_may_be_missing_or_closed_to_the_user(
        self, broker: Broker, vhost: str, text: str
    ) -> None:
        broker.node.add_vhost("other", VirtualHostRecord())
        client = broker.accepts()
        client.sends_octets(PROTOCOL_HEADER + start_ok() + tune_ok() + open_vhost(vhost))
        client.receives(commands.Connection.Start)
        client.receives(commands.Connection.Tune)
        close = client.receives_connection_close(530)
        assert close.reply_text == text
        assert (close.class_id, close.method_id) == (10, 40)


class TestChannels:
    def test_their_number_is_limited_and_not_their_numbers(self, broker: Broker) -> None:
        client = broker.connects(channel_max=2)
        client.opens_channel(4000)
        client.opens_channel(65535)
        client.sends(commands.Channel.Open, 1)
        assert client.receives_connection_close(530).reply_text == (
            "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
        )

    def test_a_channel_waits_for_close_ok_for_ever(self, client: Client) -> None:
        client.sends(commands.Basic.Get, queue="none")
        client.receives(commands.Channel.Close)
        client.sends(commands.Basic.Get, queue="none")
        client.publishes("none", mandatory=True)
        client.receives_nothing()
        assert client.connection.channel_count == 1
        client.sends(commands.Channel.CloseOk)
        client.opens_channel(1)

    def test_both_sides_may_close_at_once(self, client: Client) -> None:
        client.sends(commands.Basic.Get, queue="none")
        client.sends(commands.Channel.Close)
        client.receives(commands.Channel.Close)
        client.receives(commands.Channel.CloseOk)
        client.sends(commands.Channel.CloseOk)
        client.opens_channel(1)

    @pytest.mark.parametrize(
        ("octets", "code", "text"),
        [
            (method_frame(1, commands.Channel.Open), 504, "second 'channel.open' seen"),
            (method_frame(2, commands.Basic.Qos), 504, "expected 'channel.open'"),
            (method_frame(1, commands.Queue.DeclareOk), 503, "unimplemented method"),
            (method_frame(1, commands.Connection.Open), 503, "unimplemented method"),
            (Frame(1, 1, b"\0\x63\0\x63").octets, 503, "unimplemented method"),
            (Frame(5, 1, b"").octets, 501, "type 5, all octets = <<>>: unknown_frame"),
            (Frame(3, 0, b"x").octets, 505, 'type 3, all octets = <<"x">>'),
            (Frame(3, 1, b"x").octets, 505, "expected method frame, got non method frame instead"),
            (
                method_frame(0, commands.Connection.CloseOk),
                504,
                "unexpected method in connection state running",
            ),
            (Frame(1, 1, b"\0\x3c\0\x0a\0").octets, 501, "cannot decode <<0>>"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_what_breaks_the_protocol_closes_the_connection(
        self, client: Client, octets: bytes, code: int, text: str
    ) -> None:
        client.sends_octets(octets)
        assert client.receives_connection_close(code).reply_text.endswith(f" - {text}")
        client.sends(commands.Connection.CloseOk, 0)
        client.broker.settle()
        assert client.pipe.ended and not client.broker.node.clients

    def test_a_reply_text_is_cut_to_a_short_string_and_is_utf_8(self, client: Client) -> None:
        client.declares("q", arguments={})
        name = "x-dead-letter-routing-key"
        bad = {"x-dead-letter-exchange": longstr(""), name: Field("S", b"\xff" * 300)}
        client.sends(commands.Queue.Declare, queue="q", arguments=bad)
        client.receives_close(406)
        client.opens_channel(1)
        client.sends(commands.Basic.Get, queue="ü" * 127)
        close = client.receives_close(404)
        assert len(close.reply_text.encode()) <= 255 and close.reply_text.endswith("...")


class TestFrameErrors:
    def test_a_wrong_end_is_told_and_the_socket_cut(self, client: Client) -> None:
        client.sends_octets(method_frame(1, commands.Tx.Select)[:-1] + b"\x07")
        assert client.receives_connection_close(501).reply_text == (
            "FRAME_ERROR - type 1, all octets = <<0,90,0,10>>: {invalid_frame_end_marker,7}"
        )
        client.broker.advance(3)
        assert client.pipe.aborted

    def test_a_frame_may_be_eight_octets_larger_than_legal(self, client: Client) -> None:
        client.declares("q")
        client.sends(commands.Basic.Publish, routing_key="q")
        header = b"\0\x3c\0\0" + (4096).to_bytes(8, "big") + b"\0\0"
        client.sends_octets(Frame(2, 1, header).octets + Frame(3, 1, b"x" * 4096).octets)
        assert client.counts("q") == (1, 0)

    @pytest.mark.parametrize(
        ("weight", "properties", "code", "text"),
        [
            (0, b"\x10\0\x01junk", 501, "cannot decode <<0,60,0,0,0,0,0,0,0,0,0,1,16,0,1,106,"),
            (0, b"\x10\x01\0\0\x01", 501, "cannot decode <<0,60,0,0,0,0,0,0,0,0,0,1,16,1,0,0,1>>"),
            (1, b"\x10\0\x01", 505, "expected content header for class 60, got non content header"),
        ],
        ids=["octets behind the properties", "further flags", "weight"],
    )
    def test_a_content_header_that_would_break_its_consumers_is_refused(
        self, client: Client, weight: int, properties: bytes, code: int, text: str
    ) -> None:
        """RabbitMQ refuses them, too: 541, 541 and 505."""
        client.declares("q")
        method = method_frame(1, commands.Basic.Publish, routing_key="q")
        header = b"\0\x3c" + weight.to_bytes(2, "big") + (1).to_bytes(8, "big") + properties
        client.sends_octets(method + Frame(2, 1, header).octets + Frame(3, 1, b"x").octets)
        assert text in client.receives_connection_close(code).reply_text
        assert client.broker.vhost.queues["q"].backing.length == 0

    def test_a_frame_larger_than_that_ends_it(self, client: Client) -> None:
        client.sends_octets(Frame(3, 1, b"x" * 4097).octets)
        assert client.receives_connection_close(501).reply_text == (
            "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,4097,4088}"
        )


class TestEnding:
    def test_exclusive_queues_are_gone_before_close_ok(self, broker: Broker) -> None:
        client = broker.connects()
        client.opens_channel(1)
        client.declares("mine", exclusive=True)
        client.sends(commands.Connection.Close, 0)
        assert "mine" not in broker.vhost.queues
        client.receives(commands.Connection.CloseOk)

    def test_messages_of_a_lost_connection_go_back_to_their_places(self, broker: Broker) -> None:
        client, other = broker.connects(), broker.connects()
        for each in (client, other):
            each.opens_channel(1)
        client.declares("q")
        for body in (b"1", b"2", b"3"):
            client.publishes("q", body)
        client.sets_prefetch(2)
        client.consumes("q")
        client.vanishes()
        other.consumes("q")
        got = [(d.body, d.method.redelivered) for d in other.receives_deliveries()]
        assert got == [(b"1", True), (b"2", True), (b"3", False)]

    def test_a_lost_connection_reads_nothing_that_waited(self, broker: Broker) -> None:
        client = broker.connects()
        client.opens_channel(1)
        broker.alarm(True)
        broken = b"\x01\x00\x01\x00\x00\x00\x00\x00broken"
        client.sends_octets(method_frame(1, commands.Basic.Publish, routing_key="q"))
        client.sends_octets(Frame(2, 1, b"\0\x3c\0\0" + bytes(10)).octets + broken)
        broker.alarm(False)
        client.vanishes()
        assert not broker.clock.timers

    def test_an_operator_may_close_it(self, client: Client) -> None:
        client.connection.force_close("Closed via management plugin")
        close = client.receives_connection_close(320)
        assert close.reply_text == "CONNECTION_FORCED - Closed via management plugin"
        assert (close.class_id, close.method_id) == (0, 0)
        client.broker.advance(30)
        assert client.pipe.aborted

    def test_after_close_only_close_ok_is_heard(self, client: Client) -> None:
        client.sends_octets(Frame(5, 1, b"").octets)
        client.receives_connection_close(501)
        client.sends(commands.Queue.Declare, queue="late")
        client.sends(commands.Connection.Close, 0)
        client.receives(commands.Connection.CloseOk)
        assert not client.pipe.ended
        client.sends(commands.Connection.CloseOk, 0)
        assert client.pipe.ended
        assert "late" not in client.broker.vhost.queues


class TestAlarms:
    def test_who_publishes_is_told_and_read_no_further(self, client: Client) -> None:
        broker = client.broker
        client.declares("q")
        broker.alarm(True)
        broker.alarm(True, Resource.DISK)
        client.receives_nothing()
        client.publishes("q", b"1")
        client.publishes("q", b"2")
        blocked = client.receives(commands.Connection.Blocked)
        assert blocked.reason == "low on memory & low on disk"
        client.receives_nothing()
        assert len(broker.queue("q")) == 0
        broker.alarm(False)
        client.receives_nothing()
        broker.alarm(False, Resource.DISK)
        client.receives(commands.Connection.Unblocked)
        assert client.counts("q") == (2, 0)

    def test_who_only_consumes_is_not_blocked(self, client: Client) -> None:
        client.declares("q")
        client.publishes("q")
        client.broker.alarm(True)
        client.consumes("q")
        client.receives_content()
        client.acks(1)
        assert client.counts("q") == (0, 1)
        assert client.pipe.reading

    def test_a_client_that_does_not_know_of_it_is_blocked_in_silence(self, broker: Broker) -> None:
        client = broker.connects(capabilities=())
        client.opens_channel(1)
        client.declares("q")
        broker.alarm(True)
        client.publishes("q")
        client.receives_nothing()
        assert not client.pipe.reading
        broker.alarm(False)
        broker.settle()
        client.receives_nothing()
        assert client.counts("q") == (1, 0)

    def test_a_run_of_publishes_is_blocked_too(self, client: Client) -> None:
        client.declares("q")
        for _ in range(3):
            client.publishes("q")
        client.broker.alarm(True)
        client.publishes("q")
        client.receives(commands.Connection.Blocked)
        assert not client.pipe.reading


class TestBackPressure:
    def test_consumers_get_nothing_while_the_socket_is_full(self, client: Client) -> None:
        client.declares("q")
        client.consumes("q")
        client.connection.writable(False)
        client.publishes("q")
        client.receives_nothing()
        assert len(client.broker.queue("q")) == 1
        client.connection.writable(True)
        assert client.receives_content().body == b"x"

    def test_a_consumer_started_meanwhile_waits_as_well(self, client: Client) -> None:
        client.declares("q")
        client.publishes("q")
        client.connection.writable(False)
        client.consumes("q")
        client.receives_nothing()
        client.connection.writable(True)
        client.receives_content()

    def test_a_full_socket_does_not_keep_messages_from_others(self, broker: Broker) -> None:
        slow, quick = broker.connects(), broker.connects()
        for each in (slow, quick):
            each.opens_channel(1)
            each.declares("q")
            each.consumes("q", no_ack=True)
        slow.connection.writable(False)
        for _ in range(4):
            slow.publishes("q")
        assert len(quick.receives_deliveries()) == 4


def test_an_update_of_the_secret_is_taken(client: Client) -> None:
    client.sends(commands.Connection.UpdateSecret, 0, new_secret="s", reason="r")
    client.receives(commands.Connection.UpdateSecretOk)
