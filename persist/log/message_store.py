"""Where messages are on disk: files of records, found by place, and how much of each is alive.

There are two stores: the persistent one, whose newest files are the journal, and the transient
one, which holds what was paged out and is emptied at every start. A record never moves as far as
others can tell: its place stays its name when its file is written anew without what is dead
(`combine.py`), and so a queue index is never touched for it.

A record belongs to one queue, or is shared: then its references are counted, and it dies with the
last. The store counts for each file how much of it is alive; a file with nothing alive goes, once
its part in the journal is over. Which records those are the queue indexes know.

All state is touched on the loop. Files are read here; `log_writer.py` writes them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakSet

from warren.persist.disk.filesystem import File
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    FOOTER_BYTES,
    OFFSET_MASK,
    TRANSIENT,
    Damaged,
    FileHeader,
    file_of,
    place_of,
)
from warren.persist.layout.segment import Segment
from warren.persist.log.log_writer import FilePiece, file_name
from warren.persist.log.store_context import StoreContext

WHOLE_FILE = OFFSET_MASK + 1
"""Behind every offset in a file."""


class StoreFile:
    """One file of a store.

    `size` is the size on disk, `live_bytes` that of the live records, which some queue needs.
    `references` counts the queues of each shared record that has more than one. `moved` has, for a
    file written anew, the former and the present offsets of records. `segments` are the index
    segments that have, or had, entries in the file, as long as their indexes keep them. `unwritten`
    are pieces on their way to the disk. `late` are offsets and lengths of records that further
    queues came to need while the file was being written anew.
    """

    __slots__ = (
        "file_id",
        "generation",
        "late",
        "live_bytes",
        "live_count",
        "moved",
        "references",
        "sealed",
        "segments",
        "size",
        "unwritten",
    )

    def __init__(self, file_id: int, generation: int = 0, size: int = FILE_HEADER_BYTES) -> None:
        self.file_id = file_id
        self.generation = generation
        self.size = size
        self.live_bytes = 0
        self.live_count = 0
        self.sealed = False
        self.references: dict[int, int] = {}
        self.moved: tuple[array[int], array[int]] | None = None
        self.segments: WeakSet[Segment] = WeakSet()
        self.unwritten: list[tuple[int, bytes]] = []
        self.late: dict[int, int] | None = None

    @property
    def name(self) -> str:
        return file_name(self.file_id, self.generation)

    def refer_late(self, place: int, length: int) -> None:
        """Note that another queue needs a shared record, while the file is written anew."""
        if self.late is not None:
            self.late[place & OFFSET_MASK] = length

    def __repr__(self) -> str:
        return f"<file {self.file_id:x}.{self.generation} {self.live_bytes}/{self.size}>"


class MessageStore:
    """The files of one log, and the live records in them.

    `superseded` are files that newer generations have replaced, and that can be removed.
    """

    def __init__(
        self, context: StoreContext, directory: Path, *, start: int, transient: bool
    ) -> None:
        self._open_files_max = context.limits.open_files_max
        self.directory = directory
        self.files: dict[int, StoreFile] = {}
        self.current: StoreFile | None = None
        self.live_bytes = 0
        self.superseded: list[Path] = []
        self._filesystem = context.filesystem
        self._node_id = context.node_id
        self._start = start
        self._first_id = TRANSIENT >> 32 if transient else 0
        self._last_id = self._first_id
        self._file_bytes_max = context.limits.file_bytes_max
        self._now_us = context.now_us
        self._handles: OrderedDict[tuple[int, int], File] = OrderedDict()
        self._dead: set[StoreFile] = set()

    def take_over(self, files: Iterable[StoreFile], last_id: int) -> None:
        """Take over the files found at the start, which are not written to again.

        `last_id` is the highest number that a file ever had.
        """
        self._last_id = last_id
        for file in files:
            file.sealed = True
            self.files[file.file_id] = file
            self.live_bytes += file.live_bytes
            if not file.live_count:
                self._dead.add(file)

    # Writing

    @property
    def next_file_place(self) -> int:
        """The place where the next file begins. The current file is the next one until something is
        written to it."""
        current = self.current
        unused = current is not None and current.size == FILE_HEADER_BYTES
        return place_of(self._last_id + (not unused), FILE_HEADER_BYTES)

    @property
    def end(self) -> int:
        """The place that the next batch gets, unless it begins a file."""
        current = self.current
        if current is None or current.sealed:
            return self.next_file_place
        return place_of(current.file_id, current.size)

    def open_file(self) -> StoreFile:
        """The file for the next octets: a new one if there is none, or it is full."""
        if self.current is None or self.current.sealed:
            self._last_id += 1
            self.current = self.files[self._last_id] = StoreFile(self._last_id)
        return self.current

    def appended(self, file: StoreFile, data: bytes) -> FilePiece:
        """Note octets for the end of the current file; return the piece for the writer."""
        offset = file.size
        file.size += len(data)
        file.unwritten.append((offset, data))
        if file.size >= self._file_bytes_max:
            file.size += FOOTER_BYTES
            file.sealed = True
            if not file.live_count:
                self._dead.add(file)
        header = FileHeader(self._node_id, file.file_id, 0, self._start, self._now_us())
        return FilePiece(header, offset, data, file.sealed)

    def seal(self) -> None:
        """Begin a new file with the next batch."""
        current = self.current
        if current is not None and not current.sealed:
            current.sealed = True
            if not current.live_count:
                self._dead.add(current)

    def written(self, piece: FilePiece, generation: int) -> None:
        """Note that the piece is on disk, in this generation of its file."""
        file = self.files.get(piece.header.file_id)
        if file is None:
            return
        file.unwritten.pop(0)
        if file.generation != generation:
            self.superseded.append(self.path(file))
            self._close(file)
            file.generation = generation

    # Reading

    def read(self, place: int, length: int) -> bytes:
        """Octets of one or more records that were written together.

        Raises `Damaged` when they are gone, OSError when the disk does not give them.
        """
        file = self.files.get(file_of(place))
        if file is None:
            raise Damaged(f"log file {file_of(place):x} is gone")
        offset = place & OFFSET_MASK
        unwritten = file.unwritten
        if unwritten and offset >= unwritten[0][0]:
            for start, data in reversed(unwritten):
                if start <= offset:
                    return data[offset - start : offset - start + length]
        return self._handle(file).read(self.offset_in(file, offset), length)

    def is_on_disk(self, place: int) -> bool:
        """Whether `read` gets the record at this place from the disk, and not from memory."""
        file = self.files.get(file_of(place))
        if file is None or not file.unwritten:
            return True
        return place & OFFSET_MASK < file.unwritten[0][0]

    def offset_in(self, file: StoreFile, offset: int) -> int:
        """The present offset of the record that was written at `offset`. Raises `Damaged`."""
        return offset if file.moved is None else _moved_to(file.moved, offset)

    def contiguous_below(self, file_id: int) -> int:
        """The offset in the file before which all records are on the disk, in the order in which
        they were written and without gaps; 0 if there is none."""
        file = self.files.get(file_id)
        if file is None or file.moved is not None:
            return 0
        return file.unwritten[0][0] if file.unwritten else WHOLE_FILE

    def _handle(self, file: StoreFile) -> File:
        key = (file.file_id, file.generation)
        handle = self._handles.get(key)
        if handle is None:
            path = self.path(file)
            try:
                handle = self._filesystem.open(path, writable=False)
            except FileNotFoundError:
                if not self._filesystem.names(self.directory):
                    # The directory was moved away, or its file system unmounted; it may come back.
                    raise
                raise Damaged(f"{path} is gone") from None
            self._handles[key] = handle
            if len(self._handles) > self._open_files_max:
                self._handles.popitem(last=False)[1].close()
        else:
            self._handles.move_to_end(key)
        return handle

    def path(self, file: StoreFile) -> Path:
        return self.directory / file.name

    # Live records

    def keep(self, file: StoreFile, count: int, size: int) -> None:
        """Count `count` further records, of `size` octets, as live."""
        file.live_count += count
        file.live_bytes += size
        self.live_bytes += size

    def refer(self, place: int, length: int) -> None:
        """Count one more queue that needs a shared record."""
        file = self.files.get(file_of(place))
        if file is None:
            return
        offset = place & OFFSET_MASK
        references = file.references.get(offset, 0)
        file.references[offset] = references + 1
        if not references:
            self.keep(file, 1, length)

    def release(self, place: int, length: int) -> None:
        """An index entry that led to this place was removed: count one queue less."""
        file = self.files.get(file_of(place))
        if file is None:
            return
        if place & 1:
            offset = place & OFFSET_MASK
            references = file.references[offset] - 1
            if references:
                file.references[offset] = references
                return
            del file.references[offset]
        self.drop(file, 1, length)

    def drop(self, file: StoreFile, count: int, size: int) -> None:
        """Count `count` records of one queue, of `size` octets, as dead."""
        file.live_count -= count
        file.live_bytes -= size
        self.live_bytes -= size
        assert file.live_count >= 0 and file.live_bytes >= 0, file
        if not file.live_count and file.sealed:
            self._dead.add(file)

    def dead_before(self, file_id: int) -> list[StoreFile]:
        """The full files below this one that have no live record."""
        return [
            file
            for file in self._dead
            if file.file_id < file_id and not file.live_count and not file.unwritten
        ]

    def forget(self, file: StoreFile) -> Path:
        """Forget a file, and return its path, which is to be removed."""
        self._dead.discard(file)
        del self.files[file.file_id]
        self._close(file)
        return self.path(file)

    def replace(self, file: StoreFile, moved: tuple[array[int], array[int]], size: int) -> Path:
        """The next generation of the file is on disk. Returns the path of the old one."""
        old = self.path(file)
        self._close(file)
        file.generation += 1
        file.moved = moved
        file.size = size
        return old

    def used_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _close(self, file: StoreFile) -> None:
        handle = self._handles.pop((file.file_id, file.generation), None)
        if handle is not None:
            handle.close()


def _moved_to(moved: tuple[array[int], array[int]], offset: int) -> int:
    before, after = moved
    at = bisect_left(before, offset)
    if at == len(before) or before[at] != offset:
        raise Damaged(f"no record that was at {offset} in a file written anew")
    return after[at]
