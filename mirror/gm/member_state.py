"""A member's knowledge of the publishes of one member of its group, which may be itself.

    0 ............ acked | acked + 1 ............ last_pub
    forgotten            | pending: seen, not known to have gone round

Numbers have no gap, so two counts and the pending payloads are the whole state.

The *owner* of the publishes (their sender, or the member that inherited it) acks those that come
back to it. `last_ack` is for the owner: up to this number the acks have come back, too, and no
member holds the publishes any more. At other members it follows `acked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from warren.mirror.gm.messages import NONE

PAYLOAD_OVERHEAD = 64
"""Bytes counted for each payload besides its own, so that empty payloads are limited, too."""


def cost(payload: bytes) -> int:
    return len(payload) + PAYLOAD_OVERHEAD


class MemberState:
    __slots__ = ("held_bytes", "last_ack", "last_pub", "pending")

    def __init__(self, last_pub: int = NONE, pending: Iterable[bytes] = ()) -> None:
        self.last_pub = last_pub
        self.pending = deque(pending)
        self.last_ack = self.acked
        self.held_bytes = sum(map(cost, self.pending))

    @property
    def acked(self) -> int:
        """The number of the last publish that is not pending."""
        return self.last_pub - len(self.pending)

    @property
    def is_settled(self) -> bool:
        """Whether every publish has gone round, and its ack too."""
        return self.last_ack == self.last_pub

    def publish(self, payloads: Sequence[bytes]) -> None:
        self.pending.extend(payloads)
        self.last_pub += len(payloads)
        self.held_bytes += sum(map(cost, payloads))

    def forget(self, up_to: int) -> None:
        """Drop the publishes up to this number: they are no longer pending."""
        for _ in range(up_to - self.acked):
            self.held_bytes -= cost(self.pending.popleft())

    def check(self) -> None:
        """Assert the invariants."""
        assert NONE <= self.last_ack <= self.acked <= self.last_pub, self
        assert self.held_bytes == sum(map(cost, self.pending)), self

    def __repr__(self) -> str:
        return f"<ack {self.last_ack} acked {self.acked} pub {self.last_pub}>"
