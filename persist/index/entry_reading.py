"""Reading the messages that index entries lead to.

Records that stand together in a file of the log are read at once. A record that is damaged or gone
is reported as a lost message; those around it are read all the same.

A record that the disk does not give, because of an error of the system, may be whole: the error may
pass. It is reported as unreadable, and stays on the disk. After many of them the disk itself does
not work, and the node ends rather than pass over all messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class Read(NamedTuple):
    """Messages that were read, and the entries of those that are lost, and that are unreadable."""

    messages: list[Message]
    lost: list[IndexEntry]
    unreadable: list[IndexEntry]


class EntryReader:
    """Reads messages of one queue."""

    def __init__(self, queue_id: int, context: IndexContext, offsets: WallOffsets) -> None:
        self.queue_id = queue_id
        self._offsets = offsets
        self._context = context
        self._envelopes = context.envelopes

    def read(self, entries: list[IndexEntry], redelivered_below: int) -> Read:
        """Read the messages of these entries.

        Messages below the position `redelivered_below` are marked as redelivered.
        """
        self._context.messages_read += len(entries)
        messages: list[Message] = []
        lost: list[IndexEntry] = []
        unreadable: list[IndexEntry] = []
        for run, data in self._runs_read(entries):
            if isinstance(data, OSError):
                self._context.report_unreadable(self.queue_id, run[0].position, data)
                unreadable += run
                continue
            if isinstance(data, Damaged):
                for entry in run:
                    self._context.report_lost(self.queue_id, entry.position, str(data), b"")
                lost += run
                continue
            base = run[0].place & OFFSET_MASK
            for entry in run:
                at = (entry.place & OFFSET_MASK) - base
                try:
                    messages.append(self._message(entry, data, at, redelivered_below))
                except Damaged as damage:
                    octets = data[at : at + entry.length]
                    self._context.report_lost(self.queue_id, entry.position, str(damage), octets)
                    lost.append(entry)
        return Read(messages, lost, unreadable)

    def _runs_read(
        self, entries: list[IndexEntry]
    ) -> Iterator[tuple[list[IndexEntry], bytes | Damaged | OSError]]:
        """The runs of these entries with what `read_run` returns. If the disk does not give a run,
        each of its entries comes alone: most of them may be in another place than the error."""
        for run in self._runs(entries):
            data = self.read_run(run)
            if isinstance(data, OSError) and len(run) > 1:
                for entry in run:
                    yield [entry], self.read_run([entry])
            else:
                yield run, data

    def read_run(self, run: list[IndexEntry]) -> bytes | Damaged | OSError:
        """The octets from the first of these entries to the end of the last, in the same file; or
        why there are none."""
        first, last = run[0], run[-1]
        start = first.place & OFFSET_MASK
        end = (last.place & OFFSET_MASK) + last.length
        store = self._context.store_of(first.place)
        try:
            data = store.read(first.place, end - start)
        except (Damaged, OSError) as reason:
            return reason
        if self._context.has_read_trouble and store.is_on_disk(first.place):
            self._context.disk_gave_messages()
        return data

    def _runs(self, entries: list[IndexEntry]) -> Iterator[list[IndexEntry]]:
        """Entries that are read at once, because they stand together."""
        run: list[IndexEntry] = []
        start = end = file_id = 0
        contiguous_below = 0
        for entry in entries:
            place = entry.place
            offset = place & OFFSET_MASK
            if run and not (
                place >> 32 == file_id
                and end <= offset <= end + GAP_BYTES_MAX
                and offset < contiguous_below
                and offset + entry.length - start <= READ_BYTES_MAX
            ):
                yield run
                run = []
            if not run:
                start = offset
                file_id = place >> 32
                contiguous_below = self._context.store_of(place).contiguous_below(file_id)
            end = offset + entry.length
            run.append(entry)
        if run:
            yield run

    def _message(self, entry: IndexEntry, data: bytes, at: int, redelivered_below: int) -> Message:
        """Raises `Damaged`."""
        position = entry.position
        record = decode_record(data, at, entry.length)
        if record.type == PUBLISH:
            if record.queue != self.queue_id or record.position != position:
                raise Damaged(
                    f"message {record.position} of queue {record.queue:x} where"
                    f" {position} of {self.queue_id:x} should be"
                )
        elif record.type != SHARED_MESSAGE:
            raise Damaged(f"a record of type {record.type} where a message should be")
        envelope = self._envelopes.decode(record.envelope, record.flags & PERSISTENT > 0)
        expires_us = entry.expires_us
        expires_at = (
            self._offsets.node_time(position, entry.place, expires_us) if expires_us else None
        )
        return Message(envelope, record.payload, position, expires_at, position < redelivered_below)
