"""Streams on a real node: offsets stay whatever ends it, and bodies do not stay in memory."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from server_process import PATIENCE_S, ServerProcess
from warren_command import run_warren

ARGUMENTS = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]
BATCH = 200
LARGE = 4000
LARGE_COUNT = 20_000


@contextmanager
def channel_of(server: ServerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        # The node may be gone: closing says so, and ends the socket all the same.
        with suppress(AMQPError):
            connection.close()


def declare(channel: BlockingChannel, **arguments: Any) -> None:
    table = {"x-queue-type": "stream", **arguments}
    channel.queue_declare("s", durable=True, arguments=table)


def publish(channel: BlockingChannel, first: int, count: int, size: int = 0) -> None:
    """Numbers, in one transaction."""
    channel.tx_select()
    for number in range(first, first + count):
        channel.basic_publish("", "s", (b"%d" % number).ljust(size))
    channel.tx_commit()


def read(server: ServerProcess, offset: Any, count: int) -> list[tuple[int, int]]:
    """Offset and number of so many messages."""
    found: list[tuple[int, int]] = []
    with channel_of(server) as channel:
        channel.basic_qos(prefetch_count=500)
        messages = channel.consume(
            "s", arguments={"x-stream-offset": offset}, inactivity_timeout=PATIENCE_S
        )
        for method, properties, body in messages:
            assert method is not None, f"{len(found)} of {count} came"
            assert not method.redelivered
            found.append((properties.headers["x-stream-offset"], int(body)))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                return found
    return found


def checked(directory: Path) -> Any:
    done = run_warren("store", "check", "--json", "data", directory=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_confirmed_messages_keep_their_offsets(tmp_path: Path, end: signal.Signals) -> None:
    """The node ends twice while messages are published."""
    confirmed = 0
    for _ in range(2):
        server = ServerProcess(ARGUMENTS, tmp_path)
        enough = threading.Event()

        def publish_on(server: ServerProcess, enough: threading.Event, start: int) -> None:
            nonlocal confirmed
            confirmed = start
            with suppress(AMQPError), channel_of(server) as channel:
                while True:
                    publish(channel, confirmed, BATCH)
                    confirmed += BATCH
                    if confirmed - start >= 5 * BATCH:
                        enough.set()

        try:
            with channel_of(server) as channel:
                declare(channel)
                there = channel.queue_declare("s", passive=True).method.message_count
            # What was not confirmed may be there, too; its numbers are the ones that follow.
            assert there >= confirmed
            publisher = threading.Thread(target=publish_on, args=(server, enough, there))
            publisher.start()
            assert enough.wait(PATIENCE_S)
            server.signal(end)
            server.wait()
            publisher.join(PATIENCE_S)
        finally:
            server.kill()
    assert checked(tmp_path)["clean"]
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            declare(channel)
            there = channel.queue_declare("s", passive=True).method.message_count
            assert there >= confirmed
            publish(channel, there, 1)
        assert read(server, "first", there + 1) == [(n, n) for n in range(there + 1)]
        assert read(server, there - 3, 4) == [(n, n) for n in range(there - 3, there + 1)]
    finally:
        server.kill()


def test_bodies_are_not_in_memory_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    """80 MB are published and read back from the beginning."""
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            declare(channel)
            publish(channel, 0, 1000, LARGE)
            before = server.rss_bytes
            for start in range(1000, LARGE_COUNT, 1000):
                publish(channel, start, 1000, LARGE)
            found: list[tuple[int, int]] = []
            reader = threading.Thread(
                target=lambda: found.extend(read(server, "first", LARGE_COUNT))
            )
            reader.start()
            round_trips = 0
            while reader.is_alive():
                channel.queue_declare("s", passive=True)
                round_trips += 1
            reader.join()
        assert found == [(n, n) for n in range(LARGE_COUNT)]
        # Each slice of the reader lets others have their turn.
        assert round_trips > 20
        grown = server.rss_bytes - before
        assert grown < LARGE * LARGE_COUNT * 0.6, f"{grown} octets more"
    finally:
        server.kill()


def test_what_is_too_much_is_gone_after_a_restart_too(tmp_path: Path) -> None:
    limits = {"x-max-length-bytes": 100_000, "x-stream-max-segment-size-bytes": 20_000}
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            declare(channel, **limits)
            for start in range(0, 2000, 200):
                publish(channel, start, 200, 500)
            first = read(server, "first", 1)[0][0]
            assert 1700 < first < 1999
            server.signal(signal.SIGTERM)
            server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        kept = 2000 - first
        assert read(again, "first", kept) == [(n, n) for n in range(first, 2000)]
    finally:
        again.kill()
