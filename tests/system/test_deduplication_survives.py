"""A queue that takes each message id once does so over restarts, and kill -9 at any moment."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError
from server_process import ServerProcess
from test_delayed_messages_survive import ARGUMENTS, channel_of

WINDOW = {"x-message-deduplication-window": 5000}


def publish(server: ServerProcess, ids: range) -> int:
    """Publish until the end, or until the connection is lost; answers how many were confirmed."""
    confirmed = 0
    try:
        with channel_of(server) as channel:
            channel.confirm_delivery()
            for number in ids:
                # Some bodies are embedded in the index, and some stand in the log alone.
                body = b"%d " % number + b"x" * (5000 if number % 7 == 0 else 10)
                properties = pika.BasicProperties(delivery_mode=2, message_id=f"id-{number}")
                channel.basic_publish("", "q", body, properties)
                confirmed += 1
    except (AMQPError, OSError):
        pass
    return confirmed


def drain(server: ServerProcess) -> list[int]:
    found = []
    with channel_of(server) as channel:
        while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
            found.append(int(body.split()[0]))
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_ids_are_known_in_the_next_life(tmp_path: Path, end: signal.Signals) -> None:
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            channel.queue_declare("q", durable=True, arguments=WINDOW)
        assert publish(server, range(2000)) == 2000
        assert sorted(drain(server)) == list(range(2000))
        # An acknowledgement is on disk as soon as what is confirmed after it.
        with channel_of(server) as channel:
            channel.queue_declare("other", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "other", b"after", pika.BasicProperties(delivery_mode=2))
        server.signal(end)
        server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        assert publish(again, range(2001)) == 2001
        assert drain(again) == [2000]
    finally:
        again.kill()


def test_ids_that_can_no_longer_be_read_are_known_all_the_same(tmp_path: Path) -> None:
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            channel.queue_declare("q", durable=True, arguments=WINDOW)
        assert publish(server, range(20)) == 20
        assert drain(server) == list(range(20))
        assert server.terminate() == 0
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        # One is written once more at its first duplicate: this one can be read.
        assert publish(again, range(1)) == 1
        for path in (tmp_path / "data" / "store" / "log").iterdir():
            damaged = path.read_bytes().replace(b"id-1", b"##-1")
            with path.open("r+b") as file:
                file.write(damaged)
        for _ in range(2):
            assert publish(again, range(20)) == 20
        assert "message_lost" in again.log
        assert publish(again, range(21)) == 21
        assert drain(again) == [20]
    finally:
        again.kill()


def test_who_publishes_again_after_each_kill_has_each_message_there_once(tmp_path: Path) -> None:
    chance = random.Random(5)
    done = 0
    with_queue = False
    for _ in range(6):
        server = ServerProcess(ARGUMENTS, tmp_path)
        try:
            if not with_queue:
                with channel_of(server) as channel:
                    channel.queue_declare("q", durable=True, arguments=WINDOW)
                with_queue = True
            kill = threading.Timer(chance.uniform(0.05, 0.6), server.kill)
            kill.start()
            # Some that were confirmed before come again, as after a restart of the publisher.
            start = max(0, done - 50)
            done = max(done, start + publish(server, range(start, 4000)))
            kill.join()
        finally:
            server.kill()
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        publish(server, range(done + 10))
        assert drain(server) == list(range(done + 10))
    finally:
        server.kill()
