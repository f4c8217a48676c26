"""The last messages of an exchange of type `x-recent-history`, for queues that are bound later.

The argument `x-recent-history-length` says how many, 20 without it. A message whose header
`x-recent-history-no-store` is the boolean true is delivered and not kept.

A history is in memory, and is empty after a restart. It keeps references to bodies that queues may
have let go of, so it has bounds of its own besides the length, whatever the client asks for.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from warren.core.erlang_text import field_text
from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, Table
from warren.core.messages.message import Envelope

HISTORY_TYPE: Final = "x-recent-history"

LENGTH: Final = "x-recent-history-length"
NO_STORE: Final = "x-recent-history-no-store"

LENGTH_DEFAULT: Final = 20

LENGTH_MAX: Final = 10_000
"""A longer history is cut to this. A queue gets all of it in one go, which takes some 30 ms."""

OCTETS_MAX: Final = 64 << 20
"""Octets of bodies and headers that one history may hold; the last message is always kept."""


class KeptMessage(NamedTuple):
    """A message of a history."""

    envelope: Envelope
    body: bytes

    @property
    def octets(self) -> int:
        return len(self.body) + len(self.envelope.header)


class RecentHistory:
    """The last messages, oldest first, as many as the length and `OCTETS_MAX` allow."""

    def __init__(self, length: int) -> None:
        self._length = min(length, LENGTH_MAX)
        self._kept: deque[KeptMessage] = deque()
        self._octets = 0

    def keep(self, envelope: Envelope, body: bytes) -> None:
        """Add the newest message, and drop the oldest ones for which there is no room any more."""
        newest = KeptMessage(envelope, body)
        self._kept.append(newest)
        self._octets += newest.octets
        while len(self._kept) > self._length or (self._octets > OCTETS_MAX and len(self._kept) > 1):
            self._octets -= self._kept.popleft().octets

    def messages(self) -> list[KeptMessage]:
        """The messages as they are now, oldest first."""
        return list(self._kept)


def history_length(arguments: Table) -> int:
    """How many messages an exchange with these arguments keeps. Raises `PreconditionFailed`."""
    field = arguments.get(LENGTH)
    if field is None:
        return LENGTH_DEFAULT
    if field.kind not in INTEGER_KINDS or field.value < 1:
        raise PreconditionFailed(
            f"Invalid argument {field_text(field)}, '{LENGTH}' must be a positive integer"
        )
    length: int = field.value
    return length


def is_kept(headers: Table) -> bool:
    """Whether a message with these headers may be kept."""
    field = headers.get(NO_STORE)
    return field is None or field.kind != "t" or not field.value
