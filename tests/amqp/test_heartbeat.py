"""Heartbeats: who is silent is noticed, and who listens is not left in doubt."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, Frame

HEARTBEAT = Frame(8, 0, b"")


@pytest.fixture
def beating(broker: Broker) -> Client:
    return broker.connects(heartbeat_s=10)


def test_the_broker_beats_each_half_interval(beating: Client) -> None:
    for _ in range(3):
        beating.broker.advance(4.9)
        beating.receives_nothing()
        beating.broker.advance(0.1)
        assert beating.frames() == [HEARTBEAT]


def test_the_broker_does_not_beat_while_it_has_something_to_say(beating: Client) -> None:
    beating.broker.advance(5)
    assert beating.frames() == [HEARTBEAT]
    beating.opens_channel(1)
    beating.broker.advance(5)
    beating.receives_nothing()
    beating.broker.advance(5)
    assert beating.frames() == [HEARTBEAT]


def test_a_silent_peer_is_cut_after_two_whole_intervals(beating: Client) -> None:
    beating.broker.advance(1)
    beating.sends_octets(HEARTBEAT.octets)
    beating.broker.advance(28.9)
    assert not beating.pipe.ended
    beating.broker.advance(0.1)
    assert beating.pipe.aborted
    assert not any(frame.kind == 1 for frame in beating.frames())
    assert not beating.broker.node.clients


def test_any_octet_counts_as_a_sign_of_life(beating: Client) -> None:
    octets = HEARTBEAT.octets
    for at in range(len(octets)):
        beating.broker.advance(15)
        beating.sends_octets(octets[at : at + 1])
    assert not beating.pipe.ended


def test_no_heartbeats_are_sent_or_wanted_where_none_were_agreed_on(broker: Broker) -> None:
    client = broker.connects(heartbeat_s=0)
    broker.advance(100_000)
    client.receives_nothing()
    assert not client.pipe.ended


def test_a_peer_that_is_not_read_from_is_not_given_up(beating: Client) -> None:
    beating.opens_channel(1)
    beating.broker.alarm(True)
    beating.publishes("q")
    beating.broker.advance(100)
    assert not beating.pipe.ended
    assert HEARTBEAT in beating.frames()
    beating.broker.alarm(False)
    beating.broker.advance(100)
    assert beating.pipe.aborted


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (Frame(8, 1, b""), 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>"),
        (Frame(8, 0, b"x"), 501, 'FRAME_ERROR - type 8, all octets = <<"x">>: unknown_frame'),
    ],
)
def test_a_heartbeat_is_empty_and_on_channel_0(
    beating: Client, frame: Frame, code: int, text: str
) -> None:
    beating.sends_octets(frame.octets)
    assert beating.receives_connection_close(code).reply_text == text


def test_the_timers_end_with_the_connection(beating: Client) -> None:
    beating.vanishes()
    assert not beating.broker.clock.timers


def test_a_client_that_closes_and_never_goes_is_cut(beating: Client) -> None:
    beating.sends(commands.Connection.Close, 0)
    beating.receives(commands.Connection.CloseOk)
    beating.broker.advance(9.9)
    assert not beating.pipe.ended
    beating.broker.advance(0.1)
    assert beating.pipe.aborted
