"""Limits of the length of a queue by which the target would drop what is moved into it.

A queue that is full drops its oldest message for each new one, unless its overflow refuses new
ones; then a move ends at the first that is refused. Where both sides have the same limit, the
source has dropped already what the target would not keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

COLUMNS = "arguments,effective_policy_definition,message_bytes_ready"
"""The columns of a row of `/api/queues` that are read here."""

DROP_HEAD = "drop-head"


class LengthLimits(NamedTuple):
    """The most that a queue keeps before it drops messages, and the octets that it has."""

    messages: float
    octets: float
    octets_now: int


def kept(row: Mapping[str, Any]) -> LengthLimits:
    arguments = row.get("arguments") or {}
    # RabbitMQ writes an empty object as an empty list.
    policy = row.get("effective_policy_definition") or {}
    octets_now = row.get("message_bytes_ready") or 0
    if arguments.get("x-overflow", policy.get("overflow", DROP_HEAD)) != DROP_HEAD:
        return LengthLimits(inf, inf, octets_now)
    messages, octets = (
        min(arguments.get(f"x-{key}", inf), policy.get(key, inf))
        for key in ("max-length", "max-length-bytes")
    )
    return LengthLimits(messages, octets, octets_now)


def dropped_because(source: LengthLimits, target: LengthLimits, messages: int) -> str:
    """Why the target would drop some of so many messages, which it had after the move; else ""."""
    if target.messages < source.messages and messages > target.messages:
        limit = f"{target.messages:,} messages of it at most (max-length)"
    elif target.octets < source.octets and source.octets_now + target.octets_now > target.octets:
        limit = f"{target.octets:,} octets of it at most (max-length-bytes)"
    else:
        return ""
    return f"the target keeps {limit}, and would drop the oldest"
