"""How far the publishes of a mirrored queue are confirmed, and whether copies may leave.

Keeps what `confirm_rule.py` decides by: how many copies must have a publish, as the policy and the
definition of the queue say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.definition.confirm_rule import (
    ALL,
    can_shrink,
    confirmed_upto,
    stricter,
)
from warren.mirror.replication.leading.known_copy import KnownCopy


class Confirmation:
    """`copies` are the mirrors as the leader knows them, by their nodes."""

    def __init__(self, copies: Mapping[str, KnownCopy]) -> None:
        self._copies = copies
        # How many whole copies confirm a publish; None: every mirror has to, whole or not.
        self.acks: int | None = None
        # The same number as the definition has it, by which elections count.
        self.written_acks = ALL
        # How many copies must have a publish at any rate: a majority of a quorum queue's members.
        self.copies_min = 1
        # Copies that the definition counts, and of which it is not known what they have.
        self.missing = 0
        # The last batch that is confirmed.
        self.confirmed = 0

    def follow(self, record: QueueRecord, wanted: int) -> None:
        """Follow the definition, and the number of copies that the policy wants."""
        # Until the smaller number is in the definition, an election counts on the larger one.
        self.acks = stricter(record.acks, wanted)
        self.written_acks = record.acks
        self.copies_min = record.acks if record.members else 1

    def acks_to_write(self, record: QueueRecord, wanted: int) -> int:
        """The number for the definition: the wanted one, as soon as elections can count on it."""
        is_larger = wanted != record.acks and stricter(wanted, record.acks) == wanted
        has_enough = not record.members or 1 + len(record.in_sync) >= wanted
        have_all = self.have_all_confirmed(record.in_sync)
        return record.acks if is_larger and not (has_enough and have_all) else wanted

    @property
    def is_elsewhere(self) -> bool:
        """Whether a mirror has all messages, by the definition."""
        return any([copy.is_named for copy in self._copies.values()])

    @property
    def waits_for_others(self) -> bool:
        """Whether a copy beside the leader's has to have a publish, though there may be none."""
        return self.missing > 0 or self.copies_min > 1

    def upto(self, acks: int, batch: int) -> int:
        """The batch up to which so many copies have everything; `batch` is being put together."""
        copies = self._copies.values()
        upto = confirmed_upto(acks, copies, self.missing, batch, self.copies_min)
        self.confirmed = max(self.confirmed, min(upto, batch - 1))
        return upto

    def named_are(self, named: Collection[str], missing: int) -> None:
        """Note that the definition names these mirrors as whole, and counts `missing` others.

        None of these is about to leave: changes of an earlier definition are void.
        """
        self.missing = missing
        for mirror, copy in self._copies.items():
            copy.is_named = mirror in named
            copy.is_leaving = False

    def leaves(self, mirror: str) -> int:
        """The definition is about to drop a mirror, which does not count for confirms from now on.

        Returns how many copies are missing then: none if the others have all that was confirmed.
        """
        copy = self._copies.get(mirror)
        if copy is None or self.acks is None or not copy.is_named:
            return 0
        copy.is_leaving = True
        return 0 if self._can_shrink(1) else 1

    def can_forget_missing(self) -> bool:
        """Whether the copies that are named have all that was confirmed."""
        if self.acks is None or any([copy.is_leaving for copy in self._copies.values()]):
            return False
        return self._can_shrink(self.missing)

    def _can_shrink(self, by: int) -> bool:
        copies = self._copies.values()
        count = 1 + sum([copy.is_named for copy in copies]) + self.missing - by
        return can_shrink(self.written_acks, copies, count, self.confirmed)

    def have_all_confirmed(self, mirrors: Collection[str]) -> bool:
        """Whether each of these mirrors has all that was confirmed."""
        copies = [self._copies.get(mirror) for mirror in mirrors]
        return all(copy is not None and copy.has_batch >= self.confirmed for copy in copies)
