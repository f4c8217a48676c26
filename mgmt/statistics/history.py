"""Samples of figures over time, and the rates and averages they give.

A sample is a tuple of numbers taken at a time; what the places mean is the owner's. Of counters
the rate is what matters, of levels (queue lengths) the value itself. Times are seconds on the
node's clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Figures: TypeAlias = tuple[float, ...]

RETENTION = ((5.0, 600.0), (60.0, 3600.0), (600.0, 28_800.0), (1800.0, 86_400.0))
"""Seconds between samples, and for how long they are kept; RabbitMQ's global policy."""

RETENTION_OF_ONE = ((5.0, 600.0), (60.0, 3600.0))
"""For a single object that somebody looks at."""

RATE_SPAN_S = 10.0
"""A rate is over samples no older than this."""

SAMPLES_MAX = 500
"""As many samples may be asked for at once."""


class Sample(NamedTuple):
    at: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class Window:
    """What of the past is asked for: `age_s` back from now, a sample every `increment_s`."""

    age_s: int
    increment_s: int

    def times(self, now: float) -> list[float]:
        """Newest first."""
        count = min(self.age_s // self.increment_s, SAMPLES_MAX - 1) + 1
        newest = now - now % self.increment_s
        return [newest - self.increment_s * at for at in range(count)]


class Recent:
    """The last samples of something: enough for its rates. `changed_at` is when it last moved."""

    __slots__ = ("_samples", "changed_at")

    def __init__(self, now: float) -> None:
        self._samples: tuple[Sample, ...] = ()
        self.changed_at = now

    def add(self, now: float, figures: Figures) -> None:
        if not self._samples or self._samples[-1].figures != figures:
            self.changed_at = now
        self._samples = (*self._samples[-2:], Sample(now, figures))

    def rates(self, now: float, figures: Figures) -> Figures:
        """How fast each figure grew lately, a second; `figures` are those of now."""
        for then, before in self._samples:
            elapsed = now - then
            if 0 < elapsed <= RATE_SPAN_S:
                changes = zip(figures, before, strict=True)
                return tuple([(new - old) / elapsed for new, old in changes])
        return (0.0,) * len(figures)


class History:
    """Samples at several distances: a short past in detail, a long one in outline."""

    __slots__ = ("_rings",)

    def __init__(self, retention: Iterable[tuple[float, float]] = RETENTION) -> None:
        self._rings: list[tuple[float, deque[Sample]]] = [
            (every_s, deque(maxlen=int(kept_s / every_s) + 2)) for every_s, kept_s in retention
        ]

    def add(self, now: float, figures: Figures) -> None:
        for every_s, ring in self._rings:
            if not ring or now - ring[-1].at >= 0.9 * every_s:
                ring.append(Sample(now, figures))

    def at(self, times: list[float]) -> list[Sample]:
        """The figures at each of these times, as far back as anything is known."""
        ring = self._covering(min(times))
        moments = [sample.at for sample in ring]
        found = []
        for moment in times:
            place = bisect_right(moments, moment)
            if place:
                found.append(Sample(moment, ring[place - 1].figures))
        return found

    def _covering(self, oldest: float) -> deque[Sample]:
        """The most detailed ring that goes back so far; the one that goes back furthest if none."""
        rings = [ring for _, ring in self._rings if ring]
        if not rings:
            return deque()
        return next(
            (ring for ring in rings if ring[0].at <= oldest),
            min(rings, key=lambda ring: ring[0].at),
        )
