"""Counts and latencies: recorded by the workers, added up by the conductor.

Latencies are kept in a histogram, so that a run of any length needs the same memory. Its buckets
are exact below 256 ns; above, each power of two is divided into 128 buckets, so that a value is off
by less than 0.4 %. The smallest and the largest value are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

PERCENTILES = (
    ("median", 500),
    ("p75", 750),
    ("p95", 950),
    ("p99", 990),
    ("p99.9", 999),
)
"""The names in reports, and how many of 1000 values are not above the percentile."""

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class PerfHistogram:
    """Durations in nanoseconds."""

    __slots__ = ("counts", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.total = 0
        self.smallest = 0
        self.largest = 0

    def record_since(self, stamps: Iterable[int], now_ns: int) -> None:
        """Count `now_ns - stamp` for each stamp. Stamps in the future come from another host's
        clock and are left out."""
        counts = self.counts
        durations = [now_ns - stamp for stamp in stamps if stamp <= now_ns]
        if not durations:
            return
        for duration in durations:
            shift = duration.bit_length() - 8
            if shift > 0:
                counts[(shift << 7) + (duration >> shift)] += 1
            else:
                counts[duration] += 1
        self._widen(min(durations), max(durations))
        self.total += len(durations)

    def add(self, other: PerfHistogram) -> None:
        """Add the counts of another histogram."""
        if not other.total:
            return
        for bucket, count in other.counts.items():
            self.counts[bucket] += count
        self._widen(other.smallest, other.largest)
        self.total += other.total

    def percentile(self, permille: int) -> int:
        """The nearest-rank percentile in nanoseconds; 0 when nothing was recorded."""
        rank = max(1, (permille * self.total + 999) // 1000)
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return min(max(_middle(bucket), self.smallest), self.largest)
        return 0

    def in_ms(self) -> dict[str, float] | None:
        """Smallest, percentiles and largest in milliseconds; None when nothing was recorded."""
        if not self.total:
            return None
        values = {"min": self.smallest}
        values |= {name: self.percentile(permille) for name, permille in PERCENTILES}
        values["max"] = self.largest
        return {name: value / NS_PER_MS for name, value in values.items()}

    def _widen(self, smallest: int, largest: int) -> None:
        """Update the extremes; to be called before `total` grows."""
        self.smallest = min(self.smallest, smallest) if self.total else smallest
        self.largest = max(self.largest, largest)


COUNTERS = (
    "sent",
    "sent_bytes",
    "confirmed",
    "nacked",
    "returned",
    "received",
    "received_bytes",
    "requeued",
)


@dataclass(slots=True)
class Tally:
    """Counts of the events in some part of a run.

    Bytes are those of bodies. Times are of the monotonic clock, 0 for never.
    """

    sent: int = 0
    sent_bytes: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    received: int = 0
    received_bytes: int = 0
    requeued: int = 0
    published_until_ns: int = 0
    received_until_ns: int = 0
    consume_latency: PerfHistogram = field(default_factory=PerfHistogram)
    confirm_latency: PerfHistogram = field(default_factory=PerfHistogram)

    def add(self, other: Tally) -> None:
        """Add the counts of a later or a parallel part."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.published_until_ns = max(self.published_until_ns, other.published_until_ns)
        self.received_until_ns = max(self.received_until_ns, other.received_until_ns)
        self.consume_latency.add(other.consume_latency)
        self.confirm_latency.add(other.confirm_latency)

    def take(self) -> Tally:
        """The counts since the last call; counting starts again at 0."""
        taken = Tally()
        taken.add(self)
        for name in COUNTERS:
            setattr(self, name, 0)
        self.consume_latency.clear()
        self.confirm_latency.clear()
        return taken


def _middle(bucket: int) -> int:
    if bucket < 256:
        return bucket
    shift = (bucket >> 7) - 1
    return ((bucket - (shift << 7)) << shift) + (1 << shift) // 2
