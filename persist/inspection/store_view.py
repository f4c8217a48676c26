"""One look at a message storage, from outside: what is alive, and where. Never writes.

The node may work meanwhile. The checkpoint is read first, and the files of the journal since are
opened: being open they stay readable. If one of them is gone a later checkpoint was written, and
everything begins again. What goes or comes afterwards the segments know themselves, which are
read then (`stored_index.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warren.persist.disk.filesystem import File, FileSystem, read_whole
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    OFFSET_MASK,
    PUBLISH,
    SHARED,
    SHARED_MESSAGE,
    Checkpoint,
    Damaged,
    Harm,
    Record,
    Survivors,
    decode_checkpoint,
    decode_clean,
    decode_file_header,
    decode_record,
    file_of,
    place_of,
)
from warren.persist.layout.segment import Columns, IndexEntry
from warren.persist.log.log_files import find_log_files, read_survivors
from warren.persist.log.log_reader import Scan
from warren.persist.log.log_writer import file_name
from warren.persist.recovery.recovery import (
    CHECKPOINT_FILE,
    CLEAN_FILE,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
)
from warren.persist.recovery.stored_index import NO_END, StoredIndex, every_queue

LOOKS_MAX = 100
"""Between two checkpoints a node writes 64 MiB; opening some files is faster."""

OPEN_FILES_MAX = 16
READ_BYTES = 1 << 16
"""Octets that are read at once: neighbours in a queue are mostly neighbours in a file."""

Harmed = Callable[[Path, Harm], None]


class StoreView:
    """The contents of a storage, as its `directory` says now.

    `files` are the newest generations by number. `stopped_clean`: the node ended its work in
    order and did not start again, so nothing can be unfinished. `delivered_below`: the positions
    from which on nothing of a queue was delivered, as the next start will find them; None if it
    will find that the node has crashed. Queues of which `only` says no are passed over. Without
    `totals`, segments are read when their entries are asked for.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        node_id: bytes,
        harmed: Harmed,
        *,
        only: Callable[[int], bool] = every_queue,
        totals: bool = True,
        new_columns: Callable[[], Columns] = Columns,
    ) -> None:
        """Raises `NewerStorage`, OSError."""
        self.checkpoint: Checkpoint | None = None
        self.files: dict[int, int] = {}
        self.delivered_below: dict[int, int] | None = None
        self._filesystem = filesystem
        self._directory = directory
        self._log_directory = directory / LOG_DIRECTORY
        self._node_id = node_id
        self._harmed = harmed
        journal = self._open_journal()
        try:
            self.stopped_clean = self._read_clean()
            end = place_of(self.last_file_id, self.files.get(self.last_file_id, 0))
            self.index = StoredIndex(
                filesystem,
                directory / QUEUES_DIRECTORY,
                self.place,
                harmed,
                journal_end=end if self.stopped_clean else NO_END,
                only=only,
                new_columns=new_columns,
            )
            self.index.find()
            if totals:
                self.index.read()
            for at, (file_id, file) in enumerate(journal):
                complete = at < len(journal) - 1 or self.stopped_clean
                self._replay(file_id, file, complete=complete)
            if totals:
                self._sum_up()
        finally:
            for _, file in journal:
                file.close()

    @property
    def place(self) -> int:
        """The place from which on the journal is not in the segments."""
        return 0 if self.checkpoint is None else self.checkpoint.place

    @property
    def last_file_id(self) -> int:
        return max(self.files, default=0)

    def _sum_up(self) -> None:
        """Find the totals of the segments that the journal changed."""
        for segments in self.index.queues.values():
            for segment in segments.values():
                if segment.columns is not None:
                    segment.sum_up()

    # The checkpoint and the journal

    def _open_journal(self) -> list[tuple[int, File]]:
        """The files of the journal since the checkpoint, in order."""
        for _ in range(LOOKS_MAX):
            data = self._read_checkpoint()
            names = self._filesystem.names(self._log_directory)
            self.files = find_log_files(names).newest
            opened = self._try_open(file_of(self.place))
            if opened is not None and (
                not self._missing_files() or self._read_checkpoint() == data
            ):
                self._report_checkpoint(data)
                return opened
            for _, file in opened or []:
                file.close()
        raise OSError(f"{self._directory} changes faster than it can be looked at")

    def _read_checkpoint(self) -> bytes | None:
        data = read_whole(self._filesystem, self._directory / CHECKPOINT_FILE)
        try:
            self.checkpoint = None if data is None else decode_checkpoint(data)
        except Damaged:
            self.checkpoint = None
        return data

    def _report_checkpoint(self, data: bytes | None) -> None:
        path = self._directory / CHECKPOINT_FILE
        if data is not None:
            try:
                decode_checkpoint(data)
            except Damaged as damage:
                self._harmed(path, Harm(0, len(data), str(damage)))
                return
        if not file_of(self.place) and self.files and min(self.files) > 1:
            self._harmed(path, Harm(0, 0, "log files are gone that no checkpoint is behind"))
        for file_id in self._missing_files():
            path = self._log_directory / file_name(file_id, 0)
            self._harmed(path, Harm(0, 0, "a file of the journal is missing"))

    def _missing_files(self) -> list[int]:
        """Return the numbers of journal files since the checkpoint that are missing."""
        first, offset = file_of(self.place), self.place & OFFSET_MASK
        missing = [at for at in range(first + 1, self.last_file_id) if at not in self.files]
        if first and first not in self.files and offset > FILE_HEADER_BYTES:
            missing.insert(0, first)
        return missing

    def _try_open(self, first: int) -> list[tuple[int, File]] | None:
        opened: list[tuple[int, File]] = []
        for file_id in self.files:
            if file_id >= first:
                path = self.log_path(file_id)
                try:
                    opened.append((file_id, self._filesystem.open(path, writable=False)))
                except FileNotFoundError:
                    for _, file in opened:
                        file.close()
                    return None
        return opened

    def _read_clean(self) -> bool:
        path = self._directory / CLEAN_FILE
        data = read_whole(self._filesystem, path)
        if data is None:
            return False
        try:
            node_id, end, delivered_below = decode_clean(data)
        except Damaged as damage:
            self._harmed(path, Harm(0, len(data), str(damage)))
            return False
        if node_id != self._node_id:
            self._harmed(path, Harm(0, len(data), f"written by node {node_id.hex()}"))
        next_file_id = max(self.last_file_id, file_of(self.place) - 1) + 1
        # As recovery has it: if the last files of the log are missing, the others still count.
        if node_id == self._node_id and file_of(end) >= next_file_id:
            self.delivered_below = delivered_below
        return file_of(end) == next_file_id

    def _replay(self, file_id: int, file: File, *, complete: bool) -> None:
        try:
            header = decode_file_header(file.read(0, FILE_HEADER_BYTES))
        except Damaged:
            header = None
        if header is not None and header.combined:
            return
        offset = FILE_HEADER_BYTES
        if file_id == file_of(self.place):
            offset = self.place & OFFSET_MASK
        self.replay(file, file_id, offset, complete=complete)

    def replay(self, file: File, file_id: int, offset: int, *, complete: bool) -> None:
        """Take the batches of a file of the journal into account, from the offset on.

        `complete`: see `Scan`. Damage in the file is not reported here, except records that are
        whole and make no sense.
        """
        scan = Scan(file, file_id, offset, complete=complete)
        for found in scan.records():
            try:
                self.index.apply(found)
            except Damaged as damage:
                self._harmed(
                    self.log_path(file_id),
                    Harm(found.place & OFFSET_MASK, found.length, str(damage)),
                )

    def log_path(self, file_id: int) -> Path:
        """The path of the log file, in the generation that was looked at."""
        return self._log_directory / file_name(file_id, self.files[file_id])


class Gone(Damaged):
    """The log file with the record is gone."""


class OpenLog(NamedTuple):
    """A log file open for reading; `survivors` when it was written anew."""

    name: str
    file: File
    survivors: Survivors | None


class RecordReader:
    """Finds the records that index entries lead to."""

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory / LOG_DIRECTORY
        self._open: OrderedDict[int, OpenLog] = OrderedDict()
        self._newest: dict[int, int] = {}
        self._window = (-1, 0, b"")

    def close(self) -> None:
        for opened in self._open.values():
            opened.file.close()
        self._open.clear()

    def locate(self, place: int) -> tuple[str, int]:
        """The name of the file a place is in, and the offset there. Raises `Damaged`, OSError."""
        opened = self._log(file_of(place))
        return opened.name, _offset_in(opened, place & OFFSET_MASK)

    def read(self, queue_id: int, entry: IndexEntry) -> Record:
        """The record of an entry of that queue. Raises `Damaged`, OSError."""
        file_id = file_of(entry.place)
        opened = self._log(file_id)
        offset = _offset_in(opened, entry.place & OFFSET_MASK)
        record = self._read(opened.file, file_id, offset, entry.length)
        reason = _mismatch(record, queue_id, entry)
        if reason:
            raise Damaged(reason)
        return record

    def _read(self, file: File, file_id: int, offset: int, length: int) -> Record:
        window_id, start, data = self._window
        if window_id != file_id or not start <= offset <= start + len(data) - length:
            start, data = offset, file.read(offset, max(length, READ_BYTES))
            self._window = (file_id, start, data)
        return decode_record(data, offset - start, length)

    def _log(self, file_id: int) -> OpenLog:
        opened = self._open.get(file_id)
        if opened is None:
            opened = self._open[file_id] = self._open_log(file_id)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].file.close()
        return opened

    def _open_log(self, file_id: int) -> OpenLog:
        for attempt in range(2):
            generation = self._newest.get(file_id)
            if generation is None and not attempt:
                self._look()
                generation = self._newest.get(file_id)
            if generation is None:
                break
            name = file_name(file_id, generation)
            try:
                file = self._filesystem.open(self._directory / name, writable=False)
            except FileNotFoundError:
                self._look()
                continue
            return OpenLog(name, file, self._survivors(file))
        raise Gone(f"log file {file_id:08x} is gone")

    def _look(self) -> None:
        self._newest = find_log_files(self._filesystem.names(self._directory)).newest

    def _survivors(self, file: File) -> Survivors | None:
        """The table of a combined file; a damaged header does not keep from reading records."""
        try:
            if decode_file_header(file.read(0, FILE_HEADER_BYTES)).combined:
                return read_survivors(file)
        except Damaged:
            return None
        return None


def _offset_in(opened: OpenLog, offset: int) -> int:
    survivors = opened.survivors
    if survivors is None:
        return offset
    at = bisect_left(survivors.before, offset)
    if at == len(survivors.before) or survivors.before[at] != offset:
        raise Damaged(f"no record that was at {offset} in a file written anew")
    return survivors.after[at]


def _mismatch(record: Record, queue_id: int, entry: IndexEntry) -> str:
    """How a whole record contradicts the entry that leads to it; an empty text when it does not."""
    if len(record.payload) != entry.size:
        return f"a body of {len(record.payload)} octets where one of {entry.size} was entered"
    if entry.place & SHARED:
        wanted, found = (SHARED_MESSAGE, 0, 0), (record.type, record.queue, record.position)
    else:
        wanted = (PUBLISH, queue_id, entry.position)
        found = (record.type, record.queue, record.position)
    if found != wanted:
        return f"record (type, queue, position) {found} where {wanted} was entered"
    return ""
