"""The journal: gathers what all queues of the node have to write, and writes it with one sync.

Theory. Queue indexes note what they have to write. When the thread that writes is free, the journal
closes a batch: it asks each of these indexes for its records, gives the records their places, and
hands all octets to the thread as one piece. While that is written and synced, the next batch
gathers. So there is one sync at a time, and all messages that arrive during one sync share the
next.

A batch is closed at once (after the current turn of the loop) when a publisher waits for a confirm.
Otherwise it is closed within `DELAY_S`, or when there is much to write. A message that was
published and removed in between is never written.

Guarantees. A confirm leaves after the batch with the message is synced, and after the definition of
its queue is: a message is never safer than its queue. It waits for no other definition. A failing
disk completes nothing; the batch is written again until that works. Batches are written in order,
each after the one before is synced.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Protocol

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PublishConfirms, WaitingRow, settle_all, settle_in_rows
from warren.core.ports import Commit, Timer
from warren.core.scheduling.waiting import Event
from warren.persist.disk.group_commit import GroupCommit
from warren.persist.layout.format import (
    BATCH_HEADER_BYTES,
    RECORD_BYTES,
    REMOVE,
    aligned,
    encode_batch,
    place_of,
    record_head,
)
from warren.persist.log.log_writer import FilePiece, LogWriter
from warren.persist.log.message_store import MessageStore, StoreFile
from warren.persist.log.store_context import StoreContext

DELAY_S = 0.025
"""How long a message that no publisher waits for may stay unwritten (RabbitMQ's store syncs as
often)."""

BATCH_BYTES_MAX = 2 << 20
"""The octets at which a batch is closed; encoding so many takes a few milliseconds."""

CONGESTED_BYTES = 8 << 20
"""With so many octets unwritten, publishers begin to wait for the disk."""

RELIEVED_BYTES = 4 << 20
"""With no more than this unwritten, they wait no longer."""

MARK_BYTES_MIN = 1024
"""The least that a message counts where batches are cut: small messages take time, too."""

ENQUEUE_BYTES = RECORD_BYTES + 24
"""What a shared message costs for each further queue: a reference, and its entry among the
lengths."""

NOTHING_REMOVED = record_head(REMOVE, 0, 0, 0, 0, 0, b"", 0, b"")
"""A record without effect, to move the end of the journal."""


class OpenBatch:
    """A batch that is being put together. `offset` is where the next record starts in its file.

    `taken` counts the octets of its messages, as they were counted when they were noted. `waiting`
    are the publishers that wait for this batch alone, `waiting_longer` those that also wait for the
    definition of their queue.
    """

    __slots__ = (
        "base",
        "file",
        "lengths",
        "now_us",
        "offset",
        "parts",
        "shared",
        "start",
        "taken",
        "waiting",
        "waiting_longer",
    )

    def __init__(self, file: StoreFile, now_us: int) -> None:
        self.file = file
        self.now_us = now_us
        self.base = file.file_id << 32
        self.start = file.size
        self.offset = file.size + BATCH_HEADER_BYTES
        self.taken = 0
        self.parts: list[bytes] = []
        self.lengths = array("I")
        self.shared: dict[tuple[int, int], tuple[int, int]] = {}
        self.waiting: list[WaitingRow] = []
        self.waiting_longer: list[tuple[Commit, list[WaitingRow]]] = []

    def waiting_for(self, definition: Commit) -> list[WaitingRow]:
        """A list for publishers that wait for this definition too."""
        waiting: list[WaitingRow] = []
        self.waiting_longer.append((definition, waiting))
        return waiting

    def add(self, parts: tuple[bytes, ...], length: int) -> tuple[int, int]:
        """Append a record; returns its place and length."""
        place = self.base + self.offset
        self.parts += parts
        if length & 7:
            self.parts.append(bytes(-length & 7))
        self.lengths.append(length)
        self.offset += aligned(length)
        return place, length


class NotedIndex(Protocol):
    """The part of a queue's index that the journal uses: the index has records to write.

    `is_noted` is for the journal alone: whether the index is in `Journal.noted`.
    """

    is_noted: bool

    def emit_removed(self, batch: OpenBatch) -> None:
        """Put all removals, and the counts of returned messages, into the batch."""
        ...

    def first_mark(self) -> int | None:
        """The mark of the first message that is not written yet; None if there is none."""
        ...

    def emit(self, batch: OpenBatch, cut: int) -> bool:
        """Put the messages below this mark into the batch. False: some are left."""
        ...


class Journal:
    """Writes the persistent store. `noted` are the queue indexes that have something to write.
    Messages of `embed_below` octets or more are written once, whatever the number of their queues,
    if these note them one after the other (`note`).

    `closing`: a batch will be closed later, nothing more has to be done for that; `urgent`: it will
    be closed as soon as possible.

    The `mark` of a message is the number of octets noted before it, in all queues together; it is
    the same in every queue that shares the message. A batch ends at a mark. So a batch has such a
    message for all of its queues or for none, and its body only once.
    """

    def __init__(
        self,
        context: StoreContext,
        store: MessageStore,
        writer: LogWriter,
        group: GroupCommit[FilePiece],
        *,
        on_batch: Callable[[int, int], None],
        on_synced: Callable[[], None],
        on_congestion: Callable[[bool], None],
    ) -> None:
        self.noted: list[NotedIndex] = []
        self.unwritten_bytes = 0
        self.much_bytes = BATCH_BYTES_MAX
        self.noted_bytes = 0
        self.last_mark = 0
        self.last_body: bytes | None = None
        self.last_envelope: Envelope | None = None
        self.closing = False
        self.urgent = False
        self.congested = False
        self.written_bytes = 0
        self.batches = 0
        self._embed_below = context.limits.embed_below
        self._store = store
        self._writer = writer
        self._group = group
        self._call_soon = context.clock.call_soon
        self._call_later = context.clock.call_later
        self._now_us = context.now_us
        self._on_batch = on_batch
        self._on_synced = on_synced
        self._on_congestion = on_congestion
        self._timer: Timer | None = None
        self._soon = False
        self._writing = False
        self._writing_bytes = 0
        self._settled: list[tuple[PublishConfirms, int]] = []
        self._deletion_noted = False
        self._flush_wanted = False
        self._mark_wanted = False
        self._removals_awaited = Event()

    @property
    def idle(self) -> bool:
        """Whether everything noted so far is on disk, and the publishers that waited know it."""
        return not (self.noted or self._writing or self._settled)

    # What queue indexes note

    def note(
        self, index: NotedIndex, envelope: Envelope, body: bytes, confirms: PublishConfirms | None
    ) -> tuple[int, int]:
        """Note that the index has a message to write. Return its mark, and its octets."""
        octets = RECORD_BYTES + len(body) + len(envelope.header)
        if (
            body is self.last_body
            and envelope is self.last_envelope
            and octets >= self._embed_below
        ):
            # A further queue for the message noted last: a reference, in the same batch.
            octets = ENQUEUE_BYTES
        else:
            self.last_body = body
            self.last_envelope = envelope
            self.last_mark = self.noted_bytes
        self.noted_bytes += octets if octets > MARK_BYTES_MIN else MARK_BYTES_MIN
        self.unwritten_bytes += octets
        if not (self.urgent and index.is_noted) or self.unwritten_bytes >= self.much_bytes:
            self._to_ask(index, confirms)
        return self.last_mark, octets

    def note_beside(self, index: NotedIndex, octets: int, confirms: PublishConfirms | None) -> int:
        """Note a record that belongs to the message noted last. Return the mark of both."""
        self.noted_bytes += max(octets, MARK_BYTES_MIN)
        self.unwritten_bytes += octets
        self._to_ask(index, confirms)
        return self.last_mark

    def note_many(
        self, index: NotedIndex, end_mark: int, octets: int, confirms: PublishConfirms | None
    ) -> None:
        """Note that the index has many messages to write. It gave them marks from `noted_bytes` on;
        `end_mark` follows the last one."""
        self.last_body = self.last_envelope = None
        self.noted_bytes = end_mark
        self.unwritten_bytes += octets
        self._to_ask(index, confirms)

    def note_change(self, index: NotedIndex) -> None:
        """Note that the index has removals or returns to write, for which no client waits."""
        if not index.is_noted:
            index.is_noted = True
            self.noted.append(index)
        if not self.closing:
            self.close_later()

    def _to_ask(self, index: NotedIndex, confirms: PublishConfirms | None) -> None:
        """Ask this index when the next batch is closed: soon if a publisher waits for it."""
        if not index.is_noted:
            index.is_noted = True
            self.noted.append(index)
        if confirms is None:
            if not self.closing:
                self.close_later()
        elif not self.urgent:
            self.close_soon()
        if self.unwritten_bytes >= self.much_bytes:
            self.much_noted()

    def close_later(self) -> None:
        """Close a batch later (`DELAY_S`): no client waits for what was noted."""
        self.closing = True
        if self._timer is None and not self._writing:
            self._timer = self._call_later(DELAY_S, self._timed_out)

    def close_soon(self) -> None:
        """Close a batch when the turn is over: a publisher waits for what was noted."""
        self.urgent = True
        if not self._soon:
            self._soon = True
            self._call_soon(self._turn_over)

    def much_noted(self) -> None:
        """Close a batch soon, or have publishers wait: much is noted."""
        if not self.urgent:
            self.close_soon()
        if not self.congested:
            self._watch_congestion()

    def cancelled(self, octets: int, confirms: PublishConfirms | None, publish_seq: int) -> None:
        """Drop a message that was removed before it was written: its publisher waits no more."""
        self.unwritten_bytes -= octets
        if confirms is not None:
            self._settled.append((confirms, publish_seq))
            self.close_soon()

    def note_deletion(self) -> None:
        """Note that a queue was deleted: close a batch after everything that was noted of it."""
        self._deletion_noted = True
        if not self.closing:
            self.close_later()

    def flush(self) -> None:
        """Close a batch as soon as possible, even an empty one (`on_batch` is called)."""
        self._flush_wanted = True
        self.close_soon()

    def mark(self) -> None:
        """Close a batch that has a record, if only one without effect."""
        self._mark_wanted = True
        self.flush()

    def removals_written(self) -> Event:
        """Return the event that everything removed so far is removed on disk."""
        self.flush()
        return self._removals_awaited

    # Closing batches

    def _timed_out(self) -> None:
        self._timer = None
        self._close_batch()

    def _turn_over(self) -> None:
        self._soon = False
        self._settle_cancelled()
        self._close_batch()

    def _settle_cancelled(self) -> None:
        settled, self._settled = self._settled, []
        settle_in_rows(settled)

    def _close_batch(self) -> None:
        """Write what was noted so far, unless the thread is busy."""
        if self._writing:
            self._watch_congestion()
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.closing = self.urgent = False
        if not (self.noted or self._deletion_noted or self._flush_wanted):
            return
        self._flush_wanted = self._deletion_noted = False
        removals, self._removals_awaited = self._removals_awaited, Event()
        batch = self._gather()
        # The references to the last message are not needed any more, and would keep it in memory.
        self.last_body = self.last_envelope = None
        self._watch_congestion()
        if not batch.lengths:
            self._on_batch(self._store.end, 0)
            self._on_synced()
            removals.happen()
            return
        place = place_of(batch.file.file_id, batch.start)
        records_bytes = batch.offset - batch.start - BATCH_HEADER_BYTES
        data = encode_batch(place, records_bytes, batch.parts, batch.lengths)
        assert batch.start + len(data) == batch.offset + aligned(4 * len(batch.lengths))
        piece = self._store.appended(batch.file, data)
        self.written_bytes += len(data)
        self.batches += 1
        self._writing = True
        self._writing_bytes = len(data)
        # Publishers may be waiting for messages for which there was no room.
        self.urgent = bool(self.noted)
        self._on_batch(self._store.end, len(data))
        commit = self._group.submit(piece)
        commit.then(lambda: self._written(piece, batch))
        commit.then(removals.happen)

    def _gather(self) -> OpenBatch:
        batch = OpenBatch(self._store.open_file(), self._now_us())
        noted, self.noted = self.noted, []
        if self._mark_wanted:
            self._mark_wanted = False
            batch.add((NOTHING_REMOVED,), RECORD_BYTES)
        # Readers of a batch rely on this order: removals noted before the batch are in it.
        for index in noted:
            index.emit_removed(batch)
        first = min((at for index in noted if (at := index.first_mark()) is not None), default=0)
        cut = first + BATCH_BYTES_MAX
        for index in noted:
            index.is_noted = not index.emit(batch, cut)
        self.noted = [index for index in noted if index.is_noted]
        self.unwritten_bytes -= batch.taken
        return batch

    def _written(self, piece: FilePiece, batch: OpenBatch) -> None:
        """The batch is synced: tell the publishers that wait for it, and go on."""
        self._store.written(piece, self._writer.generation)
        self._writing = False
        self._writing_bytes = 0
        settle_all(batch.waiting)
        for definition, waiting in batch.waiting_longer:
            definition.then(partial(settle_all, waiting))
        self._on_synced()
        self._watch_congestion()
        if self.urgent or self._flush_wanted or self.unwritten_bytes >= BATCH_BYTES_MAX:
            self._close_batch()
        elif self.noted or self._deletion_noted:
            self.close_later()

    def _watch_congestion(self) -> None:
        owed = self.unwritten_bytes + self._writing_bytes
        if owed >= CONGESTED_BYTES and not self.congested:
            self.congested = True
            self._on_congestion(True)
        elif owed <= RELIEVED_BYTES and self.congested:
            self.congested = False
            self._on_congestion(False)

    def abandon(self) -> None:
        """Write nothing from now on: the node has a fault, and leaves its store as it is."""
        self._writing = True

    def stop(self) -> None:
        """Hand everything over to be written; nothing may be noted afterwards."""
        self._settle_cancelled()
        while self.noted or self._deletion_noted or self._flush_wanted:
            self._writing = False
            self._close_batch()
            if not self._writing:
                break
