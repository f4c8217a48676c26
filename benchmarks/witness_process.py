"""The witness: a client that publishes and gets one message at a time, and notes its waits.

It is a process of its own, so that nothing but the node can make it wait. `Witness` starts and asks
it; the process reads commands as lines, and answers each with a line of JSON:

    measure    forget what was, once the node has been quiet
    report     once the node is quiet again: how often it asked, the worst wait, the 99th percentile
"""

from __future__ import annotations

import gc
import json
import select
import subprocess
import sys
import time
from typing import NamedTuple

from amqp_requests import get, publish
from amqp_socket import AmqpSocket

QUEUE = "witness"
BODY = b"witness"
EVERY_S = 0.0005
"""The pause between two questions: the node has time for its work, and a worst wait is at most
this much too small."""
QUIET_MS = 5.0
QUIET_S = 0.5
"""The node is quiet when nothing took longer than that for so long: work may outlast its reply."""
QUIET_PATIENCE_S = 20.0


class Waits(NamedTuple):
    """How long the witness waited for a message and its delivery."""

    asked: int
    worst_ms: float
    p99_ms: float


class Witness:
    """A witness beside a node; it asks from the start until `end`."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> None:
        """Begin to measure; what was before does not count."""
        self._ask("measure")

    def report(self) -> Waits:
        return Waits(*json.loads(self._ask("report")))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ConnectionError("the witness has ended: the node does not answer")
        return answer


class _Asking:
    """One message after the other; `waits_s` are those since `waits_s` was emptied last."""

    def __init__(self, port: int) -> None:
        self.waits_s: list[float] = []
        self._client = AmqpSocket("127.0.0.1", port)
        self._client.declare(QUEUE, {})
        self._publish_and_get = publish("", QUEUE, BODY) + get(QUEUE)
        self._noisy_at = time.perf_counter()

    def ask(self) -> None:
        began = time.perf_counter()
        self._client.socket.sendall(self._publish_and_get)
        self._client.pass_over_bodies(len(BODY))
        ended = time.perf_counter()
        self.waits_s.append(ended - began)
        if (ended - began) * 1000 > QUIET_MS:
            self._noisy_at = ended
        time.sleep(EVERY_S)

    def ask_until_quiet(self) -> None:
        began = self._noisy_at = time.perf_counter()
        while time.perf_counter() - self._noisy_at < QUIET_S:
            self.ask()
            if time.perf_counter() - began > QUIET_PATIENCE_S:
                return

    def waits(self) -> Waits:
        ordered = sorted(self.waits_s)
        p99 = ordered[len(ordered) * 99 // 100]
        return Waits(len(ordered), round(ordered[-1] * 1000, 2), round(p99 * 1000, 2))


def main() -> None:
    asking = _Asking(int(sys.argv[1]))
    gc.disable()
    while True:
        asking.ask()
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        command = sys.stdin.readline().strip()
        if not command:
            return
        asking.ask_until_quiet()
        answer: object = None
        if command == "measure":
            asking.waits_s.clear()
        else:
            answer = asking.waits()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
