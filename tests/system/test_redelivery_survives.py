"""How often messages of a classic queue came back is known after a restart."""

from __future__ import annotations

import signal
from pathlib import Path

import pika
import pytest
from server_channel import ARGUMENTS, channel_of
from server_process import ServerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_limit_counts_returns_of_all_lives(tmp_path: Path, end: signal.Signals) -> None:
    """What waits when the node ends is ready at once in its next life, with its count."""
    server = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(server) as channel:
            limits = {"x-delivery-limit": 2, "x-redelivery-delay": [0, 3_600_000]}
            channel.queue_declare("q", durable=True, arguments=limits)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"m", PERSISTENT)
            for _ in range(2):
                method, _, _ = channel.basic_get("q")
                assert method is not None
                channel.basic_nack(method.delivery_tag)
            assert channel.basic_get("q")[0] is None
            # A count is on disk as soon as what is confirmed after it.
            channel.basic_publish("", "q", b"after", PERSISTENT)
            server.signal(end)
            server.wait()
    finally:
        server.kill()
    again = ServerProcess(ARGUMENTS, tmp_path)
    try:
        with channel_of(again) as channel:
            method, properties, body = channel.basic_get("q")
            assert method is not None and properties is not None
            assert (body, properties.headers) == (b"m", {"x-delivery-count": 2})
            channel.basic_nack(method.delivery_tag)
            method, properties, body = channel.basic_get("q")
            assert body == b"after"
            assert channel.basic_get("q")[0] is None
    finally:
        again.kill()
