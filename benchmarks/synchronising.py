"""How long publishers wait while a long queue is synchronised to new mirrors.

    python benchmarks/synchronising.py --amqp 5672 --http 15672 [--messages 1000000]

A cluster must run already; `--amqp` and `--http` are ports of one node. A queue is filled, then
publishes with confirms to it are timed, a policy gives it mirrors at every node that synchronise by
themselves, and publishes are timed until they are in sync.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pika

QUEUE = "synchronising"
LASTING = pika.BasicProperties(delivery_mode=2)
PACE_S = 0.005


class Api:
    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(f"{self._base}{path}", method=method)
        login = base64.b64encode(b"guest:guest").decode()
        request.add_header("Authorization", f"Basic {login}")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data) as answer:
            content = answer.read()
        return json.loads(content) if content else None


def timed(channel: Any, over: Callable[[], bool]) -> list[float]:
    """Milliseconds from publish to confirm, one publish at a time."""
    took = []
    while not over():
        began = time.perf_counter()
        channel.basic_publish("", QUEUE, b"x" * 1000, LASTING)
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(PACE_S)
    return took


def described(took: list[float]) -> str:
    p99 = statistics.quantiles(took, n=100)[98]
    middle = statistics.median(took)
    return f"{len(took)} publishes: p50 {middle:.2f} ms, p99 {p99:.2f} ms, worst {max(took):.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--amqp", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    api = Api(options.http)
    url = f"amqp://guest:guest@127.0.0.1:{options.amqp}/%2F?heartbeat=0"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_delete(QUEUE)
    channel.queue_declare(QUEUE, durable=True)
    for number in range(options.messages):
        channel.basic_publish("", QUEUE, b"x" * 1000, LASTING)
        if number % 10_000 == 0:
            connection.process_data_events(0)
    channel.confirm_delivery()
    channel.basic_publish("", QUEUE, b"last", LASTING)
    end = time.monotonic() + 15
    print("idle         ", described(timed(channel, lambda: time.monotonic() > end)))
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    policy = {"pattern": f"^{QUEUE}$", "definition": definition}
    api.call("PUT", "/policies/%2F/synchronising", policy)
    looked_at = [0.0]
    began = time.monotonic()

    def in_sync() -> bool:
        if time.monotonic() - looked_at[0] < 0.5:
            return False
        looked_at[0] = time.monotonic()
        row = api.call("GET", f"/queues/%2F/{QUEUE}")
        mirrors = row.get("slave_nodes", [])
        return bool(mirrors) and len(row["synchronised_slave_nodes"]) == len(mirrors)

    print("synchronising", described(timed(channel, in_sync)))
    print(f"{options.messages} messages in {time.monotonic() - began:.1f} s")
    end = time.monotonic() + 15
    print("mirrored     ", described(timed(channel, lambda: time.monotonic() > end)))
    api.call("DELETE", "/policies/%2F/synchronising")
    channel.queue_delete(QUEUE)
    connection.close()


if __name__ == "__main__":
    main()
