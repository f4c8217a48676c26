"""What becomes of a published message, as a queue answers its publisher.

`SETTLED`: the queue has taken it, and nothing more will be said. `PENDING`: the queue will call
`PublishConfirms.settle` once the message is safe. `REJECTED`: the queue is full and refused it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol


class Settlement(IntEnum):
    SETTLED = 0
    PENDING = 1
    REJECTED = 2


SETTLED = Settlement.SETTLED
PENDING = Settlement.PENDING
REJECTED = Settlement.REJECTED


class PublishConfirms(Protocol):
    """Who waits for confirms: one channel in confirm mode or one transaction.

    Whoever is one names this class as its base, and has `settle_many` from here unless it knows a
    shorter way.
    """

    __slots__ = ()

    def settle(self, publish_seq: int) -> None:
        """The queue that answered `PENDING` for this publish now has it safe.

        Called once per such answer, and never from within the call that gave it.
        """
        ...

    def settle_many(self, first_seq: int, count: int) -> None:
        """`settle` so many publishes, numbered from `first_seq` on."""
        for publish_seq in range(first_seq, first_seq + count):
            self.settle(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        """Instead of `settle`: the queue could not take it, or nobody can say whether it has."""
        ...
