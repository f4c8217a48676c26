"""The plan of a job: which messages it selects, and what it does with them."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from warren.core.field import to_octets
from warren.core.messages.message_filter import parse_filter, seconds_since_1970
from warren.mgmt.messages.looking import parse_place
from warren.shovel.redrive import Back, DecidingDeath

POSITIONS_MAX = 10_000
"""The most messages that a plan lists one by one; a filter selects more."""


class InvalidPlan(Exception):
    """The plan is invalid; the text says why."""


class Action(StrEnum):
    MOVE = "move"
    COPY = "copy"
    DELETE = "delete"
    REQUEUE = "requeue"
    REDRIVE = "redrive"
    REPLAY = "replay"


TO_A_TARGET = (Action.MOVE, Action.COPY, Action.REPLAY)
"""Actions that send messages to a queue or an exchange that the plan names."""


class JobPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages a job selects, and what it does with them.

    MOVE, COPY and REPLAY send messages `to_queue`, or `to_exchange` with the `routing_key` or, if
    there is none, their own. REQUEUE puts messages at the end of their queue. REDRIVE sends them
    `back_to` the queue or exchange that their first or last `death` names.

    REPLAY reads a stream, or the messages that a queue has retained. It begins at the offset
    `first` or the time `since`, and ends after the offset `last` or before the time `until`. Times
    are ISO 8601, in UTC if they name no zone, or seconds since 1970.

    `limit` is the most messages, `rate` the most in a second. A `dry_run` only counts messages and
    shows the first ones.
    """

    action: Action
    filter: str = ""
    positions: list[str] | None = None
    to_queue: str | None = None
    to_exchange: str | None = None
    routing_key: str | None = None
    back_to: Back = Back.EXCHANGE
    death: DecidingDeath = DecidingDeath.LAST
    first: int | None = None
    last: int | None = None
    since: str | float | None = None
    until: str | float | None = None
    limit: int | None = None
    rate: float | None = None
    dry_run: bool = False


def parse_plan(value: Any) -> JobPlan:
    """The plan in the body of a request, or in a stored job.

    Raises `InvalidPlan`, or `InvalidFilter` if the filter is wrong.
    """
    try:
        plan = msgspec.convert(value, JobPlan)
    except msgspec.ValidationError as error:
        raise InvalidPlan(str(error)) from error
    _check_target(plan)
    _check_range(plan)
    parse_filter(plan.filter)
    if plan.limit is not None and plan.limit < 1:
        raise InvalidPlan(f"limit should be 1 at least, not {plan.limit}")
    if plan.rate is not None and not plan.rate > 0:
        raise InvalidPlan(f"rate should be more than 0, not {plan.rate}")
    if plan.positions is not None and len(plan.positions) > POSITIONS_MAX:
        raise InvalidPlan(f"positions should be {POSITIONS_MAX} at most, not {len(plan.positions)}")
    return plan


def check_positions(plan: JobPlan, levels: int) -> None:
    """Raises `InvalidPlan` for a position that does not exist in a queue with so many levels."""
    for text in plan.positions or ():
        try:
            parse_place(text, levels)
        except ValueError:
            raise InvalidPlan(f"'{text}' is no position in this queue") from None


def _check_target(plan: JobPlan) -> None:
    targets = [plan.to_queue, plan.to_exchange]
    given = len(targets) - targets.count(None)
    if plan.action in TO_A_TARGET:
        if given != 1:
            raise InvalidPlan(f"{plan.action} takes either to_queue or to_exchange")
    elif given:
        raise InvalidPlan(f"{plan.action} takes neither to_queue nor to_exchange")
    if plan.routing_key is not None:
        if plan.to_exchange is None:
            raise InvalidPlan("routing_key goes with to_exchange")
        if len(to_octets(plan.routing_key)) > 255:
            raise InvalidPlan("routing_key should be 255 octets at most")


def _check_range(plan: JobPlan) -> None:
    bounds = (plan.first, plan.last, plan.since, plan.until)
    if plan.action is not Action.REPLAY and bounds != (None,) * len(bounds):
        raise InvalidPlan("first, last, since and until go with replay")
    for one, other in (("first", "since"), ("last", "until")):
        if getattr(plan, one) is not None and getattr(plan, other) is not None:
            raise InvalidPlan(f"replay takes either {one} or {other}")
    for name in ("since", "until"):
        moment = getattr(plan, name)
        try:
            if moment is not None and not math.isfinite(seconds(moment)):
                raise ValueError
        except (ValueError, OverflowError):
            raise InvalidPlan(
                f"{name} should be a time such as 2026-11-20T10:30:00Z, or seconds since 1970,"
                f" not '{moment}'"
            ) from None
    for offset in (plan.first, plan.last):
        if offset is not None and not 0 <= offset < 1 << 63:
            raise InvalidPlan(f"an offset should be between 0 and 2^63, not {offset}")


def seconds(moment: str | float) -> float:
    """Convert a time of a plan to seconds since 1970. Raises `ValueError`."""
    return seconds_since_1970(moment) if isinstance(moment, str) else moment
