"""Heartbeats in both directions: reference 1.5."""

import time

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.raw_connection import HEARTBEAT, Silence, SocketClosed

AREA = "Connection: heartbeats"


@pytest.mark.slow
def test_idle_broker_sends_a_heartbeat_every_half_interval(raw: Raw) -> None:
    client = raw(heartbeat=2)
    started = time.monotonic()
    for count in (1, 2, 3):
        frame = client.read_frame(3.0)
        assert (frame.type, frame.channel, frame.payload) == (HEARTBEAT, 0, b"")
        assert time.monotonic() - started == pytest.approx(count * 1.0, abs=0.8)
        client.send_heartbeat()


@pytest.mark.slow
def test_silent_client_is_cut_after_two_to_three_intervals(raw: Raw) -> None:
    """The broker sends no connection.close. A client that sends any frame in that time is kept."""
    silent, talking = raw(heartbeat=1), raw(heartbeat=1)
    channel = talking.channel()
    started = time.monotonic()
    cut_after = None
    while cut_after is None and time.monotonic() - started < 6.0:
        channel.ping()
        try:
            frame = silent.read_frame(0.3)
        except Silence:
            continue
        except SocketClosed:
            cut_after = time.monotonic() - started
        else:
            assert frame.type == HEARTBEAT
    assert cut_after is not None and 1.5 <= cut_after <= 4.5
    channel.ping()


def test_heartbeat_zero_means_none_in_either_direction(raw: Raw) -> None:
    client = raw(heartbeat=0)
    client.channel().ping()
    with pytest.raises(Silence):
        client.read_frame(1.5)
    assert client.heartbeats_seen == 0


def test_heartbeats_of_the_client_need_no_answer(raw: Raw) -> None:
    client = raw(heartbeat=600)
    for _ in range(10):
        client.send_heartbeat()
    client.channel().ping()
    assert client.heartbeats_seen == 0
