"""The former copies of a node, and the cards by which a restart knows its storages.

A card is written when a copy is whole, or a queue is led, and again for each epoch. A former copy
is kept until a leader asks for a mirror here again, or has been up for a while without asking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

from warren.core.backing.backing_queue import BackingQueue, BackingSpec, MirroredLevel
from warren.core.backing.stream_log import stream_log
from warren.core.backing.variable_queue import LAZY_MODE
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.records import QueueRecord
from warren.core.field import from_plain
from warren.core.log_line import log_event
from warren.core.ports import Clock, Commit
from warren.core.queues.queue_type import STREAM, type_of
from warren.mirror.replication.copies.copy_cards import Card, CardFiles, CopyCards
from warren.mirror.replication.copies.former_copy import FormerCopy
from warren.mirror.replication.copies.retained_copies import RetainedCopies
from warren.mirror.replication.definition.former_nodes import is_former_needed, may_have_confirmed
from warren.mirror.replication.definition.promotion import leader_is_back, others_may_have_more
from warren.mirror.replication.levels.renumbering import Renumbering

log = logging.getLogger("warren.queue")

FORMER_S = 60.0
"""How long a former copy is kept while its leader is up and does not ask for it."""


class FormerCopies:
    """The former copies of one node, by the ids of their queues."""

    def __init__(self, name: str, files: CardFiles, clock: Clock) -> None:
        self._name = name
        self._cards = CopyCards(files)
        self._clock = clock
        # Each copy with the time since which its leader could have asked for it.
        self._formers: dict[int, tuple[FormerCopy, float]] = {}
        # Copies that are kept only for messages which no other copy has.
        self._unwanted: list[tuple[int, FormerCopy]] = []
        # Acknowledged messages of queues that this node does not lead.
        self.retained = RetainedCopies(clock)
        # The cards of queues that this node leads.
        self._led: dict[int, Card] = {}
        # Whether this start of the node has found damage on the disk.
        self._has_found_damage = False
        # Storages that lack messages, as other nodes have said.
        self._lacking: set[int] = set()

    # At start

    def find(
        self,
        records: Iterable[QueueRecord],
        new_backing: Callable[[BackingSpec], BackingQueue],
        is_leftover: Callable[[int], bool],
        *,
        is_damaged: bool = False,
    ) -> Commit:
        """Open the copies on disk, before storages that are not open are dropped.

        `is_leftover` tells whether a storage that no definition names was given up. If it was not,
        it is kept, and so is its card. `is_damaged`: the disk was found damaged, and any copy on it
        may lack messages. The commit is done when the cards say so.
        """
        cards = sorted(self._cards.read().items(), key=lambda card: -card[1].epoch)
        noted: Commit = CompletedCommit()
        if is_damaged:
            self._has_found_damage = True
            noted = self._cards.note_damage(self._cards)
            action = "mirrors_in_sync_are_asked_to_lead"
            log_event(log, logging.WARNING, "copies_may_lack_messages", action=action)
        queues = {record.queue_id: record for record in records}
        for storage_id, card in cards:
            record = queues.get(card.queue_id)
            if record is None:
                if is_leftover(storage_id):
                    self._cards.remove(storage_id)
                continue
            leads = record.leader == self._name
            if leads and record.storage_id(self._name) == storage_id:
                if _is_of_leader(card, record):
                    self._led[card.queue_id] = card
                continue
            former = self._opened(storage_id, card, record, new_backing)
            # While the leader of the copy's epoch still leads, it has all that the copy has.
            may_lack = card.led or record.epoch > card.epoch
            if card.searched:
                former.searched_in = card.searched_in
            is_searched = card.searched and not (
                others_may_have_more(record.promoted) and record.epoch > card.searched_in
            )
            former.is_damaged = self.is_damaged(storage_id)
            former.to_be_searched = record.durable and may_lack and not is_searched
            superseded = card.queue_id in self._formers
            if superseded or leads or not record.durable:
                former.is_wanted = False
                if former.to_be_searched:
                    self._unwanted.append((card.queue_id, former))
                else:
                    self.discard_copy(former)
            else:
                self.keep(card.queue_id, former)
        return noted

    def is_lacking(self, storage_id: int) -> None:
        """Note that the storage of a queue that this node led lacks messages which a mirror has."""
        self._lacking.add(storage_id)

    def note_damage(self, storage_id: int) -> None:
        """Note that a storage has lost messages: the next start of this node has to know it."""
        self._cards.note_damage([storage_id])

    def is_damaged(self, storage_id: int) -> bool:
        """Whether a storage of this node may lack messages: it was found on a damaged disk, or a
        mirror has more."""
        is_known = self._has_found_damage or storage_id in self._lacking
        return is_known or self._cards.is_damaged(storage_id)

    def _opened(
        self,
        storage_id: int,
        card: Card,
        record: QueueRecord,
        new_backing: Callable[[BackingSpec], BackingQueue],
    ) -> FormerCopy:
        """Open a copy that is on disk, as its card describes it."""
        levels = [
            new_backing(BackingSpec(storage_id + level, True, LAZY_MODE))
            for level in range(len(card.deltas))
        ]
        if type_of(from_plain(record.arguments)) is STREAM:
            # In a stream, messages have their positions for good.
            levels = [stream_log(levels[0], self._clock.call_soon, self._clock.wall_time)]
        return FormerCopy(
            storage_id,
            card.epoch,
            [cast(MirroredLevel, level) for level in levels],
            card.deltas,
            safe_only=True,
            led=card.led,
            renumbering=Renumbering.told(card.first_epoch, card.steps),
        )

    def known_of_led(self, record: QueueRecord) -> Renumbering | None:
        """Return the steps on the card of a queue that this node led in this epoch, or went on to
        lead in it, before it was restarted; None without such a card."""
        card = self._led.pop(record.queue_id, None)
        if card is None or not _is_of_leader(card, record):
            return None
        known = Renumbering.told(card.first_epoch, card.steps)
        self.retained.superseded(record.queue_id, known.retained, led=True)
        return known

    def is_behind(self, storage_id: int, record: QueueRecord) -> bool:
        """Whether the node died when it was about to go on as the leader, and the definition says
        so already, but not the card."""
        card = self._cards.of(storage_id)
        return card is not None and _is_behind(card, record)

    def stop(self) -> None:
        """The node stops; former copies stay on disk for its next start."""
        for former, _ in self._formers.values():
            former.stop()
        self.retained.stop()

    # Former copies

    def keep(self, queue_id: int, former: FormerCopy) -> None:
        self._formers[queue_id] = (former, self._clock.now())

    def keep_all(self, record: QueueRecord, copies: Sequence[FormerCopy]) -> None:
        """Keep the first of the former copies here. If a leader was lost for good, the others, and
        one that was never whole, may have messages that were confirmed and are nowhere else."""
        self.keep(record.queue_id, copies[0])
        for copy in copies:
            copy.is_wanted = copy is copies[0]
            if not self.was_whole(copy) and may_have_confirmed(record, copy.epoch):
                copy.to_be_searched = True
                self._unwanted.append((record.queue_id, copy))
            elif not copy.is_wanted:
                self.discard_copy(copy)

    def parts_to_search(self, queue_id: int) -> list[FormerCopy]:
        """The copies that were never whole and may have messages of a leader that was lost."""
        parts = [copy for of_queue, copy in self._unwanted if of_queue == queue_id]
        self._unwanted = [one for one in self._unwanted if one[0] != queue_id]
        return parts

    def to_search(self) -> dict[int, list[FormerCopy]]:
        """The copies found on disk that may have messages which no other copy has, by queue id."""
        found: dict[int, list[FormerCopy]] = {}
        kept = [(queue_id, former) for queue_id, (former, _) in self._formers.items()]
        for queue_id, former in (*kept, *self._unwanted):
            if former.to_be_searched:
                found.setdefault(queue_id, []).append(former)
        self._unwanted.clear()
        return found

    def is_to_be_searched_now(self, former: FormerCopy, epoch: int) -> bool:
        """Whether to search this copy, when the leader of this epoch lacks messages."""
        is_begun = former.to_be_searched or former.searched_in >= epoch
        return not is_begun and former.epoch < epoch and self.was_whole(former)

    def searched(self, former: FormerCopy, epoch: int) -> None:
        """Search a copy no more in this epoch: the messages that only it had are found and put
        elsewhere."""
        former.to_be_searched = False
        former.searched_in = epoch
        if former.is_wanted:
            self._cards.note_searched(former.storage_id, epoch)
        else:
            self.discard_copy(former)

    def take_whole(self, record: QueueRecord) -> FormerCopy | None:
        """Remove and return the former copy, if it is the one that the definition calls in sync.

        Its card has to be of the present epoch: by an earlier one, positions would be unknown. A
        copy on a damaged disk does not count.
        """
        former, _ = self._formers.get(record.queue_id, (None, 0.0))
        if former is None or former.led or self._name not in record.in_sync:
            return None
        if self.is_damaged(former.storage_id):
            return None
        known = (former.storage_id, former.epoch)
        if known != (record.storage_id(self._name), record.epoch):
            return None
        return self.take(record.queue_id)

    def of_queue(self, queue_id: int) -> FormerCopy | None:
        former, _ = self._formers.get(queue_id, (None, 0.0))
        return former

    def was_whole(self, former: FormerCopy) -> bool:
        """Whether the copy was whole in its epoch: then it has a card."""
        return self._cards.is_of(former.storage_id, former.epoch)

    def take(self, queue_id: int) -> FormerCopy | None:
        """Remove and return it; the caller disposes of it."""
        former, _ = self._formers.pop(queue_id, (None, 0.0))
        return former

    def discard(self, queue_id: int) -> None:
        former = self.take(queue_id)
        if former is not None:
            self.discard_copy(former)

    def discard_copy(self, former: FormerCopy) -> None:
        """Delete the copy, as soon as it was searched for messages that no other node has."""
        former.is_wanted = False
        if not former.to_be_searched:
            self._cards.remove(former.storage_id)
            former.delete()

    def discard_unwanted(self, records: Iterable[QueueRecord], running: Collection[str]) -> None:
        """Discard the copies of queues that are gone, and the copies for which a leader that is up
        has not asked, unless no other node may have a whole one."""
        if not self._formers:
            return
        queues = {record.queue_id: record for record in records}
        now = self._clock.now()
        for queue_id, (former, since) in list(self._formers.items()):
            record = queues.get(queue_id)
            if record is None:
                self.discard(queue_id)
            elif record.leader not in running or is_former_needed(record, self._name):
                self.keep(queue_id, former)
            elif now > since + FORMER_S:
                self.discard(queue_id)

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
        """Write that a storage is a whole copy, unless its card says so of this epoch already.

        The commit is done when the card is durable.
        """
        if self._cards.is_of(storage_id, epoch) and not self._cards.is_damaged(storage_id):
            return self._cards.written(storage_id)
        card = Card(queue_id, epoch, deltas, *renumbering.plain(), led)
        return self._cards.write(storage_id, card)

    def note_steps(self, storage_id: int, renumbering: Renumbering) -> None:
        """Note on the card of a queue that is led here what is known now of earlier epochs."""
        self._cards.note_steps(storage_id, *renumbering.plain())

    def storages_of(self, queue_id: int) -> frozenset[int]:
        """The storages that are whole copies of the queue; may be called on any thread."""
        return self._cards.of_queue(queue_id)

    def remove_card(self, storage_id: int) -> None:
        """Remove the card of a storage that is deleted, or is no copy any more."""
        self._cards.remove(storage_id)


def _is_of_leader(card: Card, record: QueueRecord) -> bool:
    """Whether the node that leads wrote this card: in the present epoch, or in the one before, if
    it led then, too."""
    return record.epoch == card.epoch or (card.led and record.epoch == card.epoch + 1)


def _is_behind(card: Card, record: QueueRecord) -> bool:
    """Whether the node that leads was away, and went on in another epoch than its card says."""
    went_on = card.led and record.epoch == card.epoch + 1
    return went_on and leader_is_back(record.promoted)
