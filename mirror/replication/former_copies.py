"""The former copies of a node, and the cards that say after a restart what its storages are.

A card is written when a copy is whole, or a queue is led, and again for each epoch. What a node has
from before is kept until a leader wants a mirror here again, or is there and does not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import cast

from warren.core.backing.backing_queue import BackingQueue, BackingSpec, MirroredLevel
from warren.core.backing.variable_queue import LAZY_MODE
from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock, Commit
from warren.mirror.replication.copy_cards import Card, CardFiles, CopyCards
from warren.mirror.replication.former_copy import FormerCopy
from warren.mirror.replication.renumbering import Renumbering
from warren.mirror.replication.retained_copies import RetainedCopies

FORMER_S = 60.0
"""So long a former copy is kept for a leader that is there and does not ask for it."""


class FormerCopies:
    """Of one node, by queue."""

    def __init__(self, name: str, files: CardFiles, clock: Clock) -> None:
        self._name = name
        self._cards = CopyCards(files)
        self._clock = clock
        # And since when nobody has asked for it.
        self._formers: dict[int, tuple[FormerCopy, float]] = {}
        # Those that are of no use but for what only they have.
        self._unwanted: list[tuple[int, FormerCopy]] = []
        # Acknowledged messages of queues that this node does not lead.
        self.retained = RetainedCopies(clock)
        # What cards say of queues that this node leads.
        self._led: dict[int, Card] = {}

    # At start

    def find(
        self,
        records: Iterable[QueueRecord],
        new_backing: Callable[[BackingSpec], BackingQueue],
        is_leftover: Callable[[int], bool],
    ) -> None:
        """Open what there is of copies, before storages that nobody has opened are dropped.

        `is_leftover` says that a storage which no definition names was given up; others are kept,
        and so are their cards.
        """
        queues = {record.queue_id: record for record in records}
        cards = sorted(self._cards.read().items(), key=lambda card: -card[1].epoch)
        for storage_id, card in cards:
            record = queues.get(card.queue_id)
            if record is None:
                if is_leftover(storage_id):
                    self._cards.remove(storage_id)
                continue
            leads = record.leader == self._name
            if leads and record.storage_id(self._name) == storage_id:
                if record.epoch == card.epoch:
                    self._led[card.queue_id] = card
                continue
            former = _opened(storage_id, card, new_backing)
            # While the leader of its time leads, that one has all.
            may_lack = card.led or record.epoch > card.epoch
            former.to_be_searched = may_lack and not card.searched
            superseded = card.queue_id in self._formers
            if not record.durable or (superseded and not card.led):
                former.to_be_searched = False
                self.discard_copy(former)
            elif superseded or leads:
                former.is_wanted = False
                if former.to_be_searched:
                    self._unwanted.append((card.queue_id, former))
                else:
                    self.discard_copy(former)
            else:
                self.keep(card.queue_id, former)

    def known_of_led(self, queue_id: int, epoch: int) -> Renumbering | None:
        """What this node knew of a queue it led in this epoch before it was restarted."""
        card = self._led.pop(queue_id, None)
        if card is None or card.epoch != epoch:
            return None
        known = Renumbering.told(card.first_epoch, card.steps)
        self.retained.superseded(queue_id, known.retained, led=True)
        return known

    def stop(self) -> None:
        """The node stops; what is here is for its next start."""
        for former, _ in self._formers.values():
            former.stop()
        self.retained.stop()

    # Former copies

    def keep(self, queue_id: int, former: FormerCopy) -> None:
        self._formers[queue_id] = (former, self._clock.now())

    def to_search(self) -> dict[int, list[FormerCopy]]:
        """Those that were found and may have what no other has, by the ids of their queues."""
        found: dict[int, list[FormerCopy]] = {}
        kept = [(queue_id, former) for queue_id, (former, _) in self._formers.items()]
        for queue_id, former in (*kept, *self._unwanted):
            if former.to_be_searched:
                found.setdefault(queue_id, []).append(former)
        self._unwanted.clear()
        return found

    def searched(self, former: FormerCopy) -> None:
        """What only it had is elsewhere now."""
        former.to_be_searched = False
        if former.is_wanted:
            self._cards.note_searched(former.storage_id)
        else:
            self.discard_copy(former)

    def take_whole(self, record: QueueRecord) -> FormerCopy | None:
        """The copy that the definition calls whole, if that is what this node has on disk.

        Its card says so of the present epoch: of an earlier one, positions would be unknown.
        """
        former, _ = self._formers.get(record.queue_id, (None, 0.0))
        if former is None or former.led or self._name not in record.in_sync:
            return None
        known = (former.storage_id, former.epoch)
        if known != (record.storage_id(self._name), record.epoch):
            return None
        return self.take(record.queue_id)

    def take(self, queue_id: int) -> FormerCopy | None:
        """It is its taker's business from now on."""
        former, _ = self._formers.pop(queue_id, (None, 0.0))
        return former

    def discard(self, queue_id: int) -> None:
        former = self.take(queue_id)
        if former is not None:
            self.discard_copy(former)

    def discard_copy(self, former: FormerCopy) -> None:
        """It goes, as soon as it was searched."""
        former.is_wanted = False
        if not former.to_be_searched:
            self._cards.remove(former.storage_id)
            former.delete()

    def discard_unwanted(self, records: Iterable[QueueRecord], running: Collection[str]) -> None:
        """What nobody asks for, though the leader is there, is not wanted any more."""
        if not self._formers:
            return
        leaders = {record.queue_id: record.leader for record in records}
        now = self._clock.now()
        for queue_id, (former, since) in list(self._formers.items()):
            leader = leaders.get(queue_id)
            if leader is None or (leader in running and now > since + FORMER_S):
                self.discard(queue_id)
            elif leader not in running:
                self.keep(queue_id, former)

    # Cards

    def write_card(
        self,
        storage_id: int,
        queue_id: int,
        epoch: int,
        deltas: list[int],
        renumbering: Renumbering,
        *,
        led: bool,
    ) -> Commit:
        """A storage is a whole copy; nothing happens if its card of this epoch is there.

        The commit is done when the card is durable.
        """
        if self._cards.is_of(storage_id, epoch):
            return self._cards.written(storage_id)
        card = Card(queue_id, epoch, deltas, *renumbering.plain(), led)
        return self._cards.write(storage_id, card)

    def remove_card(self, storage_id: int) -> None:
        """The storage is deleted, or is no copy any more."""
        self._cards.remove(storage_id)


def _opened(
    storage_id: int, card: Card, new_backing: Callable[[BackingSpec], BackingQueue]
) -> FormerCopy:
    """What the disk has of a copy, as its card says."""
    levels = [
        cast(MirroredLevel, new_backing(BackingSpec(storage_id + level, True, LAZY_MODE)))
        for level in range(len(card.deltas))
    ]
    return FormerCopy(
        storage_id,
        card.epoch,
        levels,
        card.deltas,
        safe_only=True,
        led=card.led,
        renumbering=Renumbering.told(card.first_epoch, card.steps),
    )
