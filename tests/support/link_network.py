"""Nodes with links on a network in memory: every message waits until the test lets it arrive."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from link_nodes import LinkNode
from manual_clock import ManualClock

from warren.mirror.links.ports import LinkSettings


class Wire(asyncio.Transport):
    """One end of a connection. None among what arrives is the connection's end."""

    def __init__(self, clock: ManualClock, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.other: Wire
        self.arriving: deque[bytes | None] = deque()
        self.over = False
        self._clock = clock

    def write(self, data: Any) -> None:
        self.other.arriving.append(bytes(data))

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self.over:
            self.other.arriving.append(None)
            self.lost()

    def abort(self) -> None:
        self.close()

    def lost(self) -> None:
        self.over = True
        self.arriving.clear()
        self._clock.call_soon(lambda: self.protocol.connection_lost(None))

    def is_closing(self) -> bool:
        return self.over

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever kept back here."""

    def pause_reading(self) -> None:
        """Nothing is sent that is large enough for that."""

    def deliver(self) -> None:
        """Let the next message arrive."""
        data = self.arriving.popleft()
        if self.over:
            return
        if data is None:
            self.lost()
        else:
            self.protocol.data_received(data)


class Network:
    """All connections, and the clock of all nodes."""

    def __init__(self, rng: random.Random) -> None:
        self.clock = ManualClock()
        self.wires: list[Wire] = []
        self.acceptors: dict[int, Callable[[], asyncio.Protocol]] = {}
        self._rng = rng

    def node(self, name: str, port: int, settings: LinkSettings) -> LinkNode:
        """A node that listens on the port."""
        node = LinkNode(name, listen=None, settings=settings, clock=self.clock)
        node.links._loop = self  # type: ignore[assignment]
        self.acceptors[port] = node.links._accept
        return node

    # What links ask of a loop.

    def create_task(self, dial: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(dial)

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> None:
        dialler = Wire(self.clock, factory())
        acceptor = Wire(self.clock, self.acceptors[port]())
        dialler.other, acceptor.other = acceptor, dialler
        self.wires += (dialler, acceptor)
        acceptor.protocol.connection_made(acceptor)
        dialler.protocol.connection_made(dialler)

    # What a test does.

    async def run(self) -> None:
        """Let everything happen that waits for nobody."""
        for _ in range(5):
            self.clock.advance(0)
            await asyncio.sleep(0)
        self.clock.advance(0)

    async def deliver_one(self) -> bool:
        """Let one message arrive, on any connection; False when none is under way."""
        ready = [wire for wire in self.wires if wire.arriving]
        if ready:
            self._rng.choice(ready).deliver()
            await self.run()
        return bool(ready)

    def break_one(self) -> None:
        """End a connection: in each direction some suffix of what is under way is lost."""
        alive = [wire for wire in self.wires if not wire.over and not wire.other.over]
        if alive:
            one = self._rng.choice(alive)
            for wire in (one, one.other):
                keep = self._rng.randint(0, len(wire.arriving))
                wire.arriving = deque([*list(wire.arriving)[:keep], None])
