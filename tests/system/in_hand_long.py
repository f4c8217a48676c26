"""Looks for and moves messages of a very long queue, and watches that others wait for nothing.

    python -P tests/system/in_hand_long.py -n 10000000

Starts a node of its own, fills a lazy queue, and then asks for pages at both ends and in the
middle, searches all of it, counts with a dry run, moves the newest messages and moves them back.
Meanwhile another connection publishes to another queue and waits for each confirm; the longest wait
during each step is shown. Not collected by pytest. Prints a line for each step; exit code 1 where
an answer is not what it should be.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

from amqp_socket import AmqpSocket, persistent_publish  # noqa: E402
from server_process import ServerProcess  # noqa: E402

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget  # noqa: E402

QUEUE = "long"
MOVED = 5000
JOB_LOOK_S = 0.2


class Beside:
    """Publishes with confirms to another queue, one by one; `longest_s` is the longest wait."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.waits_s: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.queue_declare("beside", durable=True, arguments={"x-max-length": 10})
            channel.confirm_delivery()
            persistent = pika.BasicProperties(delivery_mode=2)
            while not self._over.is_set():
                began = time.perf_counter()
                channel.basic_publish("", "beside", b"m", persistent)
                self.waits_s.append(time.perf_counter() - began)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def taken(self) -> list[float]:
        """The waits since the last call."""
        waits, self.waits_s = self.waits_s, []
        return waits


class Course:
    def __init__(self, server: ServerProcess, data: Path, count: int) -> None:
        self._server = server
        self._client = ControlClient(LocalTarget(data), 600)
        self._count = count
        self._beside = Beside(server.url)
        self._failed = False

    def run(self) -> bool:
        """Whether all answers are what they should be."""
        last = self._count - 1
        self._step("nothing", lambda: time.sleep(3), lambda _: True)
        oldest = self._step("the 50 oldest", lambda: self._page(), _has(50))
        first = int(oldest["messages"][0]["position"])
        self._step("the 50 newest", lambda: self._page(order="newest"), _has(50))
        middle = str(first + self._count // 2)
        self._step("50 from the middle on", lambda: self._page(**{"from": middle}), _has(50))
        beyond = f"position >= {first + self._count - MOVED}"
        self._step("search all of it", self._search, lambda found: found == self._count)
        dry = {"action": "delete", "filter": beyond, "dry_run": True}
        self._step("dry run by filter", lambda: self._job(QUEUE, dry), _did(MOVED))
        positions = [str(at) for at in range(first + last + 1 - MOVED, first + last + 1)]
        move = {"action": "move", "positions": positions, "to_queue": "other"}
        self._step("move the newest away", lambda: self._job(QUEUE, move), _did(MOVED))
        back = {"action": "move", "to_queue": QUEUE}
        self._step("move them back", lambda: self._job("other", back), _did(MOVED))
        self._beside.stop()
        self._client.close()
        return not self._failed

    def _step(self, name: str, do: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
        self._beside.taken()
        began = time.perf_counter()
        answer = do()
        took_s = time.perf_counter() - began
        waits = sorted(self._beside.taken()) or [0.0]
        middle, longest = waits[len(waits) // 2], waits[-1]
        rss_mib = self._server.rss_bytes >> 20
        verdict = "" if good(answer) else f"  WRONG: {str(answer)[:300]}"
        self._failed |= bool(verdict)
        print(
            f"{name:24} {took_s:8.2f} s; others waited {middle * 1000:.1f} ms, at most"
            f" {longest * 1000:.0f} ms; {rss_mib} MiB{verdict}",
            flush=True,
        )
        return answer

    def _page(self, **query: str) -> Any:
        return self._client.request(
            "GET", "queues", "/", QUEUE, "messages", query={"limit": "50", **query}
        )

    def _search(self) -> int:
        """A dry run that looks at every message and finds none of this size."""
        plan = {"action": "delete", "filter": "size > 1000000", "dry_run": True}
        return int(self._job(QUEUE, plan)["looked_at"])

    def _job(self, queue: str, plan: dict[str, Any]) -> Any:
        path = ("queues", "/", queue, "messages", "jobs")
        name = self._client.request("POST", *path, body=plan, query={})["job"]
        while True:
            row = self._client.request("GET", "message-jobs", "/", name, query={})
            if row["state"] not in ("running", "stopping"):
                return row
            time.sleep(JOB_LOOK_S)


def _has(count: int) -> Callable[[Any], bool]:
    return lambda answer: len(answer["messages"]) == count


def _did(count: int) -> Callable[[Any], bool]:
    return lambda row: (row["state"], row["done"], row["left"]) == ("completed", count, [])


def fill(server: ServerProcess, count: int, size: int) -> None:
    client = AmqpSocket("127.0.0.1", server.port)
    client.declare("other", {})
    client.declare(QUEUE, {"x-queue-mode": "lazy"})
    began = time.perf_counter()
    client.publish(persistent_publish(QUEUE, os.urandom(size)), count)
    client.close()
    print(f"filled with {count:,} messages in {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        arguments = ["--data-dir", str(data), "--amqp", "127.0.0.1:0"]
        server = ServerProcess(arguments, Path(directory))
        try:
            fill(server, options.messages, options.size)
            good = Course(server, data, options.messages).run()
        finally:
            server.kill()
    sys.exit(not good)


if __name__ == "__main__":
    main()
