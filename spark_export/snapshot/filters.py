"""Filters of a query that reduce reading: on vhost, queue, seq, enqueued_at, exchange.

Spark pushes down a conjunction. Each filter that is understood narrows what is read. As Spark
applies all filters again afterwards, a bound here may be wider than the filter, but never narrower.
Filters on null or of other kinds are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from warren.spark_export.snapshot.options import ReadOptions, microseconds

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True)
class Interval:
    """Numbers from `start` on and below `end`; None is no bound."""

    start: int | None = None
    end: int | None = None

    def __and__(self, other: Interval) -> Interval:
        starts = [start for start in (self.start, other.start) if start is not None]
        ends = [end for end in (self.end, other.end) if end is not None]
        return Interval(max(starts, default=None), min(ends, default=None))


@dataclass(frozen=True)
class RowFilter:
    """The conditions on a message that only its record can decide; `exchanges` None: all."""

    enqueued_us: Interval = Interval()
    exchanges: frozenset[str] | None = None


@dataclass(frozen=True)
class Pushed:
    """The most that a query has to read. Names None: all."""

    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    exchanges: frozenset[str] | None = None
    seq: Interval = Interval()
    enqueued_us: Interval = Interval()

    def has_queue(self, vhost: str, queue: str) -> bool:
        return (self.vhosts is None or vhost in self.vhosts) and (
            self.queues is None or queue in self.queues
        )

    def row_filter(self, options: ReadOptions) -> RowFilter:
        asked = Interval(options.starting_timestamp_us, options.ending_timestamp_us)
        return RowFilter(self.enqueued_us & asked, self.exchanges)


EVERYTHING = Pushed()


def understand(filters: Iterable[Filter]) -> Pushed:
    """The bounds of reading that follow from all filters together."""
    pushed = EVERYTHING
    for given in filters:
        pushed = _narrow(pushed, given)
    return pushed


_NAMES = {"vhost": "vhosts", "queue": "queues", "exchange": "exchanges"}


def _narrow(pushed: Pushed, given: Filter) -> Pushed:
    attribute = getattr(given, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return pushed
    column, kind = attribute[0], type(given).__name__
    if column in _NAMES:
        names = _names(kind, given)
        return pushed if names is None else _narrow_names(pushed, _NAMES[column], names)
    if column == "seq":
        return replace(pushed, seq=pushed.seq & _interval(kind, given, _whole_number))
    if column == "enqueued_at":
        interval = _interval(kind, given, _microseconds)
        return replace(pushed, enqueued_us=pushed.enqueued_us & interval)
    return pushed


def _narrow_names(pushed: Pushed, field: str, names: frozenset[str]) -> Pushed:
    before: frozenset[str] | None = getattr(pushed, field)
    changes: dict[str, Any] = {field: names if before is None else before & names}
    return replace(pushed, **changes)


def _names(kind: str, given: Any) -> frozenset[str] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        values = (given.value,)
    elif kind == "In":
        # A null in a list equals no value.
        values = tuple(value for value in given.value if value is not None)
    else:
        return None
    return frozenset(values) if all(isinstance(value, str) for value in values) else None


def _interval(kind: str, given: Any, number: Callable[[Any], int | None]) -> Interval:
    if kind == "In":
        numbers = [number(value) for value in given.value if value is not None]
        known = [at for at in numbers if at is not None]
        if not known or len(known) < len(numbers):
            return Interval()
        return Interval(min(known), max(known) + 1)
    make = _INTERVALS.get(kind)
    at = None if make is None else number(given.value)
    return Interval() if make is None or at is None else make(at)


_INTERVALS: Mapping[str, Callable[[int], Interval]] = {
    "EqualTo": lambda at: Interval(at, at + 1),
    "EqualNullSafe": lambda at: Interval(at, at + 1),
    "GreaterThan": lambda at: Interval(at + 1),
    "GreaterThanOrEqual": lambda at: Interval(at),
    "LessThan": lambda at: Interval(None, at),
    "LessThanOrEqual": lambda at: Interval(None, at + 1),
}


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return microseconds(value)
