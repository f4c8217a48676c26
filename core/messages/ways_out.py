"""How many messages left a queue otherwise than by being taken by a client.

With what was published, acknowledged, and delivered without acknowledgement, these counts say why
the length of a queue changes as it does: what comes in, less all that goes out, is its growth.
"""

from __future__ import annotations


class WaysOut:
    """Counts since the queue began on this node.

    `dropped` for a length limit, `rejected` by consumers or for a delivery limit, `refused` before
    the queue took them.
    """

    __slots__ = ("dropped", "expired", "purged", "refused", "rejected")

    def __init__(self) -> None:
        self.expired = 0
        self.dropped = 0
        self.rejected = 0
        self.refused = 0
        self.purged = 0

    def counts(self) -> tuple[int, int, int, int, int]:
        """Expired, dropped, rejected, refused, purged."""
        return self.expired, self.dropped, self.rejected, self.refused, self.purged
