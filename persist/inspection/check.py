"""Looks for damage in a data directory, of a node that stands still or of one that works.

Writes nothing and takes no lock. Everything is read: each record, table, footer and frame, and the
record every live index entry leads to. What was paged out is not looked at: a start empties it.

Beside a node that works, files go and come between two reads, and an index may be seen before
the removal that emptied a file. So what looks damaged is looked at again, from the beginning,
after a pause: what is seen every time is damage. Files go only after what made them needless is
in the journal or about to be; no such thing is seen twice.

Memory holds one file, one segment, the segments the journal touched since the checkpoint, and
what looks damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias
from zlib import crc32

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Key
from warren.persist.definitions.database import DamagedMetadata
from warren.persist.definitions.definitions_copy import (
    definitions_directory,
    read_definitions,
    read_deleted_queues,
)
from warren.persist.definitions.second_copy import FILE as COPY_FILE
from warren.persist.definitions.second_copy import read_copy
from warren.persist.disk.cluster_file import read_known_cluster
from warren.persist.disk.data_directory import NotADataDirectory, read_identity
from warren.persist.disk.filesystem import File, FileSystem, read_whole
from warren.persist.inspection.queue_levels import QueueLevels, definition_id, read_levels
from warren.persist.inspection.store_view import Gone, RecordReader, StoreView
from warren.persist.layout.envelopes import decode_envelope
from warren.persist.layout.format import (
    ENQUEUE,
    FILE_HEADER_BYTES,
    FOOTER_BYTES,
    OFFSET_MASK,
    PUBLISH,
    RECORD,
    RECORD_BYTES,
    SEGMENT_ENTRIES,
    SEGMENT_HEADER_BYTES,
    Checkpoint,
    Damaged,
    FileHeader,
    Harm,
    Record,
    aligned,
    decode_counts,
    decode_file_header,
    decode_footer,
    decode_record,
    file_of,
    place_of,
)
from warren.persist.layout.segment import IndexEntry, Segment, segment_name
from warren.persist.log.log_files import find_log_files, read_survivors
from warren.persist.log.log_reader import Scan, is_room
from warren.persist.log.log_writer import file_name
from warren.persist.recovery.recovery import (
    CHECKPOINT_FILE,
    COUNTS_FILE,
    LOG_DIRECTORY,
    QUARANTINE_DIRECTORY,
    STORE_DIRECTORY,
)

PAUSES_S = (0.2, 0.5, 1.0)
"""Pauses before apparent damage is looked at again. A removal is in the journal within 25 ms and
a sync, a deleted queue's files go after a commit of definitions."""

SUSPECTS_MAX = 10_000
"""Findings kept; with more damage than that, it is not the list that counts."""

SHARED_KEPT_MAX = 100_000
"""Shared records known to be whole; of more, some are read again for each queue."""

CRC_READ_BYTES = 1 << 20

Unit: TypeAlias = tuple[int, int] | int | None
"""A part of the directory that is looked at at once: a segment by queue and number, a log file, or
the rest."""


class Finding(NamedTuple):
    """Damage in `file`, relative to the data directory, at `offset`.

    `queue` and `position` name the message it costs, as far as known; `messages` how many there
    are with the same cause from that position on.
    """

    file: str
    offset: int
    reason: str
    queue: int | None = None
    position: int | None = None
    messages: int = 1


class QueueTotals(NamedTuple):
    """The totals of a queue, with all its levels.

    `vhost` and `name` are None when it has no definition. `deleted`: it is written down that the
    queue was deleted. `retained` counts messages that were acknowledged, which are not among the
    others.
    """

    queue: int
    vhost: str | None
    name: str | None
    messages: int
    body_bytes: int
    deleted: bool = False
    retained: int = 0


class Report(NamedTuple):
    """The findings of a check. `unfinished`: octets at the end of the log that a start would
    cut."""

    node_id: str
    checkpoint: Checkpoint | None
    stopped_clean: bool
    log_files: int
    records: int
    octets: int
    segments: int
    unfinished: int
    quarantined: int
    queues: list[QueueTotals]
    damage: list[Finding]


def check(
    filesystem: FileSystem, data_directory: Path, *, pause: Callable[[float], None]
) -> Report:
    """Check a data directory. Raises `DataDirectoryRefused`, `NewerStorage`, OSError."""
    return Check(filesystem, data_directory, pause).run()


def open_store(data_directory: Path) -> bytes:
    """The id of the node whose data directory this is; raises as `check` does."""
    if not data_directory.is_dir():
        raise NotADataDirectory(f"{data_directory} is not a directory")
    node_id = read_identity(data_directory)
    if node_id is None:
        raise NotADataDirectory(f"{data_directory} is empty: no node has used it")
    if not (data_directory / STORE_DIRECTORY).is_dir():
        raise NotADataDirectory(f"{data_directory} has no directory {STORE_DIRECTORY}")
    return bytes.fromhex(node_id)


def queue_names(
    data_directory: Path,
    pause: Callable[[float], None],
    damaged: Callable[[DamagedMetadata], None] | None = None,
) -> dict[int, Key]:
    """The virtual host and name of every queue that has a definition, by its id in this storage.

    Raises `DataDirectoryRefused`, OSError; `damaged` as for `read_definitions`.
    """
    known = read_known_cluster(data_directory)
    node = "" if known is None else known.node
    names = {}
    for stored in read_definitions(data_directory, "queue", pause=pause, damaged=damaged):
        assert isinstance(stored.record, QueueRecord)
        names[stored.record.storage_id(node)] = stored.key[1:]
    return names


class Check:
    """One check of one directory."""

    def __init__(
        self, filesystem: FileSystem, data_directory: Path, pause: Callable[[float], None]
    ) -> None:
        self._filesystem = filesystem
        self._data_directory = data_directory
        self._store = data_directory / STORE_DIRECTORY
        self._pause = pause
        self._node_id = b""
        self._view: StoreView
        self._names: dict[int, Key] = {}
        self._levels = QueueLevels()
        self._deleted: set[int] = set()
        self._suspects: dict[tuple[object, ...], tuple[Unit, Finding]] = {}
        self._harmed_at: set[tuple[str, int]] = set()
        self._lacking: set[Segment] = set()
        self._unit: Unit = None
        self._records = 0
        self._octets = 0
        self._unfinished = 0

    def run(self) -> Report:
        self._node_id = open_store(self._data_directory)
        self._look(None)
        report = self._report()
        suspects = self._suspects
        for pause_s in PAUSES_S:
            if not suspects:
                break
            self._pause(pause_s)
            self._look({unit for unit, _ in suspects.values()})
            suspects = {key: at for key, at in self._suspects.items() if key in suspects}
        damage = [finding for _, finding in suspects.values()]
        damage.sort(key=lambda at: (at.file, at.offset, at.queue or 0, at.position or 0))
        return report._replace(damage=damage)

    def _report(self) -> Report:
        view = self._view
        return Report(
            self._node_id.hex(),
            view.checkpoint,
            view.stopped_clean,
            len(view.files),
            self._records,
            self._octets,
            sum(map(len, view.index.queues.values())),
            self._unfinished,
            len(self._filesystem.names(self._store / QUARANTINE_DIRECTORY)),
            self._totals(),
            [],
        )

    def _totals(self) -> list[QueueTotals]:
        levels: dict[int, list[Segment]] = {}
        retained: Counter[int] = Counter()
        for queue_id, segments in self._view.index.queues.items():
            if self._levels.is_retained(queue_id):
                live = [segment.live for segment in segments.values()]
                retained[self._levels.queue_of(queue_id)] = sum(live)
            elif not self._levels.is_hidden(queue_id):
                levels.setdefault(definition_id(queue_id), []).extend(segments.values())
        totals = []
        for queue_id in sorted(self._names.keys() | levels.keys()):
            of_queue = levels.get(queue_id, ())
            messages = sum(segment.live for segment in of_queue)
            body_bytes = sum(segment.live_bytes for segment in of_queue)
            vhost, name = self._names.get(queue_id, (None, None))
            if name is not None or messages:
                deleted = name is None and queue_id in self._deleted
                kept = retained[queue_id]
                totals.append(
                    QueueTotals(queue_id, vhost, name, messages, body_bytes, deleted, kept)
                )
        return totals

    # One look

    def _look(self, units: set[Unit] | None) -> None:
        """Look at everything, or at these units; afterwards `_suspects` has apparent damage."""
        self._suspects = {}
        self._harmed_at = set()
        self._lacking = set()
        self._records = self._octets = self._unfinished = 0
        self._unit = None
        self._view = StoreView(self._filesystem, self._store, self._node_id, self._harmed)
        self._read_names()
        self._check_copy()
        self._check_checkpoint()
        self._check_counts()
        self._check_entries(units)
        for file_id, generation in self._view.files.items():
            if units is None or file_id in units:
                self._unit = file_id
                self._check_log_file(file_id, generation)

    def _harmed(self, path: Path, harm: Harm) -> None:
        self._suspect(path, harm.offset, harm.reason)

    def _suspect(
        self,
        path: Path,
        offset: int,
        reason: str,
        queue: int | None = None,
        position: int | None = None,
        messages: int = 1,
    ) -> None:
        if len(self._suspects) >= SUSPECTS_MAX:
            return
        file = self._relative(path)
        finding = Finding(file, offset, reason, queue, position, messages)
        # All messages of a file are fewer when some were removed meanwhile, so damage at the
        # beginning of a file has no position in its key.
        key = (file, offset, reason, queue, position if offset else None)
        self._harmed_at.add((file, offset))
        self._suspects[key] = (self._unit, finding)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._data_directory))

    def _read_names(self) -> None:
        path = definitions_directory(self._data_directory) / "data.mdb"
        try:
            self._deleted = read_deleted_queues(self._data_directory, pause=self._pause)
            self._names = queue_names(
                self._data_directory,
                self._pause,
                lambda error: self._suspect(path, 0, str(error)),
            )
            self._levels = read_levels(self._data_directory, pause=self._pause)
        except (DamagedMetadata, FileNotFoundError) as error:
            self._names = {}
            self._suspect(path, 0, f"definitions: {error}")

    def _check_copy(self) -> None:
        copy = read_copy(self._data_directory, self._node_id)
        if copy is not None and copy.damage is not None:
            self._suspect(self._data_directory / COPY_FILE, 0, copy.damage)

    def _check_checkpoint(self) -> None:
        checkpoint = self._view.checkpoint
        if checkpoint is not None and checkpoint.node_id != self._node_id:
            path = self._store / CHECKPOINT_FILE
            self._suspect(path, 0, f"written by node {checkpoint.node_id.hex()}")

    def _check_counts(self) -> None:
        path = self._store / COUNTS_FILE
        data = read_whole(self._filesystem, path)
        if data is None:
            return
        try:
            node_id, _ = decode_counts(data)
        except Damaged as damage:
            self._suspect(path, 0, str(damage))
        else:
            if node_id != self._node_id:
                self._suspect(path, 0, f"written by node {node_id.hex()}")

    # What index entries lead to

    def _check_entries(self, units: set[Unit] | None) -> None:
        reader = RecordReader(self._filesystem, self._store)
        shared: set[tuple[int, int, int]] = set()
        try:
            for queue_id, segments in self._view.index.queues.items():
                if self._was_deleted(queue_id):
                    continue
                for number, segment in list(segments.items()):
                    if units is None or (queue_id, number) in units:
                        self._unit = (queue_id, number)
                        self._check_segment(segment, reader, shared)
        finally:
            reader.close()
            self._unit = None

    def _was_deleted(self, queue_id: int) -> bool:
        """Whether the queue was deleted, so that the next start removes its messages."""
        queue_id = self._levels.queue_of(queue_id)
        return queue_id in self._deleted and queue_id not in self._names

    def _check_segment(
        self, segment: Segment, reader: RecordReader, shared: set[tuple[int, int, int]]
    ) -> None:
        unloaded = segment.columns is None
        if not self._view.index.load(segment):
            return
        gone: dict[int, list[int]] = {}
        for entry in segment_entries(segment):
            # A shared record was whole when another queue led to it.
            key = (entry.place, entry.length, entry.size)
            if entry.place & 1 and key in shared:
                continue
            try:
                record = reader.read(segment.queue_id, entry)
                decode_envelope(record.envelope, True)
                if entry.place & 1 and len(shared) < SHARED_KEPT_MAX:
                    shared.add(key)
            except Gone:
                gone.setdefault(file_of(entry.place), []).append(entry.position)
            except Damaged as damage:
                self._lost(segment.queue_id, entry, reader, damage)
        for file_id, positions in gone.items():
            path = self._store / LOG_DIRECTORY / file_name(file_id, 0)
            reason = f"gone, with messages of segment {segment.number:x}"
            self._suspect(path, 0, reason, segment.queue_id, positions[0], len(positions))
        if unloaded:
            segment.unload()

    def _lost(
        self, queue_id: int, entry: IndexEntry, reader: RecordReader, damage: Damaged
    ) -> None:
        try:
            name, offset = reader.locate(entry.place)
        except Damaged:
            name = file_name(file_of(entry.place), 0)
            offset = entry.place & OFFSET_MASK
        path = self._store / LOG_DIRECTORY / name
        self._suspect(path, offset, str(damage), queue_id, entry.position)

    # The log

    def _check_log_file(self, file_id: int, generation: int) -> None:
        path = self._store / LOG_DIRECTORY / file_name(file_id, generation)
        opened = self._open_newest(path, file_id)
        if opened is None:
            return
        path, file = opened
        try:
            self._octets += file.size()
            self._check_file(path, file, file_id)
        finally:
            file.close()

    def _open_newest(self, path: Path, file_id: int) -> tuple[Path, File] | None:
        """Open a log file, or its newest generation if it went since: then it was written anew.
        None if it is not needed any more."""
        try:
            return path, self._filesystem.open(path, writable=False)
        except FileNotFoundError:
            newest = find_log_files(self._filesystem.names(path.parent)).newest
        if file_id not in newest:
            return None
        path = path.with_name(file_name(file_id, newest[file_id]))
        try:
            return path, self._filesystem.open(path, writable=False)
        except FileNotFoundError:
            return None

    def _check_file(self, path: Path, file: File, file_id: int) -> None:
        last = file_id == self._view.last_file_id
        try:
            header = decode_file_header(file.read(0, FILE_HEADER_BYTES))
        except Damaged as damage:
            # A file that was never begun holds nothing, and no later start removes it.
            if file.size() > FILE_HEADER_BYTES:
                self._suspect(path, 0, str(damage))
                self._check_batches(path, file, file_id, last=last)
            return
        self._check_header(path, file_id, header)
        if header.combined:
            self._check_combined(path, file, file_id)
        else:
            self._check_batches(path, file, file_id, last=last)

    def _check_header(self, path: Path, file_id: int, header: FileHeader) -> None:
        if header.node_id != self._node_id:
            self._suspect(path, 0, f"written by node {header.node_id.hex()}")
        if path.name != file_name(header.file_id, header.generation) or header.file_id != file_id:
            says = file_name(header.file_id, header.generation)
            self._suspect(path, 0, f"its header says it is {says}")

    def _check_batches(self, path: Path, file: File, file_id: int, *, last: bool) -> None:
        scan = Scan(file, file_id, FILE_HEADER_BYTES, complete=not last or self._view.stopped_clean)
        for found in scan.records():
            self._records += 1
            self._check_known(found.place, found.record)
        for harm in scan.harm:
            self._suspect_record(path, file, harm)
        if scan.torn and scan.end < self._journal_offset(file_id):
            self._suspect(path, scan.end, "the file is not whole before the checkpoint")
        elif scan.torn:
            self._unfinished += scan.torn
        if scan.sealed and not scan.harm:
            self._check_footer(path, file, scan)

    def _journal_offset(self, file_id: int) -> int:
        """Return up to where the file was whole when the checkpoint was written."""
        place = self._view.place
        return place & OFFSET_MASK if file_id == file_of(place) else 0

    def _suspect_record(self, path: Path, file: File, harm: Harm) -> None:
        """Damage in a batch, with the message it costs where that can be told."""
        if (self._relative(path), harm.offset) in self._harmed_at:
            return
        queue, position = self._named_in(file.read(harm.offset, RECORD_BYTES))
        self._suspect(path, harm.offset, harm.reason, queue, position)

    def _named_in(self, head: bytes) -> tuple[int | None, int | None]:
        """Queue and position in the head of a damaged record, if there is such a queue."""
        if len(head) == RECORD_BYTES:
            _, _, kind, _, _, _, queue, position, _, _ = RECORD.unpack(head)
            if kind in (PUBLISH, ENQUEUE) and self._levels.queue_of(queue) in self._names:
                return queue, position
        return None, None

    def _check_known(self, place: int, record: Record) -> None:
        """Suspect a segment that does not know a message from before the checkpoint."""
        if place >= self._view.place or record.type not in (PUBLISH, ENQUEUE):
            return
        number = record.position // SEGMENT_ENTRIES
        segment = self._view.index.queues.get(record.queue, {}).get(number)
        if segment is None or segment.flushed_place > place:
            return
        if self._was_deleted(record.queue):
            return
        # A segment without a file may have been empty once, and begun again since.
        has_file = segment.file_end > 0 or segment.generation > 0
        if not has_file or segment in self._lacking:
            return
        self._lacking.add(segment)
        path = self._view.index.path(segment)
        if not segment.file_end:
            # The file could not be read at all; the next flush would begin another generation.
            path = path.with_name(segment_name(segment.number, segment.generation - 1))
        offset = max(segment.file_end, SEGMENT_HEADER_BYTES)
        reason = "ends before entries that the checkpoint says it has"
        self._suspect(path, offset, reason, record.queue, record.position)

    def _check_footer(self, path: Path, file: File, scan: Scan) -> None:
        footer = decode_footer(file.read(scan.end, FOOTER_BYTES))
        if footer is None:
            return
        if footer.batches != scan.batches:
            reason = f"{scan.batches} batches where the footer counts {footer.batches}"
            self._suspect(path, scan.end, reason)
        behind = scan.end + FOOTER_BYTES
        if not is_room(file, behind, file.size() - behind):
            self._suspect(path, scan.end + FOOTER_BYTES, "octets behind the footer")
        crc = 0
        for offset in range(0, scan.end, CRC_READ_BYTES):
            crc = crc32(file.read(offset, min(CRC_READ_BYTES, scan.end - offset)), crc)
        if crc != footer.crc and (self._relative(path), 0) not in self._harmed_at:
            self._suspect(path, 0, "checksum of the whole file")

    def _check_combined(self, path: Path, file: File, file_id: int) -> None:
        try:
            survivors = read_survivors(file)
        except Damaged as damage:
            self._suspect(path, file.size(), str(damage))
            return
        end = FILE_HEADER_BYTES
        earlier = 0
        for before, after, length in zip(*survivors, strict=True):
            if before <= earlier or after < end:
                self._suspect(path, after, f"the record that was at {before} is out of order")
            earlier, end = before, after + aligned(length)
            self._records += 1
            try:
                record = decode_record(file.read(after, length), 0, length)
            except Damaged as damage:
                self._suspect_record(path, file, Harm(after, length, str(damage)))
            else:
                self._check_known(place_of(file_id, before), record)


def segment_entries(segment: Segment) -> Iterator[IndexEntry]:
    """The live entries of a segment in memory."""
    columns = segment.columns
    assert columns is not None
    for at in columns.live(0, SEGMENT_ENTRIES):
        yield IndexEntry(
            segment.start + at,
            columns.places[at],
            columns.expires[at],
            columns.lengths[at],
            columns.sizes[at],
        )
