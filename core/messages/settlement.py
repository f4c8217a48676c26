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
    """A waiter for confirms: one channel in confirm mode or one transaction."""

    def settle(self, publish_seq: int) -> None:
        """The queue that answered `PENDING` for this publish now has it safe.

        Called once per such answer, and never from within the call that gave it.
        """
        ...

    def refuse(self, publish_seq: int) -> None:
        """Instead of `settle`: the queue could not take it, or nobody can say whether it has."""
        ...
