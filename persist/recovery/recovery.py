"""Recovery: reads the log files, and the index of every queue, when a node starts.

It reads the segments of all queues, and then the journal from the last checkpoint on; it applies
each record that is newer than the segment it belongs to. It changes only octets that no later
recovery would read: it cuts off a torn end of the journal, and removes files that a crash left
unfinished. So recovering twice, or being stopped in the middle, is the same as recovering once.

Memory is bounded by the segments that the journal has touched since the checkpoint. Other segments
are read one after the other, and only their totals are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.persist.disk.filesystem import File, FileSystem, read_whole
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    OFFSET_MASK,
    SEGMENT_ENTRIES,
    SHARED,
    Damaged,
    FileHeader,
    Harm,
    decode_checkpoint,
    decode_clean,
    decode_counts,
    decode_file_header,
    decode_record,
    encode_file_header,
    file_of,
    place_of,
)
from warren.persist.layout.segment import Segment
from warren.persist.log.log_files import find_log_files, read_survivors
from warren.persist.log.log_reader import FoundRecord, Scan
from warren.persist.log.log_writer import file_name
from warren.persist.log.message_store import StoreFile
from warren.persist.recovery.stored_index import StoredIndex

log = logging.getLogger("warren.storage")

STORE_DIRECTORY = "store"
"""In the data directory. The files and directories named below are in it."""

CHECKPOINT_FILE = "checkpoint"
CLEAN_FILE = "clean"
COUNTS_FILE = "delivery-counts"
LOG_DIRECTORY = "log"
QUEUES_DIRECTORY = "queues"
QUARANTINE_DIRECTORY = "quarantine"

FIRST_PLACE = place_of(1, FILE_HEADER_BYTES)
"""Where the journal of a new node begins."""

PROGRESS_EVERY = 1000
"""Segments read between two reports of progress."""


class StorageRefused(Exception):
    """The storage cannot be used; the text says why and what to do."""


class RecoveryCounts(NamedTuple):
    """How far recovery is: segments of queues read, and octets of the journal."""

    segments: int
    segments_total: int
    journal_bytes: int
    journal_bytes_total: int

    def percent(self) -> int:
        done = self.segments * SEGMENT_ENTRIES * 24 + self.journal_bytes
        total = self.segments_total * SEGMENT_ENTRIES * 24 + self.journal_bytes_total
        return 100 if not total else 100 * done // total


class Recovery:
    """One recovery; `run` does it. Everything else is the outcome.

    `queues` holds the segments by queue. `place` is that of the last checkpoint, `end` where the
    journal ends, `start` counts this start of the node. `delivered_below` says, after a clean stop,
    from which position on nothing of a queue was delivered; it is None after a crash.
    `delivery_counts` are by queue and position, also of messages that are gone. `damaged`
    counts records, frames and files that could not be used.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        node_id: bytes,
        *,
        report: Callable[[RecoveryCounts], None],
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._node_id = node_id
        self._report = report
        self._log_directory = directory / LOG_DIRECTORY
        self.files: dict[int, StoreFile] = {}
        self.queues: dict[int, dict[int, Segment]] = {}
        self.delivery_counts: dict[int, dict[int, int]] = {}
        self.place = FIRST_PLACE
        self.end = 0
        self.start = 1
        self.last_file_id = 0
        self.delivered_below: dict[int, int] | None = None
        self.damaged = 0
        self.replayed = 0
        self.journal_bytes = 0
        self._segments_done = 0
        self._segments_total = 0
        self._journal_done = 0
        self._journal_total = 0

    def run(self) -> None:
        """Raises `StorageRefused`, `NewerStorage`, OSError."""
        self._refuse_later_formats()
        for name in ("", LOG_DIRECTORY, QUEUES_DIRECTORY, QUARANTINE_DIRECTORY):
            self._filesystem.make_directory(self._directory / name)
        self._read_checkpoint()
        self._find_files()
        self._read_clean()
        self._read_queues()
        self._read_counts()
        if self._index.damaged:
            self._restore_damaged()
        self._replay()
        self._make_durable()
        self._account()
        self._tell()

    def _refuse_later_formats(self) -> None:
        """Raise `NewerStorage`, before anything is changed, if a later version has written a file.

        A node writes the checkpoint before anything else.
        """
        data = read_whole(self._filesystem, self._directory / CHECKPOINT_FILE)
        heads: list[tuple[Callable[[bytes], object], bytes]] = []
        if data is not None:
            heads.append((decode_checkpoint, data))
        for name in self._filesystem.names(self._log_directory):
            file = self._filesystem.open(self._log_directory / name, writable=False)
            try:
                heads.append((decode_file_header, file.read(0, FILE_HEADER_BYTES)))
            finally:
                file.close()
        for decode, head in heads:
            try:
                decode(head)
            except Damaged:
                # Damage is dealt with later.
                continue

    def _tell(self) -> None:
        self._report(
            RecoveryCounts(
                self._segments_done, self._segments_total, self._journal_done, self._journal_total
            )
        )

    # Small files

    def _read_checkpoint(self) -> None:
        data = read_whole(self._filesystem, self._directory / CHECKPOINT_FILE)
        if data is None:
            return
        try:
            node_id, self.place, start = decode_checkpoint(data)
        except Damaged as damage:
            # Everything that is still there is replayed; records that a segment knows are passed
            # over.
            log_event(
                log,
                logging.ERROR,
                "checkpoint_damaged",
                reason=damage,
                action="replaying_the_whole_journal",
            )
            self.damaged += 1
            return
        if node_id != self._node_id:
            raise StorageRefused(
                f"{self._directory} belongs to node {node_id.hex()}, not to {self._node_id.hex()};"
                " put the directory back that belongs to this node"
            )
        self.start = start + 1
        self.last_file_id = file_of(self.place) - 1

    def _read_clean(self) -> None:
        self.end = place_of(self.last_file_id + 1, FILE_HEADER_BYTES)
        data = read_whole(self._filesystem, self._directory / CLEAN_FILE)
        if data is None:
            return
        try:
            node_id, end, delivered_below = decode_clean(data)
        except Damaged as damage:
            log_event(
                log,
                logging.WARNING,
                "clean_stop_damaged",
                reason=damage,
                action="as_after_a_crash",
            )
            return
        if node_id != self._node_id:
            return
        if end > self.end:
            # The last files of the log are missing.
            self.last_file_id = file_of(end) - 1
            self.end = end
        if end == self.end:
            self.delivered_below = delivered_below

    def _read_counts(self) -> None:
        """Read the delivery counts that the last checkpoint has kept."""
        data = read_whole(self._filesystem, self._directory / COUNTS_FILE)
        if data is None:
            return
        try:
            node_id, counts = decode_counts(data)
        except Damaged as damage:
            # The counts in the journal still hold.
            log_event(log, logging.ERROR, "delivery_counts_damaged", reason=damage)
            self.damaged += 1
            return
        if node_id == self._node_id:
            for queue_id, position, count in counts:
                self._index.count_returns(queue_id, [(position, count)])

    # The log

    def _find_files(self) -> None:
        """Find the newest generation of every file; others are leftovers of a crash."""
        found = find_log_files(self._filesystem.names(self._log_directory))
        for name in found.leftovers:
            self._filesystem.remove(self._log_directory / name)
        for file_id, generation in found.newest.items():
            self._open_file(file_id, generation, last=file_id == max(found.newest))
        self.last_file_id = max([self.last_file_id, *self.files])

    def _has_batch(self, opened: File, file_id: int) -> bool:
        scan = Scan(opened, file_id, FILE_HEADER_BYTES, complete=False)
        return any(True for _ in scan.records())

    def _open_file(self, file_id: int, generation: int, *, last: bool) -> None:
        """Take a file into account.

        The header and the first batch are synced together: in the last file, a header that is
        not whole means that they were not, unless the batch is there to be used.
        """
        path = self._log_directory / file_name(file_id, generation)
        opened = self._filesystem.open(path)
        try:
            stored = StoreFile(file_id, generation, opened.size())
            try:
                header = decode_file_header(opened.read(0, FILE_HEADER_BYTES))
            except Damaged as damage:
                if last and not self._has_batch(opened, file_id):
                    log_event(
                        log,
                        logging.WARNING,
                        "log_file_removed",
                        path=path,
                        reason="it was never finished",
                    )
                    self._filesystem.remove(path)
                    return
                self.damaged += not last
                log_event(
                    log,
                    logging.ERROR,
                    "log_file_damaged",
                    path=path,
                    reason=damage,
                    action="mending",
                )
                header = FileHeader(self._node_id, file_id, generation, self.start - 1, 0)
                opened.write(0, encode_file_header(header))
            if header.node_id != self._node_id:
                raise StorageRefused(
                    f"{path} was written by node {header.node_id.hex()}, not by"
                    f" {self._node_id.hex()}; put the file back where it belongs"
                )
            self.start = max(self.start, header.start + 1)
            if header.combined:
                self._read_survivors(opened, stored, path)
            self.files[file_id] = stored
        finally:
            opened.close()

    def _read_survivors(self, opened: File, stored: StoreFile, path: Path) -> None:
        try:
            survivors = read_survivors(opened)
        except Damaged as damage:
            self.damaged += 1
            log_event(log, logging.ERROR, "log_file_damaged", path=path, reason=damage)
        else:
            stored.moved = (survivors.before, survivors.after)

    # Queue indexes

    def _read_queues(self) -> None:
        last = self.files.get(self.last_file_id)
        end = self.end if last is None else place_of(last.file_id, last.size)
        self._index = StoredIndex(
            self._filesystem,
            self._directory / QUEUES_DIRECTORY,
            self.place,
            self._index_harmed,
            journal_end=end,
        )
        self.queues = self._index.queues
        self.delivery_counts = self._index.delivery_counts
        self._segments_total = self._index.find()
        self._index.read(self._segment_read)

    def _restore_damaged(self) -> None:
        """Look through the whole log for the messages of segments that lost entries.

        The log has these messages, but also others that were removed by records which it has no
        more. So messages that are found may have been delivered and acknowledged, but none that was
        not is lost.
        """
        restored = 0
        for _, stored in sorted(self.files.items()):
            path = self._log_directory / stored.name
            opened = self._filesystem.open(path, writable=False)
            try:
                for found in self._whole_records(opened, stored):
                    try:
                        restored += self._index.restore(found)
                    except Damaged as damage:
                        _log_damage(found, damage)
            finally:
                opened.close()
        log_event(
            log,
            logging.WARNING,
            "segments_restored",
            segments=len(self._index.damaged),
            messages=restored,
        )

    def _whole_records(self, opened: File, stored: StoreFile) -> Iterator[FoundRecord]:
        """All whole records of a file, in the order of their places."""
        if stored.moved is None:
            yield from Scan(opened, stored.file_id, FILE_HEADER_BYTES, complete=True).records()
            return
        for before, after, length in zip(*read_survivors(opened), strict=True):
            try:
                record = decode_record(opened.read(after, length), 0, length)
            except Damaged:
                # The damage is reported when the message is read.
                continue
            yield FoundRecord(place_of(stored.file_id, before), length, record)

    def _segment_read(self) -> None:
        self._segments_done += 1
        if self._segments_done % PROGRESS_EVERY == 0:
            self._tell()

    def _index_harmed(self, path: Path, harm: Harm) -> None:
        self.damaged += 1
        log_event(
            log,
            logging.ERROR,
            "segment_damaged",
            path=path,
            offset=harm.offset,
            bytes=harm.size,
            reason=harm.reason,
        )

    # The journal

    def _replay(self) -> None:
        first = file_of(self.place)
        journal = [file_id for file_id in self.files if file_id >= first]
        for file_id in range(first, self.last_file_id + 1):
            if file_id not in self.files:
                self.damaged += 1
                log_event(log, logging.ERROR, "journal_file_missing", file=f"{file_id:08x}")
        self.journal_bytes = self._journal_total = sum(
            self.files[file_id].size for file_id in journal
        )
        for at, file_id in enumerate(journal):
            # After a clean stop nothing is unfinished.
            complete = at < len(journal) - 1 or self.delivered_below is not None
            self._replay_file(self.files[file_id], complete=complete)
            self._journal_done += self.files[file_id].size
            self._tell()
        for queue_id, number in self._index.gone:
            raise StorageRefused(
                f"segment {number:x} of queue {queue_id:016x} went while it was read"
            )

    def _replay_file(self, stored: StoreFile, *, complete: bool) -> None:
        if stored.moved is not None:
            return
        offset = FILE_HEADER_BYTES
        if stored.file_id == file_of(self.place):
            offset = self.place & OFFSET_MASK
        path = self._log_directory / stored.name
        opened = self._filesystem.open(path)
        try:
            scan = Scan(opened, stored.file_id, offset, complete=complete)
            for found in scan.records():
                self._apply(found)
            for harm in scan.harm:
                self._quarantine(opened, stored, harm)
            if scan.torn:
                self._cut(opened, stored, scan)
            elif scan.room:
                opened.truncate(scan.end)
                stored.size = scan.end
        finally:
            opened.close()

    def _make_durable(self) -> None:
        """Sync what was found, as it may never have been: from now on it counts as durable."""
        paths = [
            self._log_directory / stored.name
            for stored in self.files.values()
            if stored.file_id >= file_of(self.place)
        ]
        for segments in self.queues.values():
            paths += [
                self._index.path(segment)
                for segment in segments.values()
                if segment.file_end and segment.flushed_place >= self.place
            ]
        for path, size in self._index.overlong.items():
            self._cut_segment(path, size)
            paths.append(path)
        if paths:
            self._filesystem.sync_files(paths)

    def _cut_segment(self, path: Path, size: int) -> None:
        """Remove what is left of a frame that was not finished: no later frame may prove it."""
        file = self._filesystem.open(path)
        try:
            file.truncate(size)
        finally:
            file.close()

    def _apply(self, found: FoundRecord) -> None:
        self.replayed += 1
        try:
            self._index.apply(found)
        except Damaged as damage:
            self.damaged += 1
            _log_damage(found, damage)

    def _loaded(self, segment: Segment) -> None:
        if not self._index.load(segment):
            raise StorageRefused(f"{self._index.path(segment)} changed while it was read")

    def _quarantine(self, opened: File, stored: StoreFile, harm: Harm) -> None:
        self.damaged += 1
        log_event(
            log,
            logging.ERROR,
            "journal_damaged",
            file=stored.name,
            offset=harm.offset,
            bytes=harm.size,
            reason=harm.reason,
        )
        if harm.size:
            self._keep_aside(opened, stored, harm.offset, harm.size)

    def _cut(self, opened: File, stored: StoreFile, scan: Scan) -> None:
        log_event(
            log,
            logging.WARNING,
            "journal_cut",
            file=stored.name,
            offset=scan.end,
            bytes=scan.torn,
            reason="a batch that was never finished",
        )
        opened.truncate(scan.end)
        opened.sync()
        stored.size = scan.end

    def _keep_aside(self, opened: File, stored: StoreFile, offset: int, size: int) -> None:
        """Keep octets that the node cannot use, for people who look into them."""
        name = f"{stored.file_id:08x}.{stored.generation}.{offset}.octets"
        aside = self._filesystem.create(self._directory / QUARANTINE_DIRECTORY / name)
        try:
            aside.write(0, opened.read(offset, size))
            aside.sync()
        finally:
            aside.close()

    # What is alive

    def _account(self) -> None:
        """Count in each file what the queues need of it."""
        for queue_id in list(self.queues):
            segments = self.queues[queue_id]
            for number in list(segments):
                self._account_segment(segments[number])

    def _account_segment(self, segment: Segment) -> None:
        unloaded = segment.columns is None
        if unloaded and segment.has_shared:
            self._loaded(segment)
        if segment.columns is not None:
            segment.sum_up()
        for file_id, (count, octets) in segment.by_file.items():
            stored = self.files.get(file_id)
            if stored is not None:
                stored.live_count += count
                stored.live_bytes += octets
                stored.segments.add(segment)
        if segment.has_shared:
            self._account_shared(segment)
        if unloaded and segment.columns is not None:
            segment.unload()

    def _account_shared(self, segment: Segment) -> None:
        columns = segment.columns
        assert columns is not None
        for at in [at for at, place in enumerate(columns.places) if place & SHARED]:
            place, length = columns.places[at], columns.lengths[at]
            stored = self.files.get(file_of(place))
            if stored is None:
                continue
            offset = place & OFFSET_MASK
            references = stored.references.get(offset, 0)
            stored.references[offset] = references + 1
            stored.segments.add(segment)
            if not references:
                stored.live_count += 1
                stored.live_bytes += length


def _log_damage(found: FoundRecord, damage: Damaged) -> None:
    log_event(log, logging.ERROR, "journal_damaged", place=f"{found.place:x}", reason=damage)
