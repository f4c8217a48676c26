"""The encoding of answers to publishes and of verdicts on deliveries, both as numbers."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from warren.mirror.messages.post import Undeliverable

_UPTO = struct.Struct("<Q")


class DeliveryOutcome(IntEnum):
    """What became of deliveries. RETURN: they did not reach the client. ABANDON: the channel that
    had them is closed."""

    ACK = 0
    REJECT = 1
    REQUEUE = 2
    RETURN = 3
    ABANDON = 4


class PublishedReport(NamedTuple):
    """All publishes up to the number `upto` were dealt with; `refused` are those refused."""

    upto: int
    refused: Sequence[int]


def pack_numbers(verdict: DeliveryOutcome, numbers: Sequence[int]) -> bytes:
    return bytes((verdict,)) + array("Q", numbers).tobytes()


def unpack_numbers(payload: bytes, start: int) -> tuple[DeliveryOutcome, Sequence[int]]:
    """Raises `Undeliverable`."""
    try:
        return DeliveryOutcome(payload[start]), _numbers(payload, start + 1)
    except (IndexError, ValueError) as error:
        raise Undeliverable(f"a verdict that cannot be read: {error}") from None


def pack_report(report: PublishedReport) -> bytes:
    return _UPTO.pack(report.upto) + array("Q", report.refused).tobytes()


def unpack_report(payload: bytes, start: int) -> PublishedReport:
    """Raises `Undeliverable`."""
    try:
        (upto,) = _UPTO.unpack_from(payload, start)
        return PublishedReport(upto, _numbers(payload, start + _UPTO.size))
    except (struct.error, ValueError) as error:
        raise Undeliverable(f"a report that cannot be read: {error}") from None


def _numbers(payload: bytes, start: int) -> Sequence[int]:
    """Raises ValueError if the octets are not a whole count of numbers."""
    numbers = array("Q")
    numbers.frombytes(payload[start:])
    return numbers
