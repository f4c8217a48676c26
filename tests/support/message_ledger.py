"""Who has been told what about which message, and what the broker owes in return.

A message is a number: that of its publisher in the upper 32 bits, below it a sequence number. A
`QueueLedger` knows of one queue which messages must be there and which may be: those that were
not confirmed, or whose acknowledgement may not have got there. It is told of everything a client
saw, and complains of what no broker may do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

_HEAD = struct.Struct(">QBB")
_CHECKSUM = struct.Struct(">I")
BODY_BYTES_MIN = _HEAD.size + _CHECKSUM.size

FILLER = bytes(number * 197 % 251 for number in range(1 << 19))


class Complaint(AssertionError):
    """The broker did what it may not do."""


class Marked(NamedTuple):
    """What a body says of its message."""

    message: int
    priority: int
    persistent: bool

    @property
    def publisher(self) -> int:
        return self.message >> 32


def encode_body(marked: Marked, size: int) -> bytes:
    """A body of that size, if it is large enough for what it has to say."""
    message, priority, persistent = marked
    start = message % 1009
    data = _HEAD.pack(message, priority, persistent)
    octets = max(0, size - BODY_BYTES_MIN)
    filler = FILLER * (1 + (start + octets) // len(FILLER))
    data += filler[start : start + octets]
    return data + _CHECKSUM.pack(crc32(data))


def decode_body(body: bytes) -> Marked:
    """Complains of a body that nobody published."""
    if (
        len(body) < BODY_BYTES_MIN
        or crc32(body[:-4]) != _CHECKSUM.unpack_from(body, len(body) - 4)[0]
    ):
        raise Complaint(f"a body of {len(body)} octets that nobody published: {body[:40]!r}")
    message, priority, persistent = _HEAD.unpack_from(body)
    return Marked(message, priority, bool(persistent))


@dataclass
class Published:
    """What one publisher did in one life of the node."""

    sent: list[Marked] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    witnessed_at: float = 0.0
    """When the youngest message that was confirmed was sent."""


@dataclass
class Consumed:
    """What one consumer saw and did in one life of the node."""

    seen: list[tuple[Marked, bool]] = field(default_factory=list)
    """Messages, and whether they were redelivered."""
    acked: dict[int, float] = field(default_factory=dict)
    """Messages that were acknowledged, and when the broker was known to know of it."""


class Order:
    """Messages of one publisher and priority come in the order they were published."""

    def __init__(self, where: str, priority_max: int) -> None:
        self._where = where
        self._priority_max = priority_max
        self._last: dict[tuple[int, int], int] = {}

    def see(self, marked: Marked) -> None:
        key = marked.publisher, min(marked.priority, self._priority_max)
        last = self._last.get(key, -1)
        if marked.message <= last:
            raise Complaint(f"{self._where}: {marked} after {last:#x}")
        self._last[key] = marked.message


class QueueLedger:
    """One durable queue. `priority_max`: see x-max-priority; 0 is a queue without."""

    def __init__(self, name: str, priority_max: int = 0) -> None:
        self.name = name
        self.priority_max = priority_max
        self.must: set[int] = set()
        self.may: set[int] = set()
        self.delivered: set[int] = set()

    def life_ended(
        self, published: Iterable[Published], consumed: Iterable[Consumed], known_at: float
    ) -> None:
        """Take in what happened to this queue while a node lived.

        What the broker knew of at `known_at` was durable in the end.
        """
        deliverable = set(self.may)
        for one in published:
            deliverable.update(marked.message for marked in one.sent)
            persistent = {marked.message for marked in one.sent if marked.persistent}
            self.may |= persistent
            self.must |= persistent & one.confirmed
        first: set[int] = set()
        for client in consumed:
            self._see(client, deliverable, first)
        for client in consumed:
            self.delivered.update(marked.message for marked, _ in client.seen)
            self.must.difference_update(client.acked)
            self.may.difference_update(at for at, when in client.acked.items() if when < known_at)

    def _see(self, client: Consumed, deliverable: set[int], first: set[int]) -> None:
        order = Order(self.name, self.priority_max)
        for marked, redelivered in client.seen:
            if marked.message not in deliverable:
                raise Complaint(f"{self.name}: {marked} was not in the queue")
            if redelivered:
                continue
            if marked.message in self.delivered or marked.message in first:
                raise Complaint(f"{self.name}: {marked} delivered again as if for the first time")
            first.add(marked.message)
            order.see(marked)

    def audited(self, seen: list[tuple[Marked, bool]]) -> None:
        """All that is in the queue now, in the order of its delivery, to one consumer."""
        order = Order(self.name, self.priority_max)
        found = {marked.message for marked, _ in seen}
        for marked, redelivered in seen:
            if not marked.persistent:
                raise Complaint(f"{self.name}: {marked} is transient and survived")
            if marked.message in self.delivered and not redelivered:
                raise Complaint(f"{self.name}: {marked} was delivered before and does not say so")
            order.see(marked)
        self._complain("lost", self.must - found)
        self._complain("came back, or was never published", found - self.may)
        self.delivered |= found
        self.must = set(found)
        self.may = found

    def drained(self) -> None:
        """Everything was acknowledged, and the broker knows."""
        self.must = set()
        self.may = set()

    def _complain(self, what: str, messages: set[int]) -> None:
        if messages:
            some = ", ".join(f"{message:#x}" for message in sorted(messages)[:5])
            raise Complaint(f"{self.name}: {len(messages)} messages: {what}: {some}")
