"""A dead-lettered message is in its old queue or in its new one, however the node ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from server_process import PATIENCE_S, ServerProcess

COUNT = 3000
LARGE_EVERY = 50
LARGE_BYTES = 60_000
"""One batch of the log has room for some thirty of them, and for all removals at once."""

TO_NEW = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "new"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)
ARGUMENTS = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]


@contextmanager
def channel_of(server: ServerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        # The node may be gone: closing says so, and ends the socket all the same.
        with suppress(AMQPError):
            connection.close()


def publish(
    channel: BlockingChannel, start: int, end: int, properties: pika.BasicProperties
) -> None:
    """Publish messages named by their numbers; on return all are confirmed."""
    channel.tx_select()
    for number in range(start, end):
        size = LARGE_BYTES if number % LARGE_EVERY == 0 else 10
        channel.basic_publish("", "old", b"%d" % number + bytes(size), properties)
    channel.tx_commit()


def reject_all(channel: BlockingChannel) -> None:
    channel.queue_declare("old", durable=True, arguments=TO_NEW)
    publish(channel, 0, COUNT, PERSISTENT)
    last = 0
    for method, _, _ in channel.consume("old", inactivity_timeout=PATIENCE_S):
        assert method is not None
        last = method.delivery_tag
        if last == COUNT:
            break
    channel.basic_nack(last, multiple=True, requeue=False)
    channel.tx_commit()


def let_all_expire(channel: BlockingChannel) -> None:
    channel.queue_declare("old", durable=True, arguments=TO_NEW)
    expiring = pika.BasicProperties(delivery_mode=2, expiration="1")
    publish(channel, 0, COUNT, expiring)


def push_all_out(channel: BlockingChannel) -> None:
    limited = {**TO_NEW, "x-max-length": COUNT}
    channel.queue_declare("old", durable=True, arguments=limited)
    publish(channel, 0, 2 * COUNT, PERSISTENT)


def contents(channel: BlockingChannel, queue: str) -> list[tuple[int, bool]]:
    """The messages in a queue, and whether each counts as delivered before."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return found
        found.append((int(body.split(b"\0", 1)[0]), method.redelivered))


def wait_for_the_first(channel: BlockingChannel) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not channel.queue_declare("new", passive=True).method.message_count:
        assert time.monotonic() < deadline, "nothing was dead-lettered"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("die", [reject_all, let_all_expire, push_all_out])
def test_a_dead_letter_is_in_its_old_queue_or_its_new_one(
    die: Callable[[BlockingChannel], None], end: signal.Signals, tmp_path: Path
) -> None:
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel, channel_of(server) as watching:
            watching.queue_declare("new", durable=True)
            die(channel)
            wait_for_the_first(watching)
            server.signal(end)
            server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(again) as channel:
            old, new = contents(channel, "old"), contents(channel, "new")
    finally:
        again.kill()
    total = 2 * COUNT if die is push_all_out else COUNT
    found = [number for number, _ in (*old, *new)]
    lost = set(range(total)) - set(found)
    assert not lost, f"{len(lost)} of {total} are lost, {len(old)} old, {len(new)} new"
    if end is signal.SIGTERM:
        assert len(found) == total, "some came twice after a clean stop"
    # What is in both queues after a crash says in the old one that it may be known.
    assert all(redelivered for number, redelivered in old) or end is signal.SIGTERM
