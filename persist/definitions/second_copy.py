"""A second copy of a node's definitions, in a file of its own, for when LMDB's file is lost.

`definitions.copy` in the data directory is written in the background, some seconds after a change,
and replaced as a whole. It may be behind by these seconds; it is never a mixture of two states.
While definitions cannot be read the file stays as it is: it may be all there is of them.

    header: "WARRENDC", format u16, 6 octets 0, node id (16 octets)
    entry:  octets of the key u32, octets of the value u32, key, value
    end:    FFFFFFFF, CRC-32 of all before, the FFFFFFFF included

Keys and values are those of LMDB (`metadata.py`), with their own checksums. Integers are
little-endian.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from warren.core.definitions.definition_table import DefinitionTable
from warren.core.log_line import log_event
from warren.core.ports import Key, Stored, Timer
from warren.persist.definitions.database import DATA_FILE, DamagedMetadata
from warren.persist.definitions.metadata import DIRECTORY, encode_definition
from warren.persist.disk.cluster_file import read_known_cluster
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.filesystem import FileSystem
from warren.persist.disk.group_commit import CallLater, Job

log = logging.getLogger("warren.storage")

FILE = "definitions.copy"

MAGIC = b"WARRENDC"
FORMAT = 1
HEADER = struct.Struct("<8sH6x16s")
ENTRY = struct.Struct("<II")
CRC = struct.Struct("<I")
END = 0xFFFFFFFF

DELAY_S = 2.0
"""Seconds from a change to the copy: definitions often come many at a time."""

REST = 20
"""The next copy waits so many times as long as the last one took to encode: 5 % of a core."""

SLICE_ENTRIES = 200
SLICE_PAUSE_S = 0.002
"""Definitions that are encoded at once, in less than a millisecond; then the loop has its turn."""


class ReadCopy(NamedTuple):
    """The contents of a copy. `damage` says what is wrong; the entries before it are whole."""

    entries: list[tuple[bytes, bytes]]
    damage: str | None


class SecondCopy:
    """Writes the copy. `run` hands a job to a thread that may take its time."""

    def __init__(
        self,
        table: DefinitionTable,
        filesystem: FileSystem,
        data_directory: Path,
        node_id: bytes,
        *,
        run: Callable[[Job], None],
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        pause: Callable[[float], None] = time.sleep,
        measure: Callable[[], float] = time.thread_time,
    ) -> None:
        self.written = 0
        self._table = table
        self._filesystem = filesystem
        self._path = data_directory / FILE
        self._node_id = node_id
        self._run = run
        self._call_on_loop = call_on_loop
        self._call_later = call_later
        self._pause = pause
        self._measure = measure
        self._timer: Timer | None = None
        self._writing = False
        self._changed = True
        self._took_s = 0.0
        self._failing = False
        self._closed = False
        self._stop_watching = table.watch((), self._note)
        self._wait()

    def stop(self) -> None:
        """Begin no further copy, and end the one that is being written soon."""
        if self._closed:
            return
        self._closed = True
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Write the changes; the thread behind `run` must have ended its jobs."""
        self.stop()
        if self._changed and not self._table.unreadable:
            self._attempt(*self._table.snapshot())

    def _note(self, key: Key, record: object | None) -> None:
        self._changed = True
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and not self._writing and not self._closed:
            self._timer = self._call_later(max(DELAY_S, REST * self._took_s), self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._table.unreadable:
            # The next change may make the definitions readable again.
            return
        self._writing = True
        self._changed = False
        stored, transient = self._table.snapshot()

        def job() -> None:
            self._attempt(stored, transient)
            try:
                self._call_on_loop(self._done)
            except RuntimeError:
                # The loop is closed: the node has stopped.
                return

        self._run(job)

    def _done(self) -> None:
        self._writing = False
        if self._changed:
            self._wait()

    def _attempt(self, stored: list[Stored], transient: frozenset[Key]) -> None:
        """Write the copy; in another thread, but for the last one."""
        before = self._measure()
        try:
            self._write(_slices(stored, transient))
        except OSError as error:
            self._changed = True
            if not self._failing:
                self._failing = True
                log_event(
                    log,
                    logging.WARNING,
                    "definitions_copy_failed",
                    path=self._path,
                    error=error,
                    action="trying again",
                )
        else:
            self.written += 1
            self._failing = False
        self._took_s = self._measure() - before

    def _write(self, slices: Iterator[bytes]) -> None:
        """Put a file in place of the one there is, durably. Raises OSError."""
        unfinished = self._path.with_name(self._path.name + ".new")
        file = self._filesystem.create(unfinished)
        try:
            offset = crc = 0
            header = HEADER.pack(MAGIC, FORMAT, self._node_id)
            for data in chain((header,), slices, (ENTRY.pack(END, 0)[: -CRC.size],)):
                file.write(offset, data)
                crc = crc32(data, crc)
                offset += len(data)
                if not self._closed:
                    self._pause(SLICE_PAUSE_S)
            file.write(offset, CRC.pack(crc))
            file.sync()
        finally:
            file.close()
        self._filesystem.rename(unfinished, self._path)
        self._filesystem.sync_directory(self._path.parent)


def _slices(stored: list[Stored], transient: frozenset[Key]) -> Iterator[bytes]:
    """The octets of the copy, some definitions at a time.

    `stored` is emptied on the way. It may hold the last reference to records that were deleted
    since, and to free a hundred thousand at once takes tens of milliseconds.
    """
    stored.reverse()
    while stored:
        data = bytearray()
        for one in reversed(stored[-SLICE_ENTRIES:]):
            if one.key not in transient:
                key, value = encode_definition(one)
                data += ENTRY.pack(len(key), len(value))
                data += key
                data += value
        del stored[-SLICE_ENTRIES:]
        yield bytes(data)


def expect_definitions(directory: DataDirectory) -> None:
    """Raise `DamagedMetadata` if definitions are lost of which there is a copy.

    A member of a cluster does not need its own: it has the definitions of the cluster.
    """
    path = directory.path / DIRECTORY / DATA_FILE
    if path.exists() and path.stat().st_size:
        return
    copy = read_copy(directory.path, bytes.fromhex(directory.node_id))
    if copy is not None and copy.entries and read_known_cluster(directory.path) is None:
        raise DamagedMetadata(
            f"{path} is missing, and {FILE} beside it has the definitions of this node;"
            f" `warren store repair {directory.path}` makes a new file of it"
        )


def read_copy(data_directory: Path, node_id: bytes) -> ReadCopy | None:
    """The copy of a node's definitions; None when there is none. OSError."""
    try:
        data = (data_directory / FILE).read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < HEADER.size:
        return ReadCopy([], "it has no header")
    magic, version, its_node_id = HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        return ReadCopy([], "it is no copy of definitions that this version of Warren reads")
    if its_node_id != node_id:
        return ReadCopy([], f"it is of node {its_node_id.hex()}")
    return _read_entries(data)


def _read_entries(data: bytes) -> ReadCopy:
    entries: list[tuple[bytes, bytes]] = []
    at = HEADER.size
    while at + ENTRY.size <= len(data):
        key_bytes, value_bytes = ENTRY.unpack_from(data, at)
        if key_bytes == END:
            whole = value_bytes == crc32(data[: at + CRC.size]) and at + ENTRY.size == len(data)
            return ReadCopy(entries, None if whole else "its checksum is wrong")
        start = at + ENTRY.size
        at = start + key_bytes + value_bytes
        if at > len(data):
            break
        entries.append((data[start : start + key_bytes], data[start + key_bytes : at]))
    return ReadCopy(entries, "its end is missing")
