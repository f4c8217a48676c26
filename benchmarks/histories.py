"""What the histories of many queues cost: memory, time, and the longest turn of the loop.

    python benchmarks/histories.py [QUEUES]

declares so many queues at a node in this process, has them move as if messages passed, and takes
rounds of samples with a clock of its own. The figures of docs/monitoring.md come from here; give it
a quiet machine.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from warren import Broker
from warren.core.node import Node

ROUND_S = 5.0
A_BATCH = 5000


class FastClock:
    """The clock of a node, ahead by what it was told."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._ahead_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def now(self) -> float:
        return float(self._clock.now()) + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


class Measured:
    """A node whose rounds of samples are taken by hand."""

    def __init__(self, broker: Broker, queues: int) -> None:
        self._broker = broker
        management = broker._running.management
        assert management is not None
        self.statistics = management.managed.statistics
        self.clock = FastClock(self.statistics._node.clock)
        self._call(self._take_over())
        declared = 0
        while declared < queues:
            broker.call(declaring(declared, min(declared + A_BATCH, queues)))
            declared += A_BATCH
        broker.call(lambda node: (gc.collect(), gc.freeze(), gc.set_threshold(4000, 4, 1_000_000)))

    async def _take_over(self) -> None:
        assert self.statistics._task is not None
        self.statistics._task.cancel()
        self.statistics._node.clock = self.clock

    def _call(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._broker._loop).result()

    def rounds(self, count: int, moving: int) -> None:
        """The last of so many rounds, in each of which so many queues have moved."""
        for _ in range(count):
            self.clock.advance(ROUND_S)
            self._broker.call(moved(moving))
            cpu_s, worst_s = self.timed(self.statistics.sample)
        detail = self.statistics._detail.coarse
        print(
            f"{moving:7} busy, {count:4} rounds: {resident_mb():6.0f} MB, samples "
            f"{self.statistics.history_octets / 2**20:5.1f} MiB, {detail} times coarser, a round "
            f"{cpu_s:.2f} s, longest turn {worst_s * 1000:.0f} ms"
        )

    def saved(self, directory: Path) -> None:
        cpu_s, worst_s = self.timed(self.statistics.save)
        size = (directory / "statistics.history").stat().st_size
        print(f"saved: {size / 2**20:.1f} MiB, {cpu_s:.2f} s, longest turn {worst_s * 1000:.0f} ms")

    def timed(self, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """Seconds of the processor, altogether and in the longest turn of the loop."""

        async def run() -> tuple[float, float]:
            worst = 0.0

            async def watch() -> None:
                nonlocal worst
                last = time.thread_time()
                while True:
                    await asyncio.sleep(0)
                    now = time.thread_time()
                    worst, last = max(worst, now - last), now

            watching = asyncio.ensure_future(watch())
            began = time.thread_time()
            await work()
            watching.cancel()
            return time.thread_time() - began, worst

        cpu_s, worst_s = self._call(run())
        return float(cpu_s), float(worst_s)


def declaring(first: int, end: int) -> Callable[[Node], None]:
    def declare(node: Node) -> None:
        for number in range(first, end):
            node.vhosts["/"].declare_queue(
                f"queue-{number}",
                durable=False,
                auto_delete=False,
                exclusive_owner=None,
                arguments={},
            )

    return declare


def moved(count: int) -> Callable[[Node], None]:
    """As if messages had passed through the first so many queues."""

    def move(node: Node) -> None:
        for queue in list(node.vhosts["/"].queues.values())[:count]:
            queue.published += 100_000
            queue.acked += 99_000
            queue.got_no_ack += 1000

    return move


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    queues = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as name, Broker(data_dir=name, http_port=0) as broker:
        node = Measured(broker, queues)
        print(f"{queues} queues: {resident_mb():.0f} MB")
        node.rounds(3, 0)
        node.rounds(120, 2000)
        node.rounds(40, queues)
        node.saved(Path(name))
        # All are idle from now on.
        node.rounds(15, 0)
        node.clock.advance(3700)
        node.rounds(2, 0)


if __name__ == "__main__":
    main()
