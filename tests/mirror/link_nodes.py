"""Nodes with links for tests: real sockets on loopback, all that is reported is kept in order."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import Any

from warren.clock import LoopClock
from warren.mirror.links import Links
from warren.mirror.ports import EndReason, Frame, Identity, LinkSettings, LinkUser

SECRET = b"the secret of this cluster"
PATIENCE_S = 20.0
QUICK = LinkSettings(interval_s=0.1, timeout_s=0.5, redial_first_s=0.01, redial_max_s=0.1)


def identity(name: str, **changes: Any) -> Identity:
    """A node's identity; its node id follows from its name."""
    values: dict[str, Any] = {
        "name": name,
        "node_id": name.encode().hex()[:64],
        "incarnation": 1,
        "cluster_id": "meadow",
        "software": "warren/0",
        "capabilities": {"gm": 1},
    }
    return Identity(**{**values, **changes})


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
        **identity_changes: Any,
    ) -> None:
        self.name = name
        self.reports: list[tuple[str, str, Any]] = []
        self.links = Links(
            identity(name, **identity_changes),
            secret,
            LinkUser(self.on_up, self.on_down, self.on_frames, self.on_congested),
            clock=LoopClock(asyncio.get_running_loop()),
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
