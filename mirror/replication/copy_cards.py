"""What is kept on disk beside whole copies of queues, for the time after a restart.

A card says of which queue a storage is a copy, and whose positions its messages have. It may be
of an earlier epoch than the copy, never of a later one. Without it the copy is of no use. That a
node leads is on its card before anybody else can hear of it (`Mirroring`).
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from warren.core.definitions.definition_table import CompletedCommit
from warren.core.log_line import log_event
from warren.core.ports import Commit

log = logging.getLogger("warren.queue")

COPY_BIT = 1 << 62
"""Set in the ids of storages that were begun as copies, and above all ids that queues get."""


def is_copy(storage_id: int) -> bool:
    """Whether the storage was begun as a copy of what another node has."""
    return bool(storage_id & COPY_BIT)


class Card(msgspec.Struct, frozen=True):
    """Positions in the storage are those of the leader of `epoch` and `deltas`, a level each.

    `first_epoch` and `steps` are what is known of other epochs (`renumbering.py`). `led`: the node
    led the queue. `searched`: what only this copy had is elsewhere.
    """

    queue_id: int
    epoch: int
    deltas: list[int]
    first_epoch: int
    steps: list[tuple[int | list[int], ...]]
    led: bool = False
    searched: bool = False


class CardFiles(Protocol):
    """Where cards are, by the id of the storage. Nothing of it waits for the disk."""

    def read(self) -> dict[int, bytes]: ...

    def write(self, storage_id: int, card: bytes) -> Commit:
        """The commit is done when the card is durable."""
        ...

    def remove(self, storage_id: int) -> None: ...


class NoCards:
    """Of a node without a disk."""

    def read(self) -> dict[int, bytes]:
        return {}

    def write(self, storage_id: int, card: bytes) -> Commit:
        """There will be nothing to find again."""
        return CompletedCommit()

    def remove(self, storage_id: int) -> None:
        """There is none."""


class CopyCards:
    """The cards of one node."""

    def __init__(self, files: CardFiles) -> None:
        self._files = files
        self._cards: dict[int, Card] = {}
        self._commits: dict[int, Commit] = {}

    def read(self) -> dict[int, Card]:
        """Those that can be read; others are of no use."""
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
            self._cards[storage_id] = card
        return cards

    def is_of(self, storage_id: int, epoch: int) -> bool:
        """Whether there is a card of this epoch, or it is being written."""
        card = self._cards.get(storage_id)
        return card is not None and card.epoch == epoch

    def written(self, storage_id: int) -> Commit:
        """Done when the card there is, is durable."""
        commit = self._commits.get(storage_id)
        return CompletedCommit() if commit is None else commit

    def write(self, storage_id: int, card: Card) -> Commit:
        self._cards[storage_id] = card
        commit = self._files.write(storage_id, msgspec.msgpack.encode(card))
        if not commit.done:
            self._commits[storage_id] = commit
            commit.then(lambda: self._is_written(storage_id, commit))
        return commit

    def _is_written(self, storage_id: int, commit: Commit) -> None:
        if self._commits.get(storage_id) is commit:
            del self._commits[storage_id]

    def note_searched(self, storage_id: int) -> None:
        """What only this copy had is elsewhere now."""
        card = self._cards.get(storage_id)
        if card is not None and not card.searched:
            self.write(storage_id, msgspec.structs.replace(card, led=False, searched=True))

    def remove(self, storage_id: int) -> None:
        if self._cards.pop(storage_id, None) is not None:
            self._files.remove(storage_id)
