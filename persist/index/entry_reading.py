"""Reading the messages that index entries lead to.

Records that stand together in a file of the log are read at once. A record that is damaged or gone
is reported as a lost message; those around it are read all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.core.messages.message import Message
from warren.persist.index.index_context import IndexContext
from warren.persist.index.wall_offsets import WallOffsets
from warren.persist.layout.format import (
    OFFSET_MASK,
    PERSISTENT,
    PUBLISH,
    SHARED_MESSAGE,
    Damaged,
    decode_record,
)
from warren.persist.layout.segment import IndexEntry

GAP_BYTES_MAX = 4096
"""Octets between two records that are read and thrown away, rather than reading twice."""

READ_BYTES_MAX = 1 << 20
"""Octets that are read from a file at once."""


class EntryReader:
    """Reads messages of one queue."""

    def __init__(self, queue_id: int, context: IndexContext, offsets: WallOffsets) -> None:
        self.queue_id = queue_id
        self._offsets = offsets
        self._context = context

    def read(
        self, entries: list[IndexEntry], redelivered_below: int
    ) -> tuple[list[Message], list[IndexEntry]]:
        """The messages of these entries, and the entries whose messages are lost.

        Messages below the position `redelivered_below` are marked as redelivered.
        """
        self._context.messages_read += len(entries)
        messages: list[Message] = []
        lost: list[IndexEntry] = []
        for run in self._runs(entries):
            data = self.read_run(run)
            base = run[0].place & OFFSET_MASK
            for entry in run:
                try:
                    if isinstance(data, Damaged):
                        raise data
                    at = (entry.place & OFFSET_MASK) - base
                    message = self._message(entry, data, at)
                    message.redelivered = entry.position < redelivered_below
                    messages.append(message)
                except Damaged as damage:
                    octets = b"" if isinstance(data, Damaged) else data[at : at + entry.length]
                    self._context.report_lost(self.queue_id, entry.position, str(damage), octets)
                    lost.append(entry)
        return messages, lost

    def read_run(self, run: list[IndexEntry]) -> bytes | Damaged:
        """The octets from the first of these entries to the end of the last, in the same file."""
        first, last = run[0], run[-1]
        start = first.place & OFFSET_MASK
        end = (last.place & OFFSET_MASK) + last.length
        try:
            return self._context.store_of(first.place).read(first.place, end - start)
        except Damaged as damage:
            return damage
        except OSError as error:
            return Damaged(f"cannot be read: {error}")

    def _runs(self, entries: list[IndexEntry]) -> Iterator[list[IndexEntry]]:
        """Entries that are read at once, because they stand together."""
        run: list[IndexEntry] = []
        start = end = file_id = 0
        contiguous = False
        for entry in entries:
            place = entry.place
            offset = place & OFFSET_MASK
            if run and not (
                contiguous
                and place >> 32 == file_id
                and end <= offset <= end + GAP_BYTES_MAX
                and offset + entry.length - start <= READ_BYTES_MAX
            ):
                yield run
                run = []
            if not run:
                start = offset
                file_id = place >> 32
                contiguous = self._context.store_of(place).contiguous(file_id)
            end = offset + entry.length
            run.append(entry)
        if run:
            yield run

    def _message(self, entry: IndexEntry, data: bytes, at: int) -> Message:
        """Raises `Damaged`."""
        record = decode_record(data, at, entry.length)
        if record.type == PUBLISH:
            if record.queue != self.queue_id or record.position != entry.position:
                raise Damaged(
                    f"message {record.position} of queue {record.queue:x} where"
                    f" {entry.position} of {self.queue_id:x} should be"
                )
        elif record.type != SHARED_MESSAGE:
            raise Damaged(f"a record of type {record.type} where a message should be")
        envelope = self._context.envelope(record.envelope, bool(record.flags & PERSISTENT))
        expires_at = self._offsets.node_time(entry.position, entry.place, entry.expires_us)
        return Message(envelope, record.payload, entry.position, expires_at)
