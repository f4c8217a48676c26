"""Delayed messages on a real node: they survive its end, are on time, and arrive once or again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from server_channel import ARGUMENTS, channel_of
from server_process import PATIENCE_S, ServerProcess

COUNT = 3000


def declare(channel: BlockingChannel) -> None:
    arguments = {"x-delayed-type": "fanout"}
    channel.exchange_declare("dx", "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare("to", durable=True)
    channel.queue_bind("to", "dx")


def delay(channel: BlockingChannel, body: str, ms: int, mode: int = 2) -> None:
    properties = pika.BasicProperties(delivery_mode=mode, headers={"x-delay": ms})
    channel.basic_publish("dx", "k", body.encode(), properties)


def wait_for(channel: BlockingChannel, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while channel.queue_declare("to", passive=True).method.message_count < count:
        assert time.monotonic() < deadline, "they do not arrive"


def bodies(channel: BlockingChannel) -> list[bytes]:
    found = []
    while (body := channel.basic_get("to", auto_ack=True)[2]) is not None:
        found.append(body)
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_committed_waits_on_after_a_restart(tmp_path: Path, end: signal.Signals) -> None:
    """It does not matter whether they are due before, while the node is down, or after that."""
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            declare(channel)
            channel.tx_select()
            for ms in (4000, 2500, 3000, 3_600_000):
                delay(channel, str(ms), ms)
            channel.tx_commit()
            server.signal(end)
            server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(again) as channel:
            wait_for(channel, 3)
            assert bodies(channel) == [b"2500", b"3000", b"4000"]
    finally:
        again.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_none_is_lost_when_the_node_ends_while_they_are_due(
    tmp_path: Path, end: signal.Signals
) -> None:
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel, channel_of(server) as watching:
            declare(channel)
            channel.tx_select()
            for number in range(COUNT):
                delay(channel, str(number), 1500)
            channel.tx_commit()
            wait_for(watching, 1)
            server.signal(end)
            server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(again) as channel:
            wait_for(channel, COUNT)
            found = [int(body) for body in bodies(channel)]
    finally:
        again.kill()
    assert set(found) == set(range(COUNT))
    if end is signal.SIGTERM:
        assert len(found) == COUNT, "some came twice after a clean stop"
