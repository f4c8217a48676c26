"""Samples of figures over time, and the rates and averages they give.

A sample is a tuple of numbers taken at a time; the owner knows what each number means. Counters are
used for their rates, levels (queue lengths) for their values. Times are seconds on the node's
clock.

Samples are kept packed, about 50 octets each instead of 500. A sample is only kept when figures
have changed: until the next one they are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from struct import Struct
from typing import NamedTuple, NewType, TypeAlias

import msgspec

Figures: TypeAlias = tuple[float, ...]
Packed = NewType("Packed", bytes)
Retention: TypeAlias = tuple[tuple[float, float], ...]

RETENTION: Retention = ((5.0, 600.0), (60.0, 3600.0), (600.0, 28_800.0), (1800.0, 86_400.0))
"""Seconds between samples, and for how many seconds they are kept; RabbitMQ's global policy."""

RETENTION_OF_ONE: Retention = ((5.0, 600.0), (60.0, 3600.0))
"""The retention of a single queue, exchange, channel or connection; shorter, as there are many."""

RATE_SPAN_S = 10.0
"""A rate is computed from the oldest sample that is not older than this."""

SAMPLES_MAX = 500
"""The most samples of one request."""

SAMPLE_OCTETS = 64
"""Octets that a ring has for each of its samples; few samples are longer."""

_HEAD = Struct("<iH")
"""The head of each packed sample: its time in tenths of a second, and its length in octets."""

_TENTHS = 10
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int | float, ...]).decode


class Sample(NamedTuple):
    at: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class PastWindow:
    """The past that is asked for: `age_s` back from now, a sample every `increment_s`."""

    age_s: int
    increment_s: int

    def times(self, now: float, wall_offset_s: float = 0.0) -> list[float]:
        """The times of the samples, newest first.

        In the time of day, which is a time plus `wall_offset_s`, they are multiples of the
        increment. So all nodes of a cluster answer with samples of the same moments.
        """
        count = min(self.age_s // self.increment_s, SAMPLES_MAX - 1) + 1
        newest = now - (now + wall_offset_s) % self.increment_s
        return [newest - self.increment_s * at for at in range(count)]


def pack(figures: Figures) -> Packed:
    return Packed(_encode(figures))


def unpack(packed: bytes) -> Figures:
    """The figures in packed octets. Raises `msgspec.DecodeError` for other octets."""
    return _decode(packed)


class Recent:
    """The last samples of an object, enough for its rates. `changed_at` is when it last changed."""

    __slots__ = ("_samples", "changed_at")

    def __init__(self, now: float) -> None:
        self._samples: tuple[tuple[float, Packed], ...] = ()
        self.changed_at = now

    def add(self, now: float, packed: Packed) -> bool:
        """Add a sample; returns whether its figures differ from those of the last one."""
        changed = not self._samples or self._samples[-1][1] != packed
        if changed:
            self.changed_at = now
        self._samples = (*self._samples[-2:], (now, packed))
        return changed

    @property
    def last(self) -> Packed:
        return self._samples[-1][1]

    def rates(self, now: float, figures: Figures) -> Figures:
        """How fast each figure grew lately, per second; `figures` are the current ones."""
        for then, before in self._samples:
            elapsed = now - then
            if 0 < elapsed <= RATE_SPAN_S:
                changes = zip(figures, unpack(before), strict=True)
                return tuple([(new - old) / elapsed for new, old in changes])
        return (0.0,) * len(figures)


class Ring:
    """Packed samples at one interval; the oldest make room for new ones.

    The time of day is cut into spans of that interval, and the last sample of each span is kept. So
    the value at the end of a span, where samples are asked for, is exact, however busy the span
    was.
    """

    __slots__ = ("_count", "_newest", "_newest_at", "_octets", "_span")

    def __init__(self) -> None:
        self._octets = bytearray()
        self._count = 0
        # The sample of the current span; the very first sample is kept at once.
        self._newest: Packed | None = None
        self._newest_at = 0.0
        self._span = -1.0

    def add(self, now: float, packed: Packed, span: float) -> bool:
        """Add a sample of the span with number `span`. True if one was added to those kept."""
        if self.empty:
            self._put(now, packed)
            self._span = span
            return True
        put = span != self._span and self._newest is not None
        if put:
            assert self._newest is not None
            self._put(self._newest_at, self._newest)
        self._newest, self._newest_at, self._span = packed, now, span
        return put

    def _put(self, at: float, packed: Packed) -> None:
        self._octets += _HEAD.pack(round(at * _TENTHS), len(packed))
        self._octets += packed
        self._count += 1

    def limit(self, samples_max: int, octets_max: int) -> None:
        """Drop the oldest samples beyond these limits."""
        start, count, octets = 0, self._count, self._octets
        while count > samples_max or len(octets) - start > octets_max:
            start += _HEAD.size + _HEAD.unpack_from(octets, start)[1]
            count -= 1
        if start:
            del octets[:start]
            self._count = count

    def samples(self) -> Iterator[tuple[float, bytes]]:
        """Times and packed figures, oldest first."""
        place, octets = 0, bytes(self._octets)
        while place < len(octets):
            tenths, length = _HEAD.unpack_from(octets, place)
            place += _HEAD.size
            yield tenths / _TENTHS, octets[place : place + length]
            place += length
        if self._newest is not None:
            yield self._newest_at, self._newest

    @property
    def octets(self) -> int:
        return len(self._octets)

    @property
    def empty(self) -> bool:
        return not self._count and self._newest is None

    def stored(self) -> bytes:
        """All samples, as `restored` takes them."""
        if self._newest is None:
            return bytes(self._octets)
        head = _HEAD.pack(round(self._newest_at * _TENTHS), len(self._newest))
        return b"".join((self._octets, head, self._newest))

    @classmethod
    def restored(cls, octets: bytes, places: int, later_s: float, oldest: float) -> Ring:
        """Restore what `stored` gave, with times `later_s` later, without samples before `oldest`.

        Raises ValueError, `struct.error` or `msgspec.DecodeError` when the octets are damaged.
        """
        ring = cls()
        place = 0
        while place < len(octets):
            tenths, length = _HEAD.unpack_from(octets, place)
            place += _HEAD.size
            packed = Packed(octets[place : place + length])
            place += length
            at = tenths / _TENTHS + later_s
            if len(unpack(packed)) != places:
                raise ValueError(f"a sample has not {places} figures")
            if at >= oldest:
                ring._put(at, packed)
        return ring


class History:
    """Samples at several intervals: the recent past in detail, the longer past in outline.

    `coarse` is the factor by which intervals are longer, and samples fewer, than in the retention.
    """

    __slots__ = ("_before", "_retention", "_rings")

    def __init__(self, retention: Retention = RETENTION) -> None:
        self._retention = retention
        self._rings = [Ring() for _ in retention]
        self._before: Figures | None = None

    def add(self, now: float, packed: Packed, coarse: int = 1, wall_offset_s: float = 0.0) -> None:
        """Add a sample. `now` plus `wall_offset_s` is the time of day, which is cut into spans."""
        if self._before is not None:
            packed = pack(tuple(map(add, unpack(packed), self._before)))
        for ring, (every_s, kept_s) in zip(self._rings, self._retention, strict=True):
            if ring.add(now, packed, (now + wall_offset_s) // (every_s * coarse)):
                ring.limit(*_room(every_s, kept_s, coarse))

    def limit(self, coarse: int) -> None:
        """Drop the samples for which this factor leaves no room."""
        for ring, (every_s, kept_s) in zip(self._rings, self._retention, strict=True):
            ring.limit(*_room(every_s, kept_s, coarse))

    def at(self, times: Sequence[float]) -> list[Sample]:
        """The figures at each of these times, newest first, as far back as they are known."""
        samples = self._covering(min(times))
        moments = [at for at, _ in samples]
        unpacked: dict[int, Figures] = {}
        found = []
        for moment in times:
            place = bisect_right(moments, moment) - 1
            if place >= 0:
                figures = unpacked.get(place)
                if figures is None:
                    figures = unpacked[place] = unpack(samples[place][1])
                found.append(Sample(moment, figures))
        return found

    def _covering(self, oldest: float) -> list[tuple[float, bytes]]:
        """The samples of the most detailed ring that goes back to `oldest`, or else of the one that
        goes back furthest; oldest first."""
        best: list[tuple[float, bytes]] = []
        for ring in self._rings:
            samples = list(ring.samples())
            if samples and samples[0][0] <= oldest:
                return samples
            if samples and (not best or samples[0][0] < best[0][0]):
                best = samples
        return best

    @property
    def octets(self) -> int:
        """The octets of this history's samples."""
        return sum([ring.octets for ring in self._rings])

    def stored(self) -> list[bytes]:
        """The rings, as `restored` takes them."""
        return [ring.stored() for ring in self._rings]

    @classmethod
    def restored(
        cls, rings: Sequence[bytes], retention: Retention, places: int, later_s: float, now: float
    ) -> History:
        """Restore what `stored` gave, with times `later_s` later, without what is too old by now.

        Raises ValueError, `struct.error` or `msgspec.DecodeError` when the octets are damaged.
        """
        history = cls(retention)
        if len(rings) != len(retention):
            raise ValueError(f"{len(rings)} rings instead of {len(retention)}")
        history._rings = [
            Ring.restored(octets, places, later_s, now - kept_s)
            for octets, (_, kept_s) in zip(rings, retention, strict=True)
        ]
        return history

    def go_on(self, counters: Iterable[int]) -> None:
        """Have counters that start at 0 again continue from their last values."""
        newest = [sample for ring in self._rings for sample in list(ring.samples())[-1:]]
        if newest:
            last = unpack(max(newest)[1])
            before = [0.0] * len(last)
            for at in counters:
                before[at] = last[at]
            self._before = tuple(before)

    @property
    def empty(self) -> bool:
        return all([ring.empty for ring in self._rings])


def _room(every_s: float, kept_s: float, coarse: int) -> tuple[int, int]:
    """The most samples, and the most octets of them, that a ring may have."""
    samples = int(kept_s / every_s)
    return samples // coarse + 2, (samples + 2) * SAMPLE_OCTETS // coarse


def room_for(retention: Retention) -> int:
    """The octets that a history may have in full detail."""
    return sum([_room(every_s, kept_s, 1)[1] for every_s, kept_s in retention])
