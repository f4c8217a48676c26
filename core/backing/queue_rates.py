"""How fast a queue takes in, hands out, and gets back acknowledgements.

Four exponential moving averages over the totals of a queue (storage_internals.md section c.4).
They are calculated when they are asked for, never per message.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

HALF_LIFE_S = 5.0
IDLE_PER_S = 0.01
"""Below this a rate counts as none."""


class Totals(NamedTuple):
    """How many messages ever came in, went out, became pending, and were acknowledged."""

    ingress: float
    egress: float
    ack_ingress: float
    ack_egress: float


class QueueRates:
    """`per_s` are the averages in messages per second; `update` brings them up to date."""

    __slots__ = ("_counted_at", "_in_memory", "_totals", "per_s")

    def __init__(self, totals: Totals, now: float) -> None:
        self.per_s = Totals(0.0, 0.0, 0.0, 0.0)
        self._totals = totals
        self._counted_at = now
        self._in_memory = 0

    def update(self, totals: Totals, now: float) -> None:
        elapsed_s = now - self._counted_at
        if elapsed_s <= 0:
            return
        weight = exp(elapsed_s * log(0.5) / HALF_LIFE_S)
        self.per_s = Totals(
            *(
                (total - before) / elapsed_s * (1 - weight) + rate * weight
                for total, before, rate in zip(totals, self._totals, self.per_s, strict=True)
            )
        )
        self._totals = totals
        self._counted_at = now

    def duration_s(self, in_memory: int) -> float | None:
        """Return for how many seconds messages in memory last at these rates; None for an idle
        queue.

        `in_memory` counts ready and pending messages; it is averaged with the last answer.
        """
        before, self._in_memory = self._in_memory, in_memory
        if all(rate < IDLE_PER_S for rate in self.per_s):
            return None
        return (before + in_memory) / (4 * sum(self.per_s))

    def count_for(self, duration_s: float) -> int:
        """Return how many messages last for `duration_s`."""
        return int(duration_s * sum(self.per_s))

    @property
    def acks_grow_faster(self) -> bool:
        """Whether the number of pending messages grows faster than that of ready ones."""
        per_s = self.per_s
        return per_s.ack_ingress - per_s.ack_egress > per_s.ingress - per_s.egress
