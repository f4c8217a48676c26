"""The policy key `retention`: how long, and how much, a queue keeps of acknowledged messages.

    {"max-age": "7D", "max-bytes": 1073741824}

Either may be missing. `max-age` is a period, or a number of seconds. An operator policy only limits
what another policy asks for: without that it means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.core.backing.backing_queue import RETAINED_LEVEL
from warren.core.backing.stream_limits import StreamLimits
from warren.core.definitions.validation import is_integer
from warren.core.queues.queue_arguments import PERIOD_MS_MAX
from warren.core.queues.stream_arguments import period_s

RETENTION: Final = "retention"
MAX_AGE: Final = "max-age"
MAX_BYTES: Final = "max-bytes"

RETENTION_IS: Final = (
    "it has max-age (a period such as 7D, or seconds), max-bytes (a number of octets), or both"
)

OCTETS_DEFAULT: Final = 1 << 30
"""Octets that are kept where only the age is limited: nothing may fill the disk unasked."""


def is_retention(value: object) -> bool:
    if not isinstance(value, dict) or not value or value.keys() - {MAX_AGE, MAX_BYTES}:
        return False
    octets = value.get(MAX_BYTES, 1)
    return _age_s(value.get(MAX_AGE, 1)) is not None and is_integer(octets) and octets > 0


def _age_s(value: object) -> int | None:
    """The seconds of an age; None if the value is not an age."""
    seconds = period_s(value) if isinstance(value, str) else value
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        return None
    return seconds if 0 < seconds <= PERIOD_MS_MAX // 1000 else None


def retention_limits(value: Any, max_priority: int | None) -> StreamLimits | None:
    """The limits of a valid value for a queue with so many priorities; None if it keeps nothing."""
    if value is None or (max_priority or 0) >= RETAINED_LEVEL:
        return None
    age = value.get(MAX_AGE)
    return StreamLimits(
        octets_max=value.get(MAX_BYTES, OCTETS_DEFAULT),
        age_max_s=None if age is None else _age_s(age),
    )


def limit_retention(merged: dict[str, Any], limit: Mapping[str, Any]) -> None:
    """Take an operator's limit into account: of each value the smaller counts."""
    wanted = merged.get(RETENTION)
    if wanted is None:
        return
    smaller = {**limit, **wanted}
    if MAX_BYTES in limit:
        smaller[MAX_BYTES] = min(limit[MAX_BYTES], wanted.get(MAX_BYTES, OCTETS_DEFAULT))
    if MAX_AGE in limit and MAX_AGE in wanted:
        smaller[MAX_AGE] = min(limit[MAX_AGE], wanted[MAX_AGE], key=lambda age: _age_s(age) or 0)
    merged[RETENTION] = smaller
