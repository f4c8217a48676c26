"""Processes of one broker show the same definitions: a client's next request, to any of them, finds
what it has defined.

A transaction of definitions is done for a node when the node itself has applied its revision; other
nodes apply it a moment later. A client chooses the node of a cluster that it talks to. The
processes of one broker are chosen for it, and must show it one state. So a process also waits until
the others on its machine have applied the revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from warren.core.errors import BrokerError
from warren.core.scheduling.waiting import Event, run
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.members.membership import Membership
from warren.mirror.messages.calls import Calls

REACHED = "definitions.reached"

LINKED_S = 5.0
LINKED_POLL_S = 0.005

PATIENCE_S = 2.0
"""Seconds that the other processes have to answer, about as long as a silent process counts as up;
after them the client is answered anyway."""


class Abreast:
    """`running` are the nodes that can be reached, including this one."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        calls: Calls,
        membership: Membership,
        running: Callable[[], Collection[str]],
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._membership = membership
        self._running = running
        self._waiting: list[Event] = []
        metadata.on_applied = self._applied
        metadata.seen_elsewhere = self._seen
        calls.serve(REACHED, self._asked)

    async def linked(self) -> None:
        """Return when the other processes that are up can be reached, as clients expect, or when
        that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LINKED_S
        while self._here(self._membership.running().keys() - self._running()):
            if loop.time() >= deadline:
                return
            await asyncio.sleep(LINKED_POLL_S)

    def _others(self) -> list[str]:
        """The other processes that can be reached."""
        return self._here(self._running())

    def _here(self, nodes: Collection[str]) -> list[str]:
        """Those of the nodes that are other processes of this node's broker."""
        return [node for node in nodes if self._membership.is_beside(node)]

    def _applied(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.happen()

    async def _asked(self, _node: str, revision: int) -> None:
        while self._metadata.revision < revision:
            event = Event()
            self._waiting.append(event)
            await event

    async def _seen(self, revision: int) -> None:
        """Return when the other processes have applied a revision, or `PATIENCE_S` is over."""
        others = self._others()
        left = len(others)
        all_told = asyncio.Event()

        def told(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                all_told.set()

        for node in others:
            run(self._ask(node, revision), told)
        if others:
            with suppress(TimeoutError):
                await asyncio.wait_for(all_told.wait(), PATIENCE_S)

    async def _ask(self, node: str, revision: int) -> None:
        # A process that has ended meanwhile, or has only begun, has no clients to surprise.
        with suppress(BrokerError):
            await self._calls.ask(node, REACHED, revision)
