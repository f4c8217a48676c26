"""The mirrors that the declaration of a mirrored queue waits for: those at nodes that answer."""

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
        # The nodes that each declaration waits for.
        self._waiting: dict[Event, set[str]] = {}

    async def wait(self, nodes: Collection[str]) -> None:
        """Return when the mirrors at these nodes have begun or are lost, or after `MIRRORS_S`."""
        if not nodes:
            return
        event = Event()
        self._waiting[event] = set(nodes)
        timer = self._clock.call_later(MIRRORS_S, event.happen)
        await event
        timer.cancel()
        del self._waiting[event]

    def wait_no_more_for(self, nodes: Collection[str]) -> None:
        """Wait no more for these nodes: their mirrors have begun, or they cannot be reached."""
        for event, awaited in list(self._waiting.items()):
            awaited.difference_update(nodes)
            if not awaited:
                event.happen()
