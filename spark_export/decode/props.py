"""Finds the properties of many messages: reads AMQP's content headers column by column.

`basic_properties` describes a content header. Its properties are one behind the other, so the
offset of a property depends on all properties before it: one cursor for each message is moved over
the properties in turn, all cursors at once. The two lowest flags stand for no property.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warren.spark_export.snapshot.layout import octets_at
from warren.spark_export.values.basic_properties import FIXED_BYTES, FLAGS_AT, PROPERTIES, WireType

LONGEST_FIXED = 8
"""The most octets read after the end of a header that ends too early."""


class Span(NamedTuple):
    """A property in each message: the offset and number of its octets, without the length before
    them; and whether it is `present` (None: in every message)."""

    start: NDArray[np.int64]
    size: NDArray[np.int64]
    present: NDArray[np.bool_] | None


class Located(NamedTuple):
    """The `spans` of the properties that some message has; `broken`: the messages whose header ends
    before its properties do, None if there are none."""

    spans: dict[str, Span]
    broken: NDArray[np.bool_] | None


def locate(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    wanted: Collection[str],
) -> Located:
    """Find the `wanted` properties of the content headers in `data` from `start` to `end`.

    After the last end there must be at least `LONGEST_FIXED` further octets.
    """
    last = max((at for at, one in enumerate(PROPERTIES) if one.name in wanted), default=-1)
    broken = end - start < FIXED_BYTES
    if broken.any():
        # The results for these are thrown away.
        start = np.where(broken, 0, start)
    flags = octets_at(data, start + FLAGS_AT, 2).astype(np.int64)
    cursor = start + FIXED_BYTES
    spans: dict[str, Span] = {}
    for name, flag, wire_type in PROPERTIES[: last + 1]:
        has = (flags & flag) != 0
        if not has.any():
            continue
        present = None if has.all() else has
        span, cursor = _step(data, cursor, wire_type, present)
        over = cursor > end
        if over.any():
            broken |= over
            cursor = np.minimum(cursor, end)
            span = _cut(span, end)
        if name in wanted:
            spans[name] = span
    return Located(spans, broken if broken.any() else None)


def _step(
    data: NDArray[np.uint8],
    cursor: NDArray[np.int64],
    wire_type: WireType,
    present: NDArray[np.bool_] | None,
) -> tuple[Span, NDArray[np.int64]]:
    """The property at the cursors, and the cursors after it."""
    size: NDArray[np.int64]
    match wire_type:
        case "shortstr":
            prefix, size = 1, data[cursor].astype(np.int64)
        case "table":
            prefix, size = 4, octets_at(data, cursor, 4).astype(np.int64)
        case "octet":
            prefix, size = 0, np.ones_like(cursor)
        case "timestamp":
            prefix, size = 0, np.full_like(cursor, 8)
    if present is None:
        start = cursor + prefix
    else:
        size *= present
        start = cursor + prefix * present
    return Span(start, size, present), start + size


def _cut(span: Span, end: NDArray[np.int64]) -> Span:
    """The span, limited to its header, so that nothing after the end of the data is read."""
    start = np.minimum(span.start, end)
    return Span(start, np.minimum(span.size, end - start), span.present)
