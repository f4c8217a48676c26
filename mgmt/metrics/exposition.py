"""Writes the text format of Prometheus, 0.0.4, in slices.

The format wants the lines of one metric together. A row has the values of all metrics of one
object, so rows are written column by column.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from warren.core.field import printable
from warren.mgmt.http.slices import chunks

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OWN_PREFIX = "warren_"
"""Before the names of metrics that RabbitMQ does not have."""

Values: TypeAlias = Sequence[float]


class Metric(NamedTuple):
    """A metric. `written` puts a prefix before the name; `kind` is counter, gauge, histogram or
    untyped."""

    name: str
    kind: str
    help: str


class MetricRows(NamedTuple):
    """Values of the same metrics for several objects, each with its labels in text form."""

    metrics: Sequence[Metric]
    rows: list[tuple[str, Values]]


def labels(pairs: Mapping[str, str]) -> str:
    """The labels as they follow a metric's name; empty without any."""
    if not pairs:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs.items()]) + "}"


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return printable(value)


def number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def head(metric: Metric, prefix: str) -> str:
    name = prefix + metric.name
    return f"# TYPE {name} {metric.kind}\n# HELP {name} {metric.help}\n"


async def written(groups: Iterable[MetricRows], prefix: str) -> AsyncIterator[bytes]:
    """The lines of all metrics, in pieces."""
    for metrics, rows in groups:
        for at, metric in enumerate(metrics):
            name = prefix + metric.name
            yield head(metric, prefix).encode()
            async for chunk in chunks(rows, 256):
                lines = [f"{name}{shown} {number(values[at])}\n" for shown, values in chunk]
                yield "".join(lines).encode()
