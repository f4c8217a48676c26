"""How a queue answers a publish, and how it says later that a message is safe.

`SETTLED`: the queue has taken the message, and says nothing more. `PENDING`: the queue will call
`PublishConfirms.settle` when the message is safe, or `refuse`. `REJECTED`: the queue refuses it,
because it is full or has too few copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol, TypeAlias


class Settlement(IntEnum):
    SETTLED = 0
    PENDING = 1
    REJECTED = 2


SETTLED = Settlement.SETTLED
PENDING = Settlement.PENDING
REJECTED = Settlement.REJECTED


class PublishConfirms(Protocol):
    """A waiter for confirms: one channel in confirm mode or one transaction.

    Each of them names this class as its base, and has `settle_many` from here unless it knows a
    shorter way.
    """

    __slots__ = ()

    def settle(self, publish_seq: int) -> None:
        """The queue that answered `PENDING` for this publish now has it safe.

        Called once per such answer, and never from within the call that gave it.
        """
        ...

    def settle_many(self, first_seq: int, count: int) -> None:
        """`settle` `count` publishes, numbered from `first_seq` on."""
        for publish_seq in range(first_seq, first_seq + count):
            self.settle(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        """Instead of `settle`: the queue could not take it, or it is not known whether it has."""
        ...


WaitingRow: TypeAlias = tuple[PublishConfirms, int, int]
"""Publishes with consecutive numbers that wait: their waiter, the first number, and how many."""


def in_rows(waiting: Iterable[tuple[PublishConfirms | None, int]]) -> list[WaitingRow]:
    """Put neighbours together that have the same waiter and numbers in a row. Publishes without a
    waiter are left out."""
    rows: list[WaitingRow] = []
    waiter: PublishConfirms | None = None
    first = end = 0
    for confirms, publish_seq in waiting:
        if confirms is not waiter or publish_seq != end:
            if waiter is not None:
                rows.append((waiter, first, end - first))
            waiter, first = confirms, publish_seq
        end = publish_seq + 1
    if waiter is not None:
        rows.append((waiter, first, end - first))
    return rows


def settle_all(waiting: Iterable[WaitingRow]) -> None:
    for confirms, first_seq, count in waiting:
        if count == 1:
            confirms.settle(first_seq)
        else:
            confirms.settle_many(first_seq, count)


def settle_in_rows(waiting: Iterable[tuple[PublishConfirms | None, int]]) -> None:
    """Settle all of these, those with numbers in a row at once."""
    settle_all(in_rows(waiting))
