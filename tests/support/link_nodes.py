"""Nodes with links for tests: real sockets on loopback, all that is reported is kept in order."""

from __future__ import annotations

import asyncio
import functools
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop
from link_pipe import SECRET, End, dialler, identity

from warren.clock import LoopClock
from warren.core.ports import Clock
from warren.mirror.links.links import Links
from warren.mirror.links.ports import EndReason, Frame, Identity, LinkSettings, LinkUser

PATIENCE_S = 20.0
QUICK = LinkSettings(interval_s=0.1, timeout_s=0.5, redial_first_s=0.01, redial_max_s=0.1)


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a loop of its own, such as a node has."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*arguments, **named))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Come back once the condition holds, which must be soon."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


class LinkNode:
    """A node and what its links reported: (name of the callback, node, value) in `reports`."""

    def __init__(
        self,
        name: str,
        *,
        secret: bytes = SECRET,
        settings: LinkSettings = QUICK,
        listen: tuple[str, int] | None = ("127.0.0.1", 0),
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        **identity_changes: Any,
    ) -> None:
        self.name = name
        self.reports: list[tuple[str, str, Any]] = []
        self.links = Links(
            identity(name, **identity_changes),
            secret,
            LinkUser(self.on_up, self.on_down, self.on_frames, self.on_congested),
            clock=clock if clock is not None else LoopClock(asyncio.get_running_loop()),
            rng=random.Random(name),
            listen=listen,
            settings=settings,
            server_tls=server_tls,
            client_tls=client_tls,
        )

    async def __aenter__(self) -> LinkNode:
        await self.links.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.links.stop()
        self.check_reports()
        assert not self.links.peers()

    def on_up(self, node: str, peer: Identity) -> None:
        self.reports.append(("up", node, peer))

    def on_down(self, node: str, reason: EndReason) -> None:
        self.reports.append(("down", node, reason))

    def on_frames(self, node: str, frames: list[Frame]) -> None:
        self.reports.append(("frames", node, frames))

    def on_congested(self, node: str, congested: bool) -> None:
        self.reports.append(("congested", node, congested))

    def dials(self, other: LinkNode) -> None:
        self.links.connect(other.name, "127.0.0.1", other.links.port)

    def is_up(self, *names: str) -> bool:
        return set(names) <= self.links.peers().keys()

    def count(self, what: str) -> int:
        return sum(report[0] == what for report in self.reports)

    def reasons(self) -> list[EndReason]:
        """Why links went down, in order."""
        return [value for what, _, value in self.reports if what == "down"]

    def frames(self, node: str) -> list[Frame]:
        """All frames that came from the node."""
        return [
            frame
            for what, sender, frames in self.reports
            if what == "frames" and sender == node
            for frame in frames
        ]

    def check_reports(self) -> None:
        """Up and down alternate, and everything else is between them."""
        up: set[str] = set()
        for what, node, value in self.reports:
            if what == "up":
                assert node not in up, f"{node} came up twice"
                assert value.name == node
                up.add(node)
            else:
                assert node in up, f"{what} of {node}, which is down"
            if what == "down":
                up.remove(node)


class HandPeer:
    """A peer of a node that reads and writes when the test says so, and is otherwise correct."""

    def __init__(self, name: str, **options: Any) -> None:
        self.end: End = dialler(name, **options)
        self.socket = socket.socket()
        self.socket.setblocking(False)

    def __enter__(self) -> HandPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    async def dials(self, node: LinkNode) -> None:
        await asyncio.get_running_loop().sock_connect(self.socket, ("127.0.0.1", node.links.port))

    async def links(self, node: LinkNode) -> None:
        """Dial the node and complete the handshake."""
        await self.dials(node)
        while self.end.peer is None:
            await self.writes()
            assert await self.reads(), self.end.events

    async def writes(self) -> None:
        """Write what there is to say."""
        await self.sends_octets(self.end.says())

    async def sends_octets(self, octets: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, octets)

    async def reads(self, size: int = 1 << 16) -> bytes:
        """Read what there is to read; nothing at the end."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                octets = await asyncio.get_running_loop().sock_recv(self.socket, size)
            except ConnectionError:
                octets = b""
        self.end.takes(octets)
        return octets

    async def reads_to_end(self) -> bytes:
        """All that comes until the node closes."""
        octets = b""
        while piece := await self.reads():
            octets += piece
        return octets
