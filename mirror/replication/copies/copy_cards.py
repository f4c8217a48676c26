"""Cards: notes on disk about the whole copies of a node, for the time after a restart.

A card says of which queue a storage is a copy, and which leader's positions its messages have. A
card may be of an earlier epoch than the copy, never of a later one. A copy without a card is of no
use. The card of a node that leads says so before any other node can hear of it (`Leadership`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from warren.core.definitions.definition_table import CompletedCommit
from warren.core.log_line import log_event
from warren.core.ports import Commit
from warren.mirror.replication.levels.renumbering import PlainStep

log = logging.getLogger("warren.queue")

COPY_BIT = 1 << 62
"""Set in the ids of storages that were begun as copies, and higher than every id of a queue."""

NO_LATER = sys.maxsize
"""Later than every epoch."""


def is_copy(storage_id: int) -> bool:
    """Whether the storage was begun as a copy of another node's queue."""
    return bool(storage_id & COPY_BIT)


class Card(msgspec.Struct, frozen=True):
    """The card of a storage: a message's position there is its position at the leader of `epoch`,
    plus the entry of its level in `deltas`.

    `first_epoch` and `steps` are what is known of other epochs (`renumbering.py`). `led`: the node
    led the queue. `searched`: messages that only this copy had have been found and put elsewhere,
    when the queue was led in the epoch `searched_in`.
    `damaged`: the node has found damage on its disk since, so the copy may lack messages.
    """

    queue_id: int
    epoch: int
    deltas: list[int]
    first_epoch: int
    steps: list[PlainStep]
    led: bool = False
    searched: bool = False
    damaged: bool = False
    # Versions that do not write it search a copy once at most.
    searched_in: int = NO_LATER


class CardFiles(Protocol):
    """The files of the cards, by the ids of their storages. No call waits for the disk."""

    def read(self) -> dict[int, bytes]: ...

    def write(self, storage_id: int, card: bytes) -> Commit:
        """The commit is done when the card is durable."""
        ...

    def remove(self, storage_id: int) -> None: ...


class NoCards:
    """The `CardFiles` of a node without a disk."""

    def read(self) -> dict[int, bytes]:
        return {}

    def write(self, storage_id: int, card: bytes) -> Commit:
        """Done at once: a card would have no copy to tell of after a restart."""
        return CompletedCommit()

    def remove(self, storage_id: int) -> None:
        """There is no card to remove."""


class CopyCards:
    """The cards of one node."""

    def __init__(self, files: CardFiles) -> None:
        self._files = files
        self._cards: dict[int, Card] = {}
        # Sets are replaced, not changed: other threads read them.
        self._by_queue: dict[int, frozenset[int]] = {}
        self._commits: dict[int, Commit] = {}

    def read(self) -> dict[int, Card]:
        """The cards that can be read; the others are of no use, and removed."""
        cards: dict[int, Card] = {}
        for storage_id, octets in self._files.read().items():
            try:
                card = msgspec.msgpack.decode(octets, type=Card)
            except msgspec.MsgspecError as error:
                log_event(
                    log, logging.WARNING, "card_unreadable", storage=f"{storage_id:x}", reason=error
                )
                self._files.remove(storage_id)
                continue
            cards[storage_id] = card
            self._note(storage_id, card)
        return cards

    def of_queue(self, queue_id: int) -> frozenset[int]:
        """The storages that have cards of this queue; may be called on any thread."""
        return self._by_queue.get(queue_id, frozenset())

    def of(self, storage_id: int) -> Card | None:
        return self._cards.get(storage_id)

    def is_of(self, storage_id: int, epoch: int) -> bool:
        """Whether the storage has a card of this epoch, or one is being written."""
        card = self._cards.get(storage_id)
        return card is not None and card.epoch == epoch

    def written(self, storage_id: int) -> Commit:
        """Done when the present card of the storage is durable."""
        commit = self._commits.get(storage_id)
        return CompletedCommit() if commit is None else commit

    def write(self, storage_id: int, card: Card) -> Commit:
        self._note(storage_id, card)
        commit = self._files.write(storage_id, msgspec.msgpack.encode(card))
        if not commit.done:
            self._commits[storage_id] = commit
            commit.then(lambda: self._is_written(storage_id, commit))
        return commit

    def _is_written(self, storage_id: int, commit: Commit) -> None:
        if self._commits.get(storage_id) is commit:
            del self._commits[storage_id]

    def note_searched(self, storage_id: int, epoch: int) -> None:
        """Note on the card that the messages which only this copy has, beside the leader of this
        epoch, are found and put elsewhere."""
        card = self._cards.get(storage_id)
        if card is not None:
            searched = msgspec.structs.replace(card, led=False, searched=True, searched_in=epoch)
            self.write(storage_id, searched)

    def note_steps(self, storage_id: int, first_epoch: int, steps: list[PlainStep]) -> None:
        card = self._cards.get(storage_id)
        if card is not None:
            known = msgspec.structs.replace(card, first_epoch=first_epoch, steps=steps)
            self.write(storage_id, known)

    def __iter__(self) -> Iterator[int]:
        """The storages that have cards."""
        return iter(list(self._cards))

    def note_damage(self, storages: Iterable[int]) -> Commit:
        """Note on the cards of these storages that they may lack messages; done when that is
        durable."""
        commit: Commit = CompletedCommit()
        for storage_id in storages:
            card = self._cards.get(storage_id)
            if card is not None and not card.damaged:
                commit = self.write(storage_id, msgspec.structs.replace(card, damaged=True))
        return commit

    def is_damaged(self, storage_id: int) -> bool:
        """Whether the storage has a card which says that messages may be missing."""
        card = self._cards.get(storage_id)
        return card is not None and card.damaged

    def remove(self, storage_id: int) -> None:
        card = self._cards.pop(storage_id, None)
        if card is None:
            return
        self._files.remove(storage_id)
        others = self._by_queue[card.queue_id] - {storage_id}
        if others:
            self._by_queue[card.queue_id] = others
        else:
            del self._by_queue[card.queue_id]

    def _note(self, storage_id: int, card: Card) -> None:
        self._cards[storage_id] = card
        self._by_queue[card.queue_id] = self.of_queue(card.queue_id) | {storage_id}


def leftover_rule(
    named: Collection[int], cards: Mapping[int, bytes], is_deleted: Callable[[int], bool]
) -> Callable[[int], bool]:
    """A predicate of storage ids: true for storages of deleted queues and for useless copies.

    `named` are the ids that definitions have for queues and storages, `is_deleted` tells of either
    that it was deleted. The predicate is for storages that are not in use here.
    """

    def is_leftover(storage_id: int) -> bool:
        card = cards.get(storage_id)
        if storage_id in named or is_deleted(storage_id) or (is_copy(storage_id) and card is None):
            return True
        queue_id = None if card is None else _queue_of(card)
        return queue_id is not None and queue_id not in named and is_deleted(queue_id)

    return is_leftover


def _queue_of(card: bytes) -> int | None:
    try:
        return msgspec.msgpack.decode(card, type=Card).queue_id
    except msgspec.MsgspecError:
        return None
