"""What the declaration of a mirrored queue waits for: mirrors at the nodes that answer."""

from __future__ import annotations

from collections.abc import Collection

from warren.core.ports import Clock
from warren.core.scheduling.waiting import Event

MIRRORS_S = 2.0
"""The longest a declaration waits for the mirrors of its queue."""


class AwaitedMirrors:
    """The declarations of one queue that wait for its mirrors."""

    __slots__ = ("_clock", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Event, Collection[str]] = {}

    async def wait(self, nodes: Collection[str]) -> None:
        """Return when the mirrors at these nodes have begun, or after `MIRRORS_S`."""
        if not nodes:
            return
        event = Event()
        self._waiting[event] = nodes
        timer = self._clock.call_later(MIRRORS_S, event.happen)
        await event
        timer.cancel()
        del self._waiting[event]

    def have_begun(self, mirrors: Collection[str]) -> None:
        """These are all the mirrors that have begun."""
        for event, nodes in list(self._waiting.items()):
            if all(node in mirrors for node in nodes):
                event.happen()
