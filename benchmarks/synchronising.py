"""How long publishers and consumers wait while a long queue is synchronised to a new mirror.

    python benchmarks/synchronising.py --amqp 5672 --http 15672 [--messages 1000000]

A cluster of three must run already (`warren dev-cluster 3`); `--amqp` and `--http` are ports of one
node. A queue with one mirror is filled. Publishes with confirms to it, and gets, are timed: while
nothing else happens, while a policy has given it a second mirror that is sent all, and afterwards.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import pika

QUEUE = "synchronising"
LASTING = pika.BasicProperties(delivery_mode=2)
BODY = b"x" * 1000
PACE_S = 0.005
QUIET_S = 20.0
LOOK_S = 0.5


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

    def mirrored(self, mode: dict[str, Any]) -> None:
        definition = {**mode, "ha-sync-mode": "automatic"}
        policy = {"pattern": f"^{QUEUE}$", "definition": definition}
        self.call("PUT", "/policies/%2F/synchronising", policy)

    def in_sync(self) -> int:
        return len(self.call("GET", f"/queues/%2F/{QUEUE}").get("synchronised_slave_nodes", ()))


class Timed(NamedTuple):
    """Milliseconds from publish to confirm, and from asking for a message to having it."""

    publishes: list[float]
    gets: list[float]

    def described(self) -> str:
        return f"publish {_described(self.publishes)}; get {_described(self.gets)}"


def _described(took: list[float]) -> str:
    p99 = statistics.quantiles(took, n=100)[98]
    return f"p50 {statistics.median(took):.2f} ms, p99 {p99:.2f} ms, worst {max(took):.1f} ms"


def timed(channel: Any, over: Callable[[], bool]) -> Timed:
    """One publish and one get at a time."""
    result = Timed([], [])
    while not over():
        began = time.perf_counter()
        channel.basic_publish("", QUEUE, BODY, LASTING)
        published = time.perf_counter()
        method, _, _ = channel.basic_get(QUEUE)
        result.gets.append((time.perf_counter() - published) * 1000)
        result.publishes.append((published - began) * 1000)
        channel.basic_ack(method.delivery_tag)
        time.sleep(PACE_S)
    return result


def for_a_while() -> Callable[[], bool]:
    end = time.monotonic() + QUIET_S
    return lambda: time.monotonic() > end


def until_in_sync(api: Api, mirrors: int) -> Callable[[], bool]:
    looked_at = 0.0

    def reached() -> bool:
        nonlocal looked_at
        if time.monotonic() - looked_at < LOOK_S:
            return False
        looked_at = time.monotonic()
        return api.in_sync() == mirrors

    return reached


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
    api.mirrored({"ha-mode": "exactly", "ha-params": 2})
    channel.queue_declare(QUEUE, durable=True)
    for number in range(options.messages):
        channel.basic_publish("", QUEUE, BODY, LASTING)
        if number % 10_000 == 0:
            connection.process_data_events(0)
    channel.confirm_delivery()
    channel.basic_publish("", QUEUE, BODY, LASTING)
    while api.in_sync() != 1:
        time.sleep(LOOK_S)
    print("one mirror   :", timed(channel, for_a_while()).described(), flush=True)
    began = time.monotonic()
    api.mirrored({"ha-mode": "all"})
    print("synchronising:", timed(channel, until_in_sync(api, 2)).described(), flush=True)
    print(f"{options.messages} messages in {time.monotonic() - began:.1f} s")
    print("two mirrors  :", timed(channel, for_a_while()).described(), flush=True)
    api.call("DELETE", "/policies/%2F/synchronising")
    channel.queue_delete(QUEUE)
    connection.close()


if __name__ == "__main__":
    main()
