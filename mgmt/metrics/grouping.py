"""Values of many objects: one row for each, or their sums."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from warren.mgmt.http.slices import chunks
from warren.mgmt.metrics.exposition import Metric, MetricRows, Values

T = TypeVar("T")


async def grouped(
    metrics: Sequence[Metric],
    things: Sequence[T],
    values: Callable[[T], Values],
    labels_of: Callable[[T], str],
    *,
    per_object: bool,
    no_sum: Collection[str] = (),
) -> MetricRows:
    """The metrics of these things: a row for each with `per_object`, otherwise one row of sums.

    `no_sum` are the names of metrics whose sum means nothing; the row of sums does not have them.
    """
    if per_object:
        rows = [
            (labels_of(thing), values(thing)) async for chunk in chunks(things) for thing in chunk
        ]
        return MetricRows(metrics, rows)
    totals = [0.0] * len(metrics)
    async for chunk in chunks(things):
        for thing in chunk:
            totals = [total + value for total, value in zip(totals, values(thing), strict=True)]
    summed = [
        (metric, _whole(total))
        for metric, total in zip(metrics, totals, strict=True)
        if metric.name not in no_sum
    ]
    return MetricRows([metric for metric, _ in summed], [("", [total for _, total in summed])])


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value
