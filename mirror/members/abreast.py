"""Nodes of a cluster show the same definitions: a client's next request, to any of them, finds what
it has defined.

A node sees a transaction when it has applied the transaction's revision; the others apply it a
moment later. Without more, a client that is told at one node that its queue is declared, and
publishes at another one at once, finds no queue there. So a transaction is done for the node that
sent it when the others have applied it as well. RabbitMQ does the same: it changes definitions at
all running nodes before it answers a client.

A node that does not answer must not hold up the others for long: after `PATIENCE_S` no node waits
for it until it answers again. Its clients may miss what was defined meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from warren.core.errors import BrokerError
from warren.core.ports import Clock, Timer
from warren.core.scheduling.waiting import Event, run
from warren.mirror.messages.calls import Calls

REACHED = "definitions.reached"

LINKED_S = 5.0
LINKED_POLL_S = 0.005

PATIENCE_S = 2.0
"""Seconds that a node has to answer. All that is defined meanwhile waits, once."""


class OwnDefinitions(Protocol):
    """The node's own definitions, as far as this needs them (`SharedDefinitions`)."""

    on_decided: Callable[[int], None]
    on_advanced: Callable[[], None]

    @property
    def revision(self) -> int: ...

    def others_reached(self, revision: int) -> None: ...


class Abreast:
    """`others` are the other nodes that can be reached; one that pauses ends its links.

    Each of them is asked one question at a time: to answer when it has applied the newest revision
    at which a transaction of this node was decided.
    """

    def __init__(
        self,
        metadata: OwnDefinitions,
        calls: Calls,
        clock: Clock,
        others: Callable[[], Collection[str]],
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._clock = clock
        self._others = others
        self._decided_at = 0
        # The nodes that are asked, each with its timer; None once a node has not answered in time.
        self._asked: dict[str, Timer | None] = {}
        # The newest revision that each asked node is known to have applied; others have all.
        self._reached: dict[str, int] = {}
        # Happen when `revision` has changed: answers to other nodes wait for that.
        self._waiting: list[Event] = []
        metadata.on_advanced = self._advanced
        metadata.on_decided = self._decided
        metadata.others_reached(0)
        calls.serve(REACHED, self._answer)

    async def linked(self, expected: Callable[[], Collection[str]]) -> None:
        """Return when these nodes can be reached, as clients expect, or after `LINKED_S` seconds at
        the latest."""
        deadline = self._clock.now() + LINKED_S
        while set(expected()) - set(self._others()) and self._clock.now() < deadline:
            await asyncio.sleep(LINKED_POLL_S)

    def silent(self) -> list[str]:
        """The nodes that can be reached, and have not answered in time."""
        return [node for node, timer in self._asked.items() if timer is None]

    def _decided(self, revision: int) -> None:
        """A batch of this node's transactions was decided at a revision."""
        self._decided_at = revision
        for node in self._others():
            if node not in self._asked:
                self._ask(node)
        self._tell()

    def _ask(self, node: str) -> None:
        revision = self._decided_at
        self._asked[node] = self._clock.call_later(PATIENCE_S, lambda: self._too_late(node))
        run(self._reach(node, revision), lambda result: self._answered(node, revision, result()))

    async def _reach(self, node: str, revision: int) -> bool:
        """Return True when the node has applied the revision; False if it is gone, or was only just
        started."""
        try:
            await self._calls.ask(node, REACHED, revision)
        except BrokerError:
            return False
        return True

    def _answered(self, node: str, revision: int, reached: bool) -> None:
        timer = self._asked.pop(node)
        if timer is not None:
            timer.cancel()
        self._reached[node] = revision
        if reached and revision < self._decided_at:
            self._ask(node)
        else:
            del self._reached[node]
        self._tell()

    def _too_late(self, node: str) -> None:
        self._asked[node] = None
        self._tell()

    def _tell(self) -> None:
        """Tell the definitions the revision that all awaited nodes have applied."""
        awaited = (node for node, timer in self._asked.items() if timer is not None)
        reached = (self._reached.get(node, 0) for node in awaited)
        self._metadata.others_reached(min(reached, default=self._decided_at))

    async def _answer(self, _node: str, revision: int) -> None:
        while self._metadata.revision < revision:
            event = Event()
            self._waiting.append(event)
            await event

    def _advanced(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.happen()
