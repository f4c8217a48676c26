"""Acknowledged messages on a real node that is killed: each is in one place, and is replayed."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from ctl_node import ctl
from pika.exceptions import AMQPError
from server_process import PATIENCE_S, ServerProcess
from warren_command import run_warren

ARGUMENTS = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]
PERSISTENT = pika.BasicProperties(delivery_mode=2)
ENOUGH = 400
RETENTION = '{"retention": {"max-age": "1h"}}'


class Load:
    """Publishes numbers with confirms and acknowledges half of them, until the node is gone."""

    def __init__(self, server: ServerProcess, first: int) -> None:
        self.confirmed = first
        self.enough = threading.Event()
        self._server = server
        self._first = first
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _publish(self) -> None:
        with suppress(AMQPError):
            channel = pika.BlockingConnection(pika.URLParameters(self._server.url)).channel()
            channel.confirm_delivery()
            while True:
                # Every tenth is large, and shared with another queue.
                body = (b"%d" % self.confirmed).ljust(0 if self.confirmed % 10 else 6000)
                channel.basic_publish("amq.fanout", "", body, PERSISTENT)
                self.confirmed += 1
                if self.confirmed - self._first >= ENOUGH:
                    self.enough.set()

    def _consume(self) -> None:
        with suppress(AMQPError):
            channel = pika.BlockingConnection(pika.URLParameters(self._server.url)).channel()
            channel.basic_qos(prefetch_count=20)
            for method, _, _ in channel.consume("q"):
                assert method is not None and method.delivery_tag is not None
                if method.delivery_tag % 2:
                    channel.basic_ack(method.delivery_tag)
                else:
                    channel.basic_nack(method.delivery_tag)


def numbers(server: ServerProcess, queue: str) -> list[int]:
    """Everything that is in a queue, which is empty then."""
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        found = []
        while True:
            method, _, body = channel.basic_get(queue)
            if method is None:
                return found
            found.append(int(body))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_each_is_in_the_queue_or_retained_whenever_the_node_is_killed(
    tmp_path: Path, kind: str
) -> None:
    options = ("--data-dir", str(tmp_path / "data"))
    first = 0
    for number in range(2):
        server = ServerProcess(ARGUMENTS, tmp_path)
        try:
            if not number:
                with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
                    channel = connection.channel()
                    channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
                    for queue in ("beside", "to"):
                        channel.queue_declare(queue, durable=True)
                    channel.queue_bind("q", "amq.fanout")
                    channel.queue_bind("beside", "amq.fanout")
                set_policy = (*options, "set_policy", "keep", "^q$", RETENTION)
                assert ctl(*set_policy, "--apply-to", "queues").code == 0
            load = Load(server, first)
            assert load.enough.wait(PATIENCE_S)
            server.signal(signal.SIGKILL)
            server.wait()
            load.join()
            # The one that was under way may be there, or not.
            first = load.confirmed + 1
        finally:
            server.kill()
    checked = run_warren("store", "check", "--json", "data", directory=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (totals,) = [one for one in json.loads(checked.stdout)["queues"] if one["name"] == "q"]
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        replay = ctl(*options, "replay", "q", "--to-queue", "to", "--wait", "-q")
        assert replay.lines == [f"replay: {totals['retained']} messages"]
        kept, left = numbers(server, "to"), numbers(server, "q")
    finally:
        server.kill()
    assert len(left) == totals["messages"]
    assert len(kept) > ENOUGH // 2
    assert len({*kept}) == len(kept)
    assert not {*kept} & {*left}
    lost = set(range(first - 1)) - {*kept} - {*left}
    # That which was under way when the node was killed first.
    assert len(lost) <= 1
