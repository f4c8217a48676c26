"""What the checks of simulated clusters know of one queue."""

from __future__ import annotations

from typing import NamedTuple

from warren.core.definitions.records import QueueRecord


class Loss(NamedTuple):
    """What was published up to `at` may be lost: all, or what is transient; not what the former
    copies have that are left, which is older than `since`."""

    at: float
    what: str
    why: str
    since: float = 0.0


class QueueLedger:
    """Who has had all of a queue, without a break, since it was declared."""

    def __init__(self, name: str, record: QueueRecord) -> None:
        self.name = name
        self.record = record
        self.holders: set[str] = set()
        # Whose disk has all that is persistent.
        self.last_holder = record.leader
        self.losses: list[Loss] = []
        # The nodes that died with a whole copy, which is on their disks, since no other was whole.
        self.former: dict[str, float] = {}
        self.moved_at: list[float] = []
        # When the lead went to another node.
        self.changed_hands_at: list[float] = []
        # Until when it had no mirrors, if it ever had none.
        self.bare_until = 0.0
        # What was published until then comes as redelivered: who led next lacked votes.
        self.marked_until = 0.0
        self.declared_at = 0.0
        # When it became a quorum queue of other members.
        self.members_changed_at = 0.0
