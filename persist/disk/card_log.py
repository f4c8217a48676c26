"""The cards of copies of queues, in one file; their contents are for their user to know.

A card stands under the number of its storage. What is asked for while cards are being written is
appended with one write and one sync, so that ten thousand cards of one moment cost little more
than one. Of several entries of one storage the last one counts; a checksum tells of damage. What is
damaged, or was not written whole, is passed over, and costs its card only.

The file is written anew beside itself, synced and renamed, when most of it does not count any
more; after an error, because nothing is known then of what was appended; when it has damage; and
when there are files of an earlier version of Warren, which had one for each card.

Format. Entries of crc (of all that follows in the entry), kind, size and storage, then the card.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from warren.core.log_line import log_event
from warren.core.ports import Commit
from warren.persist.disk.filesystem import FileSystem, read_whole, write_whole
from warren.persist.disk.group_commit import (
    CallLater,
    GroupCommit,
    Job,
    OnFault,
    log_callback_fault,
)

log = logging.getLogger("warren.storage")

CARDS_FILE = "copy-cards"
FORMER_DIRECTORY = "cards"
"""Where earlier versions of Warren had a file for each card, named by its storage."""

NEW = ".new"
"""Ends the name of a file that is being written, until it takes the place of another one."""

_CRC = Struct("<I")
_HEAD = Struct("<BIQ")
"""Kind, octets of the card, storage."""
CARD, REMOVED = 1, 2

SLACK_BYTES: Final = 256 << 10
"""The octets by which the file may exceed twice its valid entries before it is written anew."""

Item: TypeAlias = tuple[int, bytes | None]
"""A storage and its card, or that it has none any more."""


class _Entry(NamedTuple):
    """`card` is None where the storage has none any more, or where the entry is damaged."""

    storage_id: int
    card: bytes | None
    is_damaged: bool = False


class CardLog:
    """Implements `CardFiles` (`mirror/replication/copies/copy_cards.py`) in the store's directory.

    `run` hands a job to a thread, and `call_on_loop` brings outcomes back.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        store: Path,
        *,
        run: Callable[[Job], None],
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        on_fault: OnFault = log_callback_fault,
    ) -> None:
        self._filesystem = filesystem
        self._path = store / CARDS_FILE
        self._former = store / FORMER_DIRECTORY
        # The cards as of the last batch; None until they were read. The thread has them from then
        # on.
        self._cards: dict[int, bytes] | None = None
        self._size = 0
        self._has_former = False
        self._is_to_be_renewed = True
        self._group: GroupCommit[Item] = GroupCommit(
            self._write_batch,
            run=run,
            call_on_loop=call_on_loop,
            call_later=call_later,
            on_failure=self._report_failure,
            on_recovery=self._report_recovery,
            on_fault=on_fault,
        )

    def read(self) -> dict[int, bytes]:
        """Return all cards, by the ids of their storages. Call this while nothing is written.

        Raises OSError: what cannot be read must not be written over.
        """
        if self._cards is None:
            self._cards = self._load()
        return dict(self._cards)

    def write(self, storage_id: int, card: bytes) -> Commit:
        """The commit is done when the card is durable."""
        return self._group.submit((storage_id, card))

    def remove(self, storage_id: int) -> None:
        self._group.submit((storage_id, None))

    def close(self) -> None:
        """Write all pending cards in the calling thread; the thread behind `run` has ended."""
        self._group.close()

    def abandon(self) -> None:
        """Write nothing more."""
        self._group.abandon()

    # Reading

    def _load(self) -> dict[int, bytes]:
        """Raises OSError."""
        cards = self._load_former()
        octets = read_whole(self._filesystem, self._path) or b""
        damaged = 0
        for entry in _entries(octets):
            damaged += entry.is_damaged
            if entry.card is not None:
                cards[entry.storage_id] = entry.card
            elif not entry.is_damaged:
                cards.pop(entry.storage_id, None)
        if damaged:
            log_event(log, logging.WARNING, "cards_damaged", path=self._path, entries=damaged)
        self._size = len(octets)
        self._is_to_be_renewed = self._has_former or bool(damaged) or not octets
        return cards

    def _load_former(self) -> dict[int, bytes]:
        """Read the cards that an earlier version of Warren has written."""
        cards: dict[int, bytes] = {}
        for name in self._filesystem.names(self._former):
            self._has_former = True
            path = self._former / name
            if name.endswith(NEW):
                # The node ended while this file was being written, and nothing relied on it.
                continue
            octets = read_whole(self._filesystem, path) or b""
            crc, card = octets[: _CRC.size], octets[_CRC.size :]
            try:
                storage_id = int(name, 16)
            except ValueError as error:
                log_event(log, logging.WARNING, "card_ignored", path=path, error=error)
                continue
            if crc == _CRC.pack(crc32(card)):
                cards[storage_id] = card
            else:
                log_event(log, logging.WARNING, "card_ignored", path=path, error="damaged")
        return cards

    # Writing, on the thread

    def _write_batch(self, items: Sequence[Item]) -> None:
        """Raises OSError."""
        if self._cards is None:
            self._cards = self._load()
        cards = self._cards
        youngest = dict(items)
        cards.update({one: card for one, card in youngest.items() if card is not None})
        changes = [one for one in youngest.items() if one[1] is not None or one[0] in cards]
        for storage_id, card in changes:
            if card is None:
                del cards[storage_id]
        octets = _encoded(changes)
        renewed = self._is_to_be_renewed or self._size + len(octets) > self._size_max(cards)
        # Until all of it is durable, it is not known what is in the file.
        self._is_to_be_renewed = True
        if renewed:
            self._renew(cards)
        elif octets:
            self._append(octets)
        self._is_to_be_renewed = False

    def _size_max(self, cards: Mapping[int, bytes]) -> int:
        heads = (_CRC.size + _HEAD.size) * len(cards)
        return SLACK_BYTES + 2 * (heads + sum(map(len, cards.values())))

    def _append(self, octets: bytes) -> None:
        file = self._filesystem.open(self._path)
        try:
            file.write(self._size, octets)
            file.sync()
        finally:
            file.close()
        self._size += len(octets)

    def _renew(self, cards: Mapping[int, bytes]) -> None:
        """Write the valid entries into a new file."""
        octets = _encoded(cards.items())
        write_whole(self._filesystem, self._path, octets)
        self._size = len(octets)
        if self._has_former:
            self._filesystem.remove_directory(self._former)
            self._has_former = False

    def _report_failure(self, error: Exception) -> None:
        log_event(
            log,
            logging.WARNING,
            "card_not_written",
            path=self._path,
            error=error,
            action="retrying",
        )

    def _report_recovery(self) -> None:
        log_event(log, logging.INFO, "cards_written_again", path=self._path)


def _encoded(items: Iterable[Item]) -> bytes:
    parts: list[bytes] = []
    for storage_id, card in items:
        head = _HEAD.pack(REMOVED if card is None else CARD, len(card or b""), storage_id)
        entry = head + (card or b"")
        parts += (_CRC.pack(crc32(entry)), entry)
    return b"".join(parts)


def _entries(octets: bytes) -> Iterator[_Entry]:
    """Each entry, in order; a damaged one as far as its size leads to the next."""
    at = 0
    while at < len(octets):
        body = at + _CRC.size
        if body + _HEAD.size > len(octets):
            yield _Entry(0, None, is_damaged=True)
            return
        (crc,) = _CRC.unpack_from(octets, at)
        kind, size, storage_id = _HEAD.unpack_from(octets, body)
        at = body + _HEAD.size + size
        if at > len(octets) or crc32(octets[body:at]) != crc:
            yield _Entry(storage_id, None, is_damaged=True)
        else:
            card = octets[body + _HEAD.size : at] if kind == CARD else None
            yield _Entry(storage_id, card)
