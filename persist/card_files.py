"""Small files beside the storages of copies; what is in them is their user's business.

They are written by the thread that tidies, and not synced: a card that a power failure takes, or
damages, costs a copy that has to be made anew. A checksum tells.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from warren.core.log_line import log_event
from warren.persist.filesystem import FileSystem
from warren.persist.group_commit import Job

log = logging.getLogger("warren.storage")

CARDS_DIRECTORY = "cards"

_CRC_BYTES = 4


class CardFiles:
    """Implements `mirror.copy_cards.CardFiles` in a directory of its own."""

    def __init__(
        self, filesystem: FileSystem, store: Path, run_background: Callable[[Job], None]
    ) -> None:
        self._filesystem = filesystem
        self._directory = store / CARDS_DIRECTORY
        self._run_background = run_background

    def read(self) -> dict[int, bytes]:
        """All there are, by the id of the storage; damaged ones are passed over."""
        cards: dict[int, bytes] = {}
        for name in self._filesystem.names(self._directory):
            path = self._directory / name
            try:
                storage_id = int(name, 16)
                octets = self._read(path)
            except (ValueError, OSError) as error:
                log_event(log, logging.WARNING, "card_ignored", path=path, error=error)
                continue
            cards[storage_id] = octets
        return cards

    def _read(self, path: Path) -> bytes:
        """Raises ValueError, OSError."""
        file = self._filesystem.open(path, writable=False)
        try:
            octets = file.read(0, file.size())
        finally:
            file.close()
        crc, card = octets[:_CRC_BYTES], octets[_CRC_BYTES:]
        if crc != crc32(card).to_bytes(_CRC_BYTES, "little"):
            raise ValueError("damaged")
        return card

    def write(self, storage_id: int, card: bytes) -> None:
        octets = crc32(card).to_bytes(_CRC_BYTES, "little") + card
        path = self._path(storage_id)

        def job() -> None:
            try:
                self._filesystem.make_directory(self._directory)
                file = self._filesystem.create(path)
                try:
                    file.write(0, octets)
                finally:
                    file.close()
            except OSError as error:
                log_event(log, logging.WARNING, "card_not_written", path=path, error=error)

        self._run_background(job)

    def remove(self, storage_id: int) -> None:
        path = self._path(storage_id)

        def job() -> None:
            try:
                self._filesystem.remove(path)
            except FileNotFoundError:
                return
            except OSError as error:
                log_event(log, logging.WARNING, "card_not_removed", path=path, error=error)

        self._run_background(job)

    def _path(self, storage_id: int) -> Path:
        return self._directory / f"{storage_id:016x}"
