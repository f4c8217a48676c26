"""The times at which a leader broadcasts its instructions: when the turn is over, or a bit later.

What clients wait for goes when the turn is over. No client waits for the news that messages were
fetched or acknowledged. So that news waits for a publish to go with, which halves the broadcasts
where messages come one at a time. If the leader dies meanwhile, the next one delivers those
messages again, as it does when an acknowledgement is lost on its way from the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.core.ports import Clock
from warren.mirror.replication.levels.instructions import Op

MAY_WAIT: Final = frozenset({Op.FETCH, Op.ACK})
"""The instructions that no client waits for. Where an operator waits for an ACK, the level asks for
a flush (`LeaderLevel`, `DueLeaderLevel`)."""

WAIT_S: Final = 0.02
"""The longest time for which such instructions wait."""


class FlushTimes:
    """`flush_soon` has `flush` called when the turn is over."""

    def __init__(
        self, clock: Clock, flush_soon: Callable[[], None], flush: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._flush_soon = flush_soon
        self._flush = flush
        self._waits = False
        self.is_due = False
        """Whether `flush` will be called when the turn is over."""

    def soon(self) -> None:
        if not self.is_due:
            self.is_due = True
            self._flush_soon()

    def after(self, op: Op) -> None:
        """Flush when the turn is over, or a moment later, if clients do not wait for this."""
        if self.is_due:
            return
        if op not in MAY_WAIT:
            self.soon()
        elif not self._waits:
            self._waits = True
            self._clock.call_later(WAIT_S, self._wait_is_over)

    def end(self) -> None:
        """Flush no more."""
        self._flush = self._flush_soon = _do_nothing

    def _wait_is_over(self) -> None:
        self._waits = False
        self._flush()


def _do_nothing() -> None: ...
