"""A node with links as a program: sends back every frame, until its input ends.

Prints its port, then a line for every report.
"""

from __future__ import annotations

import asyncio
import random
import sys

import uvloop

from warren.clock import LoopClock
from warren.mirror.links.links import Links
from warren.mirror.links.ports import EndReason, Frame, Identity, LinkSettings, LinkUser


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(name: str, incarnation: int, port: int, secret: bytes) -> None:
    def send_back(node: str, frames: list[Frame]) -> None:
        for kind, payload in frames:
            links.send(node, kind, payload)

    def up(node: str, peer: Identity) -> None:
        say("up", node, peer.incarnation)

    def down(node: str, reason: EndReason) -> None:
        say("down", node, reason)

    loop = asyncio.get_running_loop()
    links = Links(
        Identity(name, name.encode().hex(), incarnation, "meadow"),
        secret,
        LinkUser(up, down, send_back, lambda node, congested: None),
        clock=LoopClock(loop),
        rng=random.Random(incarnation),
        listen=("127.0.0.1", port),
        settings=LinkSettings(interval_s=0.1, timeout_s=0.5),
    )
    await links.start()
    say(links.port)
    await loop.run_in_executor(None, sys.stdin.read)
    await links.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()))
