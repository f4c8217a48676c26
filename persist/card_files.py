"""Small files beside the storages of copies; what is in them is their user's business.

A card stands under the number of its storage. It is written beside the one before, synced, and
renamed, so that one of the two is always there. What is asked for while cards are being written
shares the next sync. A checksum tells of damage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from warren.core.log_line import log_event
from warren.core.ports import Commit
from warren.persist.filesystem import FileSystem
from warren.persist.group_commit import (
    CallLater,
    GroupCommit,
    Job,
    OnFault,
    log_callback_fault,
)

log = logging.getLogger("warren.storage")

CARDS_DIRECTORY = "cards"

NEW = ".new"
"""Ends the name of a card that is being written."""

_CRC_BYTES = 4

Item: TypeAlias = tuple[int, bytes | None]
"""A storage and its card, or that it has none any more."""


class _Damaged(Exception):
    """The checksum of a card is wrong."""


class CardFiles:
    """Implements `mirror.copy_cards.CardFiles` in a directory of its own.

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
        self._directory = store / CARDS_DIRECTORY
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
        """All there are, by the id of the storage. Damaged ones are of no use, and removed."""
        cards: dict[int, bytes] = {}
        for name in self._filesystem.names(self._directory):
            path = self._directory / name
            if name.endswith(NEW):
                # The node ended while it was being written, and nothing relied on it.
                self._discard(path)
                continue
            try:
                storage_id = int(name, 16)
                octets = self._read(path)
            except _Damaged as error:
                log_event(log, logging.WARNING, "card_removed", path=path, reason=error)
                self._discard(path)
            except (ValueError, OSError) as error:
                log_event(log, logging.WARNING, "card_ignored", path=path, error=error)
            else:
                cards[storage_id] = octets
        return cards

    def _discard(self, path: Path) -> None:
        try:
            self._filesystem.remove(path)
        except OSError as error:
            log_event(log, logging.WARNING, "card_not_removed", path=path, error=error)

    def _read(self, path: Path) -> bytes:
        """Raises `_Damaged`, OSError."""
        file = self._filesystem.open(path, writable=False)
        try:
            octets = file.read(0, file.size())
        finally:
            file.close()
        crc, card = octets[:_CRC_BYTES], octets[_CRC_BYTES:]
        if crc != crc32(card).to_bytes(_CRC_BYTES, "little"):
            raise _Damaged("damaged")
        return card

    def write(self, storage_id: int, card: bytes) -> Commit:
        """The commit is done when the card is durable."""
        return self._group.submit((storage_id, card))

    def remove(self, storage_id: int) -> None:
        self._group.submit((storage_id, None))

    def close(self) -> None:
        """Write what is pending in the calling thread; the thread behind `run` has ended."""
        self._group.close()

    def abandon(self) -> None:
        """Write nothing more."""
        self._group.abandon()

    def _write_batch(self, items: Sequence[Item]) -> None:
        """On the thread. Raises OSError."""
        youngest = dict(items)
        cards = [(storage_id, card) for storage_id, card in youngest.items() if card is not None]
        if cards:
            self._write_cards(cards)
        for storage_id, card in youngest.items():
            if card is None:
                self._filesystem.remove(self._path(storage_id))

    def _write_cards(self, cards: Sequence[tuple[int, bytes]]) -> None:
        filesystem = self._filesystem
        filesystem.make_directory(self._directory)
        written = [(self._new_path(storage_id), self._path(storage_id)) for storage_id, _ in cards]
        for (new, _), (_, card) in zip(written, cards, strict=True):
            file = filesystem.create(new)
            try:
                file.write(0, crc32(card).to_bytes(_CRC_BYTES, "little") + card)
            finally:
                file.close()
        filesystem.sync_files([new for new, _ in written])
        for new, path in written:
            filesystem.rename(new, path)
        filesystem.sync_directory(self._directory)

    def _report_failure(self, error: Exception) -> None:
        log_event(
            log,
            logging.WARNING,
            "card_not_written",
            path=self._directory,
            error=error,
            action="retrying",
        )

    def _report_recovery(self) -> None:
        log_event(log, logging.INFO, "cards_written_again", path=self._directory)

    def _path(self, storage_id: int) -> Path:
        return self._directory / f"{storage_id:016x}"

    def _new_path(self, storage_id: int) -> Path:
        return self._directory / f"{storage_id:016x}{NEW}"
