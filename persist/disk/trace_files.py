"""The lives of messages on disk: lines of JSON in a directory of bounded size.

    trace/00000001.jsonl, trace/00000002.jsonl, ...

Each line is a `TraceRecord`. When all files together exceed what they may have, the oldest file
goes. Records are for people who look for a message: they are written soon, and not synced, so they
survive a crash of the node and not always one of the machine. A line that a crash has cut off is
passed over.

A thread writes and searches, in the order in which it was asked to. What is handed to it is
bounded; a disk that refuses records costs these records and nothing else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from warren.core.log_line import log_event
from warren.core.tracing.trace_record import TraceRecord
from warren.core.tracing.trace_store import FOUND_MAX, Found, Life, Traced, life_in
from warren.persist.disk.group_commit import Job

log = logging.getLogger("warren.storage")

DIRECTORY = "trace"

FILES = 8
"""The size is divided into so many files, one of which goes at a time."""

ENCODED_AT_ONCE = 100
"""Records that are encoded before other threads get their turn: 0.1 ms."""

QUEUED_MAX = 50_000
"""Records that wait for the thread."""

RESUMED_MAX = 100_000
"""The newest records by which a restart knows which messages to follow."""


class TraceFiles:
    """Implements `TraceStore`. `run` has the thread do a job, `call_on_loop` calls back."""

    def __init__(
        self,
        directory: Path,
        size_max: int,
        run: Callable[[Job], object],
        call_on_loop: Callable[[Callable[[], None]], object],
    ) -> None:
        self.octets = 0
        self.lost = 0
        self._directory = directory
        self._size_max = size_max
        self._file_size_max = max(1, size_max // FILES)
        self._run = run
        self._call_on_loop = call_on_loop
        self._queued = 0
        self._is_closed = False
        # The thread's alone: the sizes of the files by number, and whether writing fails.
        self._sizes: dict[int, int] = {}
        self._failing = False
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(TraceRecord)

    def open(self) -> list[Traced]:
        """Find the files there are; returns what they say is followed, the oldest first. It takes
        a while, and comes before everything else. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for path in self._directory.glob("[0-9]*.jsonl"):
            self._sizes[int(path.stem)] = path.stat().st_size
        self._sizes = dict(sorted(self._sizes.items()))
        self._drop_oldest()
        newest: list[Traced] = []
        decode = msgspec.json.Decoder(Traced).decode
        for number in reversed(self._sizes):
            for line in reversed(self._path(number).read_bytes().splitlines()):
                try:
                    newest.append(decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                if len(newest) == RESUMED_MAX:
                    break
            if len(newest) == RESUMED_MAX:
                break
        self._end_last_line()
        newest.reverse()
        return newest

    def _end_last_line(self) -> None:
        """End a line that a crash has cut off, so that the next record begins a line."""
        if self._sizes:
            number = next(reversed(self._sizes))
            if not self._path(number).read_bytes().endswith(b"\n"):
                self._append(number, b"\n")

    def close(self, run: Callable[[Job], object]) -> None:
        """Keep nothing more: the thread has ended. What was kept is still found; `run` does that
        on another thread."""
        self._is_closed = True
        self._run = run

    # `TraceStore`

    def keep(self, records: Sequence[TraceRecord]) -> int:
        if self._is_closed or self._queued + len(records) > QUEUED_MAX:
            return len(records)
        self._queued += len(records)
        self._run(lambda: self._write(records))
        return 0

    def find(self, vhost: str, name: str, found: Found) -> None:
        def search() -> None:
            life = self._search(vhost, name)
            self._call_on_loop(lambda: found(life))

        self._run(search)

    # The thread

    def _write(self, records: Sequence[TraceRecord]) -> None:
        lost = 0
        for at in range(0, len(records), ENCODED_AT_ONCE):
            some = records[at : at + ENCODED_AT_ONCE]
            try:
                self._append(self._number(), self._encoder.encode_lines(some))
                self._drop_oldest()
                self._failing = False
            except (OSError, UnicodeEncodeError) as error:
                lost += len(some)
                if not self._failing:
                    self._failing = True
                    log_event(log, logging.ERROR, "trace_not_written", reason=error)
        octets = sum(self._sizes.values())
        self._call_on_loop(lambda: self._written(len(records), lost, octets))

    def _written(self, count: int, lost: int, octets: int) -> None:
        self._queued -= count
        self.lost += lost
        self.octets = octets

    def _number(self) -> int:
        """Return the number of the file that is written to."""
        last = next(reversed(self._sizes), 0)
        if last and self._sizes[last] < self._file_size_max:
            return last
        self._sizes[last + 1] = 0
        return last + 1

    def _append(self, number: int, octets: bytes) -> None:
        with open(self._path(number), "ab", opener=_open_private) as file:
            file.write(octets)
        self._sizes[number] += len(octets)

    def _drop_oldest(self) -> None:
        while len(self._sizes) > 1 and sum(self._sizes.values()) > self._size_max:
            number = next(iter(self._sizes))
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _search(self, vhost: str, name: str) -> Life:
        # The names of the keys stand in their order, and no text has quotation marks in it.
        of_message = b'"id":' + self._encoder.encode(name) + b","
        of_queues = b'"id":"",'
        records: list[TraceRecord] = []
        for number in reversed(self._sizes):
            if len(records) > FOUND_MAX:
                break
            try:
                data = self._path(number).read_bytes()
            except OSError as error:
                log_event(log, logging.ERROR, "trace_not_read", reason=error)
                continue
            for needle in (of_message, of_queues):
                records += self._records(data, needle)
        return life_in(records, vhost, name)

    def _records(self, data: bytes, needle: bytes) -> Iterator[TraceRecord]:
        at = data.find(needle)
        while at >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            try:
                yield self._decoder.decode(data[start:end])
            except (msgspec.DecodeError, UnicodeDecodeError):
                # A crash has cut it off.
                pass
            at = data.find(needle, end)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08}.jsonl"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
