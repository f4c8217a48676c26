"""What management costs a node with many queues and connections, and how quickly it answers.

    python benchmarks/management.py --port 5672 --http 15672 [--queues 100000] [--connections 5000]

Declares the queues and opens the connections, then asks for pages of queues, the overview and
others, each several times, and measures meanwhile the latency of messages at 1,000 a second between
two connections of its own. Prints JSON. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import resource
import statistics
import struct
import threading
import time

from amqp_socket import AmqpSocket, method, persistent_publish, short_string, table

PATHS = {
    "page": "/api/queues?page=1&page_size=100",
    "page_in_the_middle": "/api/queues?page=500&page_size=100",
    "page_by_length": "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "page_filtered": "/api/queues?page=1&page_size=100&name=99",
    "overview": "/api/overview?lengths_age=60&lengths_incr=5",
    "connections": "/api/connections?page=1&page_size=100",
}
AUTHORIZATION = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode("ascii")}
DECLARED_AT_ONCE = 500


def declare(port: int, count: int) -> float:
    """Declare so many durable queues; returns how long that took."""
    peer = AmqpSocket("127.0.0.1", port)
    started = time.perf_counter()
    for first in range(0, count, DECLARED_AT_ONCE):
        numbers = range(first, min(first + DECLARED_AT_ONCE, count))
        frames = [
            method(50, 10, b"\0\0" + short_string(f"many-{number:06}") + b"\2" + table({}))
            for number in numbers
        ]
        peer.socket.sendall(b"".join(frames))
        for _ in numbers:
            peer.expect(50, 11)
    seconds = time.perf_counter() - started
    peer.close()
    return seconds


class Latency:
    """Publishes and consumes in a thread, and keeps how long each message took."""

    def __init__(self, port: int, per_s: int) -> None:
        self.seconds: list[float] = []
        self._over = threading.Event()
        self._interval_s = 1 / per_s
        self._publisher = AmqpSocket("127.0.0.1", port)
        self._consumer = AmqpSocket("127.0.0.1", port)
        self._publisher.declare("latency", {})
        consume = b"\0\0" + short_string("latency") + short_string("c") + b"\2" + table({})
        self._consumer.call(method(60, 20, consume), 60, 21)
        self._threads = [
            threading.Thread(target=self._publish),
            threading.Thread(target=self._take),
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._over.is_set():
            body = struct.pack(">d", time.perf_counter())
            self._publisher.socket.sendall(persistent_publish("latency", body))
            time.sleep(self._interval_s)

    def _take(self) -> None:
        self._consumer.socket.settimeout(1)
        rest = b""
        while not self._over.is_set():
            try:
                rest += self._consumer.socket.recv(65536)
            except TimeoutError:
                continue
            now = time.perf_counter()
            at = 0
            while len(rest) - at >= 8:
                size = struct.unpack_from(">I", rest, at + 3)[0]
                if len(rest) - at < size + 8:
                    break
                if rest[at] == 3:
                    self.seconds.append(now - struct.unpack_from(">d", rest, at + 7)[0])
                at += size + 8
            rest = rest[at:]

    def stop(self) -> dict[str, float]:
        self._over.set()
        for thread in self._threads:
            thread.join()
        ordered = sorted(self.seconds)
        return {
            "median_ms": round(1000 * ordered[len(ordered) // 2], 2),
            "p99_ms": round(1000 * ordered[int(0.99 * len(ordered))], 2),
            "max_ms": round(1000 * ordered[-1], 2),
        }


def ask(client: http.client.HTTPConnection, path: str) -> int:
    """Octets of the answer."""
    client.request("GET", path, headers=AUTHORIZATION)
    answer = client.getresponse()
    body = answer.read()
    assert answer.status == 200, (answer.status, body)
    return len(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--http", type=int, default=15672)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result: dict[str, object] = {"declare_s": round(declare(options.port, options.queues), 1)}
    peers = [AmqpSocket("127.0.0.1", options.port) for _ in range(options.connections)]
    idle = Latency(options.port, 1000)
    time.sleep(10)
    result["nothing asked"] = idle.stop()
    client = http.client.HTTPConnection("127.0.0.1", options.http)
    ask(client, "/api/whoami")
    for name, path in PATHS.items():
        latency = Latency(options.port, 1000)
        taken = []
        for _ in range(options.rounds):
            started = time.perf_counter()
            octets = ask(client, path)
            taken.append(1000 * (time.perf_counter() - started))
            time.sleep(0.1)
        result[name] = {
            "median_ms": round(statistics.median(taken), 1),
            "max_ms": round(max(taken), 1),
            "octets": octets,
            "messages meanwhile": latency.stop(),
        }
    for peer in peers:
        peer.socket.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
