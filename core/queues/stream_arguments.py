"""Arguments of streams in words of their own: periods such as `7D`, and where to begin.

A period is a number and a unit: Y (365 days), M (30 days), D, h, m (minutes) or s. A consumer says
in `x-stream-offset` at which message of a stream it wants to begin.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from warren.core.erlang_text import field_text
from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, KIND_NAMES, Field

STREAM_OFFSET = "x-stream-offset"
"""The argument of a consumer, and the header of each delivery that says where the message is."""

SEGMENT_BYTES_MAX = 3_000_000_000
"""The most octets there may be in a piece of a stream, which goes as a whole."""

_PERIOD = re.compile(r"\A([0-9]{1,18})([YMDhms])\Z")
_UNIT_S = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}


def period_s(text: str) -> int | None:
    """The seconds of a period; None if the value is not a period, or not above 0."""
    match = _PERIOD.search(text)
    if match is None:
        return None
    return int(match[1]) * _UNIT_S[match[2]] or None


class Begin(Enum):
    """Where a consumer of a stream begins."""

    FIRST = auto()
    LAST = auto()
    NEXT = auto()
    OFFSET = auto()
    TIME = auto()
    AGO = auto()


class ReadingStart(NamedTuple):
    """`value` is the offset, the seconds since 1970, or how many seconds ago."""

    begin: Begin
    value: int = 0


_NAMED = {
    b"first": ReadingStart(Begin.FIRST),
    b"last": ReadingStart(Begin.LAST),
    b"next": ReadingStart(Begin.NEXT),
}


def stream_offset(field: Field | None, described: str) -> ReadingStart:
    """Return where a consumer asks to begin; `next` without the argument.

    Raises `PreconditionFailed` for a value that means nothing. RabbitMQ crashes for some of them.
    """
    if field is None:
        return ReadingStart(Begin.NEXT)
    if field.kind in INTEGER_KINDS:
        return ReadingStart(Begin.OFFSET, max(0, field.value))
    if field.kind == "T":
        return ReadingStart(Begin.TIME, field.value)
    if field.kind == "S":
        named = _NAMED.get(field.value)
        if named is not None:
            return named
        ago_s = period_s(field.value.decode("latin-1"))
        if ago_s is not None:
            return ReadingStart(Begin.AGO, ago_s)
    raise PreconditionFailed(
        f"invalid arg '{STREAM_OFFSET}' for {described}: "
        f"{{invalid_stream_offset_arg,{{{KIND_NAMES[field.kind]},{field_text(field)}}}}}"
    )
