"""Writes the files of a log, in a thread that does nothing else.

Answerable for the octets on the disk: a file is created with its header, grows by pieces, and is
closed with a footer. `write` returns when the pieces are durable (or, in the transient store,
handed to the operating system). After an error `write` is called with the same pieces again.

A piece is written and synced in one call of the system: after each call the thread has to wait for
the loop. A sync takes less time if the file does not grow. So when small pieces come one by one,
the file is given room for the next ones: zeros behind its end, over which they are written.

After a failed sync nothing is known about what was written since the last good one. The file is
then replaced by its next generation: what was durable is copied, the piece is written after it,
and the new file takes the place of the old only when all of it is synced. The old one stays until
its readers know of the new one.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from warren.core.log_line import log_event
from warren.persist.disk.filesystem import File, FileSystem
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    FOOTER_BYTES,
    FileHeader,
    Footer,
    encode_file_header,
    encode_footer,
)
from warren.persist.log.log_reader import ROOM_BYTES

log = logging.getLogger("warren.storage")

COPY_BYTES = 1 << 20

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

SMALL_BYTES = 4096
SMALL_IN_A_ROW = 8
"""A file is given room after this number of consecutive pieces of at most `SMALL_BYTES`."""


class FilePiece(NamedTuple):
    """Octets for one file at an offset. They follow the piece before, or begin the next file.

    `seals`: the file is full, and its footer follows.
    """

    header: FileHeader
    offset: int
    data: bytes
    seals: bool


def file_name(file_id: int, generation: int) -> str:
    return f"{file_id & 0x7FFFFFFF:08x}.{generation}.rdq"


class LogWriter:
    """The only writer of the log in `directory`. `durable`: every write is synced."""

    def __init__(self, filesystem: FileSystem, directory: Path, *, durable: bool) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._durable = durable
        self._file: File | None = None
        self._header: FileHeader | None = None
        self._end = 0
        self._batches = 0
        self._crc = 0
        self._doubtful = False
        # Whether the file has octets that are not synced, so that the next piece is written first,
        # and then the whole file is synced.
        self._is_unsynced = False
        self._small = 0
        self._room_end = 0

    @property
    def generation(self) -> int:
        """The generation of the file written last."""
        return 0 if self._header is None else self._header.generation

    def write(self, pieces: Sequence[FilePiece]) -> None:
        """Raises OSError; the same pieces can be written again then."""
        for piece in pieces:
            self._write_piece(piece)

    def close(self) -> None:
        if self._file is not None:
            self._give_up_room(self._end)
            self._file.close()
            self._file = None

    def _write_piece(self, piece: FilePiece) -> None:
        header = self._header
        if header is None or header.file_id < piece.header.file_id:
            self._create(piece.header)
        elif header.file_id > piece.header.file_id or piece.offset < self._end:
            # An earlier try, which failed at a later piece, has written this one.
            return
        if self._doubtful:
            self._replace(piece)
        else:
            self._add(piece.offset, piece.data)
        self._crc = crc32(piece.data, self._crc)
        self._end = piece.offset + len(piece.data)
        self._batches += 1
        if piece.seals:
            self._write_footer()

    def _add(self, offset: int, data: bytes) -> None:
        """Write octets at the end of the file, and sync them."""
        assert self._file is not None
        end = offset + len(data)
        self._small = self._small + 1 if len(data) <= SMALL_BYTES else 0
        wants_room = self._small >= SMALL_IN_A_ROW and end > self._room_end
        if not self._durable:
            self._file.write(offset, data)
        elif self._is_unsynced or wants_room:
            self._file.write(offset, data)
            if wants_room:
                self._make_room(end)
            self._sync(self._file)
        else:
            self._write_synced(self._file, offset, data)

    def _write_synced(self, file: File, offset: int, data: bytes) -> None:
        try:
            file.write_synced(offset, data)
        except OSError as error:
            # A disk without room has not taken the octets, and takes the same ones later. After
            # other errors they may be lost though the next sync succeeds.
            self._is_unsynced = True
            self._doubtful = error.errno not in NO_ROOM
            raise

    def _make_room(self, end: int) -> None:
        """Give the file room behind `end`, where its octets end after the next sync."""
        assert self._file is not None
        self._small = 0
        self._room_end = end + ROOM_BYTES
        try:
            self._file.write(end, bytes(ROOM_BYTES))
        except OSError as error:
            # The piece itself is written, and pieces can be written without room.
            log_event(log, logging.DEBUG, "no_room_made", error=error)

    def _give_up_room(self, end: int) -> None:
        """Let the file end after its last octet; room that stays does no harm."""
        if self._room_end <= end:
            return
        assert self._file is not None
        self._room_end = 0
        try:
            self._file.truncate(end)
        except OSError as error:
            log_event(log, logging.INFO, "room_remains", error=error)

    def _create(self, header: FileHeader) -> None:
        self.close()
        path = self._directory / file_name(header.file_id, header.generation)
        file = self._filesystem.create(path)
        try:
            first = encode_file_header(header)
            file.write(0, first)
            if self._durable:
                self._filesystem.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        self._file = file
        self._header = header
        self._end = FILE_HEADER_BYTES
        self._batches = 0
        self._crc = crc32(first)
        self._doubtful = False
        self._is_unsynced = True
        self._small = self._room_end = 0

    def _write_footer(self) -> None:
        """Close the file. The footer is written when everything before it is synced, and proves
        that.

        Nothing depends on the footer: it is not synced, and the file does without it when it cannot
        be written.
        """
        assert self._file is not None and self._header is not None
        try:
            self._file.write(self._end, encode_footer(Footer(self._batches, self._end, self._crc)))
        except OSError as error:
            name = file_name(self._header.file_id, self._header.generation)
            log_event(log, logging.INFO, "footer_missing", file=name, error=error)
        self._give_up_room(self._end + FOOTER_BYTES)

    def _sync(self, file: File) -> None:
        if self._durable:
            try:
                file.sync()
            except OSError:
                self._doubtful = True
                raise
            self._is_unsynced = False

    def _replace(self, piece: FilePiece) -> None:
        """Write the file anew, up to and with this piece, as its next generation."""
        assert self._file is not None and self._header is not None
        header = self._header._replace(generation=self._header.generation + 1)
        path = self._directory / file_name(header.file_id, header.generation)
        unfinished = path.with_name(path.name + ".new")
        fresh = self._filesystem.create(unfinished)
        try:
            first = encode_file_header(header)
            fresh.write(0, first)
            crc = crc32(first)
            for offset in range(FILE_HEADER_BYTES, piece.offset, COPY_BYTES):
                copied = self._file.read(offset, min(COPY_BYTES, piece.offset - offset))
                fresh.write(offset, copied)
                crc = crc32(copied, crc)
            self._crc = crc
            fresh.write(piece.offset, piece.data)
            fresh.sync()
            self._filesystem.rename(unfinished, path)
            self._filesystem.sync_directory(self._directory)
        except BaseException:
            fresh.close()
            raise
        self._file.close()
        self._file = fresh
        self._header = header
        self._doubtful = self._is_unsynced = False
        self._small = self._room_end = 0
