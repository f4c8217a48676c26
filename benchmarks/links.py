"""Frames a second on one link between two processes on loopback.

    python -P benchmarks/links.py [--seconds 3] [--both]

One process sends as fast as the link is not congested, the other counts; with `--both` each does
both. The microseconds are processor time a frame, of either process.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from warren.allocator import keep_freed_memory
from warren.clock import LoopClock
from warren.mirror.links.links import Links
from warren.mirror.links.ports import EndReason, Frame, Identity, LinkUser

SECRET = b"nobody else knows it"
FRAMES_A_TURN = 500


class Runner:
    """One of the two nodes."""

    def __init__(self, name: str, sends: bool, payload: bytes) -> None:
        self.received = 0
        self.sent = 0
        self.up = asyncio.Event()
        self._sends = sends
        self._payload = payload
        self._congested = False
        self._loop = asyncio.get_running_loop()
        self.links = Links(
            Identity(name, name.encode().hex(), 1, "benchmark"),
            SECRET,
            LinkUser(self.on_up, self.on_down, self.on_frames, self.on_congested),
            clock=LoopClock(self._loop),
            rng=random.Random(name),
            listen=("127.0.0.1", 0),
        )

    def on_up(self, node: str, peer: Identity) -> None:
        self.up.set()
        if self._sends:
            self.send(node)

    def on_down(self, node: str, reason: EndReason) -> None:
        self._congested = True

    def on_frames(self, node: str, frames: list[Frame]) -> None:
        self.received += len(frames)

    def on_congested(self, node: str, congested: bool) -> None:
        self._congested = congested
        if not congested:
            self._loop.call_soon(self.send, node)

    def send(self, node: str) -> None:
        send, payload = self.links.send, self._payload
        for _ in range(FRAMES_A_TURN):
            send(node, 1, payload)
        self.sent += FRAMES_A_TURN
        if not self._congested:
            self._loop.call_soon(self.send, node)


async def run_node(
    name: str, sends: bool, size: int, seconds: float, pipe: Connection
) -> dict[str, Any]:
    runner = Runner(name, sends, bytes(size))
    await runner.links.start()
    pipe.send(runner.links.port)
    if name == "b":
        runner.links.connect("a", "127.0.0.1", pipe.recv())
    await runner.up.wait()
    await asyncio.sleep(0.3)
    received, sent, cpu, wall = runner.received, runner.sent, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    frames = runner.received - received, runner.sent - sent
    pipe.send(None)
    pipe.recv()
    await runner.links.stop()
    return {"received": frames[0], "sent": frames[1], "cpu": cpu, "wall": wall}


def node_process(name: str, sends: bool, size: int, seconds: float, pipe: Connection) -> None:
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(run_node(name, sends, size, seconds, pipe)))


def measure(size: int, seconds: float, both: bool) -> None:
    pipes, processes = [], []
    for name, sends in (("a", both), ("b", True)):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=node_process, args=(name, sends, size, seconds, theirs)
        )
        process.start()
        pipes.append(ours)
        processes.append(process)
    port, _ = (pipe.recv() for pipe in pipes)
    pipes[1].send(port)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send(None)
    for name, result in zip(("a", "b"), [pipe.recv() for pipe in pipes], strict=True):
        handled = result["received"] + result["sent"]
        print(
            f"{size:6} octets, {name}: "
            f"{result['received'] / result['wall']:9,.0f} received/s, "
            f"{result['sent'] / result['wall']:9,.0f} sent/s, "
            f"{1e6 * result['cpu'] / max(handled, 1):.2f} us a frame"
        )
    for process in processes:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--both", action="store_true", help="send in both directions")
    arguments = parser.parse_args()
    for size in (100, 1024, 65536):
        measure(size, arguments.seconds, arguments.both)


if __name__ == "__main__":
    main()
