"""How long a node takes to be back after kill -9 with many messages, and what clients are told.

    python benchmarks/restart.py [-n 1000000] [-s 1024] [--directory DIR] [--lazy]

Starts `warren server` in a directory of its own, fills a queue with persistent messages, kills the
node, starts it again on the same port, and asks it all the time until it is ready. Prints one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from amqp_socket import AmqpSocket, Refused, disk_bytes, persistent_publish, resident_bytes

QUEUE = "restart"
ASK_EVERY_S = 0.05
MIB = 1 << 20


class Server:
    """A node that may not be ready yet. `arguments` are further ones of its command line."""

    def __init__(self, directory: Path, port: int, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "warren", "server", "--data-dir", "data"]
        self.started = time.perf_counter()
        with (directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--amqp", f"127.0.0.1:{port}", "--http", "none", *arguments],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_until_ready(self) -> tuple[int, float]:
        """The port, and how many seconds after the start."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        ready_s = time.perf_counter() - self.started
        found = re.search(r"ready: amqp (\d+)", line)
        if found is None:
            raise SystemExit(f"the node does not start: {line!r}, see server.log")
        return int(found[1]), ready_s

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Asking:
    """A client that tries to connect again and again; `told` are the answers that were new."""

    def __init__(self, port: int, started: float) -> None:
        self.told: list[tuple[float, str]] = []
        self.refused_by_system = 0
        self.accepted_s: float | None = None
        self._port = port
        self._started = started
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self.accepted_s is None:
            try:
                AmqpSocket("127.0.0.1", self._port).close()
                self.accepted_s = time.perf_counter() - self._started
            except Refused as answer:
                at_s = round(time.perf_counter() - self._started, 2)
                if not self.told or self.told[-1][1] != str(answer):
                    self.told.append((at_s, str(answer)))
            except OSError:
                self.refused_by_system += 1
            time.sleep(ASK_EVERY_S)

    def wait(self) -> None:
        self._thread.join(60)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    server = Server(directory, 0)
    try:
        port, empty_s = server.wait_until_ready()
        client = AmqpSocket("127.0.0.1", port)
        client.declare(QUEUE, {"x-queue-mode": "lazy"} if options.lazy else {})
        unit = persistent_publish(QUEUE, os.urandom(options.size))
        began = time.perf_counter()
        client.publish(unit, options.messages - 1)
        client.publish_safely(unit)
        fill_s = time.perf_counter() - began
        full_mib = resident_bytes(server.process.pid) // MIB
        server.kill()
        client.close()

        server = Server(directory, port)
        asking = Asking(port, server.started)
        _, ready_s = server.wait_until_ready()
        asking.wait()
        client = AmqpSocket("127.0.0.1", port)
        count = client.declare(QUEUE, {}, passive=True)
        result: dict[str, object] = {
            "messages": options.messages,
            "size": options.size,
            "fill_s": round(fill_s, 2),
            "start_empty_s": round(empty_s, 2),
            "start_s": round(ready_s, 2),
            "client_accepted_s": asking.accepted_s and round(asking.accepted_s, 2),
            "told": asking.told,
            "connections_refused": asking.refused_by_system,
            "messages_there": count,
            "rss_mib_full": full_mib,
            "rss_mib_restarted": resident_bytes(server.process.pid) // MIB,
            "disk_mib": disk_bytes(str(directory)) // MIB,
        }
        began = time.perf_counter()
        client.drain(QUEUE, options.messages, acked_at_once=500)
        result["drain_per_s"] = round(options.messages / (time.perf_counter() - began))
        client.close()
        return result
    finally:
        server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--messages", type=int, default=1_000_000)
    parser.add_argument("-s", "--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--lazy", action="store_true", help="a lazy queue")
    parser.add_argument("--directory", type=Path, help="where to make a directory for the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-restart-", dir=options.directory) as path:
        result = measure(options, Path(path))
    print(json.dumps(result))
    if result["messages_there"] != options.messages:
        raise SystemExit("messages are missing")


if __name__ == "__main__":
    main()
