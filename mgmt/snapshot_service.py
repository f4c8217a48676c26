"""Snapshots for readers on other machines: how they are made, who may read them, and what is sent.

A process of its own makes them (`spark_export/snapshot/node_service.py`), because that takes numpy
and more time than the event loop may spend. The files of a snapshot never change, so threads of the
node read them, a piece of `PIECE_BYTES_MAX` at a time; `Pace` keeps all readers together below
`snapshot_rate`.

A log file has messages of all queues. Octets that are not of the snapshot's messages are sent as
zeroes; the snapshot's extents say which those are (`spark_export/snapshot/served_extents.py`).

A reader needs the token of the snapshot, and the user for whom it was made must still have the
right to read all of its queues; that is checked again every `CHECKED_S`.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from warren.mgmt.http.errors import ApiError
from warren.mgmt.pace import Pace
from warren.persist.log.log_files import parse_file_name
from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.persist.snapshots.pins import (
    LEASE_FILE,
    NAME,
    PINS_DIRECTORY,
    is_unfinished,
    read_early_release,
)

T = TypeVar("T")

PIECE_BYTES_MAX = 1 << 20
"""Size of one answer: to write it to a socket costs the loop 0.2 ms, without TLS."""

READS_MAX = 4
"""Pieces that are read at the same time, each in a thread."""

CHECKED_S = 5.0
SNAPSHOTS_KEPT = 1000

ANSWER_S = 120.0
"""Time for an answer: a snapshot of a large store takes seconds."""

IDLE_S = 60.0
"""How long the process that makes snapshots runs without work."""

STATUSES = {
    "OptionRefused": 400,
    "QueueUnknown": 404,
    "SnapshotGone": 410,
    "StoreRefused": 409,
    "CursorInUse": 409,
}
"""HTTP status by the name of an error in `spark_export/errors.py`; an answer has it as its
`error`."""

QUEUE_ID = re.compile(r"[0-9a-f]{16}")


class SnapshotRefused(ApiError):
    """An error of `spark_export/errors.py`, which the reader raises again."""

    def __init__(self, error: str, text: str) -> None:
        super().__init__(STATUSES.get(error, 500), error, text)


class ServedPiece(NamedTuple):
    """Octets of a file from `start` on; `size` is the size of the whole file."""

    data: bytes
    start: int
    size: int
    crc: int


@dataclass
class Granted:
    """A snapshot that may be read. `fields` are the fields of its `snapshot.json`."""

    directory: Path
    user: str
    token: str
    fields: dict[str, Any]
    checked_at: float = float("-inf")

    @property
    def queues(self) -> list[tuple[str, str]]:
        return [(queue["vhost"], queue["name"]) for queue in self.fields["queues"]]


class SnapshotService:
    """The snapshots of the node with this data directory.

    `rate` is octets a second for all readers, or None; `now` a clock in seconds that never goes
    back.
    """

    def __init__(self, data_directory: Path, rate: int | None, now: Callable[[], float]) -> None:
        self._data_directory = data_directory
        self._maker = _Maker(data_directory)
        self._asking = asyncio.Lock()
        self._reading = asyncio.Semaphore(READS_MAX)
        self._pace = Pace(None if rate is None else rate, now())
        self._now = now
        self._granted: dict[str, Granted] = {}
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, question: dict[str, Any]) -> Any:
        """The answer of the process that makes snapshots. Raises `SnapshotRefused`."""
        async with self._asking:
            if self._idle is not None:
                self._idle.cancel()
            answer = await asyncio.to_thread(self._maker.ask, question)
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._rest)
        if "error" in answer:
            raise SnapshotRefused(answer["error"], answer["text"])
        return answer["answer"]

    def _rest(self) -> None:
        if not self._asking.locked() and not self._maker.holding:
            self._maker.end()

    def stop(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._maker.end()

    # The right to read

    async def find(self, snapshot: str, *, fresh: bool = False) -> Granted:
        """The snapshot of this id; with `fresh` it is looked up on disk even if it is known.

        Raises `SnapshotRefused`.
        """
        found = None if fresh else self._granted.get(snapshot)
        if found is None or self._now() - found.checked_at > CHECKED_S:
            found = await asyncio.to_thread(_read_granted, self._pins / snapshot, snapshot)
            if len(self._granted) >= SNAPSHOTS_KEPT:
                self._granted.clear()
            self._granted[snapshot] = found
        return found

    def checked(self, granted: Granted) -> None:
        """Note that its user may read all of its queues at this moment."""
        granted.checked_at = self._now()

    def needs_check(self, granted: Granted) -> bool:
        return self._now() - granted.checked_at > CHECKED_S

    def forget(self, snapshot: str) -> None:
        """Forget a snapshot that was changed or removed."""
        self._granted.pop(snapshot, None)

    # Files

    async def names(self, granted: Granted) -> list[dict[str, Any]]:
        return await asyncio.to_thread(_log_files, granted.directory)

    async def read_entries(
        self, granted: Granted, queue_id: str, start: int, size: int
    ) -> ServedPiece:
        """Entries of a queue. Raises `SnapshotRefused`, OSError."""
        if not QUEUE_ID.fullmatch(queue_id):
            raise SnapshotRefused("OptionRefused", f"{queue_id!r} is no id of a queue")
        path = granted.directory / "queues" / f"{queue_id}.npy"
        return await self._read(path, start, size, None)

    async def read_log(self, granted: Granted, name: str, start: int, size: int) -> ServedPiece:
        """Octets of a log file. Raises `SnapshotRefused`, OSError."""
        if parse_file_name(name) is None:
            raise SnapshotRefused("OptionRefused", f"{name!r} is no name of a log file")
        path = granted.directory / "log" / name
        extents = granted.directory / "extents" / name
        return await self._read(path, start, size, extents)

    async def _read(self, path: Path, start: int, size: int, extents: Path | None) -> ServedPiece:
        now = self._now()
        wait_s = self._pace.wait_s(now)
        self._pace.used(now, min(size, PIECE_BYTES_MAX))
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        async with self._reading:
            return await asyncio.to_thread(_read_piece, path, start, size, extents)

    @property
    def _pins(self) -> Path:
        return self._data_directory / STORE_DIRECTORY / PINS_DIRECTORY


# In threads


def _read_granted(directory: Path, snapshot: str) -> Granted:
    if not NAME.fullmatch(snapshot) or is_unfinished(directory):
        raise SnapshotRefused("OptionRefused", f"{snapshot!r} is no id of a snapshot")
    try:
        fields = json.loads((directory / LEASE_FILE).read_text("utf-8"))
        access = json.loads((directory / "access.json").read_text("utf-8"))
        if fields["cursor"] is None and fields["expires_us"] <= time.time() * 1e6:
            raise gone(directory)
        for queue, cluster_id in zip(fields["queues"], access["cluster_ids"], strict=True):
            queue["cluster_id"] = cluster_id
        return Granted(directory, access["user"], access["token"], fields)
    except FileNotFoundError:
        raise gone(directory) from None
    except (ValueError, KeyError, TypeError):
        raise SnapshotRefused(
            "SnapshotGone", f"snapshot {snapshot} did not survive a power failure; take a new one"
        ) from None


def gone(directory: Path) -> SnapshotRefused:
    """The error that a snapshot is not there, with the reason if that is known."""
    early = read_early_release(directory)
    if early is None:
        text = f"there is no snapshot {directory.name}: it was released, or its lease ran out"
    else:
        text = (
            f"snapshot {directory.name} was released before its time: all snapshots together kept"
            f" {early.octets} bytes on the disk, snapshot_limit of the node was"
            f" {early.octets_max}, and it was the oldest; take a new one, release those not"
            " needed, or raise that limit"
        )
    return SnapshotRefused("SnapshotGone", text)


def same_token(granted: Granted, token: str) -> bool:
    """Compare in a time that does not depend on the token."""
    return hmac.compare_digest(granted.token.encode(), token.encode("utf-8", "surrogateescape"))


def _log_files(directory: Path) -> list[dict[str, Any]]:
    try:
        with os.scandir(directory / "log") as found:
            return [{"name": at.name, "size": at.stat().st_size} for at in found]
    except FileNotFoundError:
        raise gone(directory) from None


def _read_piece(path: Path, start: int, size: int, extents: Path | None) -> ServedPiece:
    """Read a piece; octets outside of `extents` are zeroes.

    Raises `SnapshotRefused`, FileNotFoundError, OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.parent.exists():
            raise gone(path.parent.parent) from None
        raise
    try:
        whole = os.fstat(fd).st_size
        data = os.pread(fd, min(size, PIECE_BYTES_MAX), start)
    finally:
        os.close(fd)
    if extents is not None:
        data = _masked(data, start, _read_extents(extents))
    return ServedPiece(data, start, whole, crc32(data))


def _read_extents(path: Path) -> array[int]:
    """The extents of a file; empty if it has none, so that none of its octets are sent."""
    extents = array("Q")
    try:
        extents.frombytes(path.read_bytes())
    except FileNotFoundError:
        return extents
    if sys.byteorder == "big":
        extents.byteswap()
    return extents


def _masked(data: bytes, start: int, extents: array[int]) -> bytes:
    """The octets within extents, which are pairs of begin and end; zeroes for the others.

    `start` is the offset of the octets in the file.
    """
    end = start + len(data)
    # The first extent that ends behind `start`: ends are at odd indices, and all offsets ascend.
    at = bisect_right(extents, start) & ~1
    if at < len(extents) and extents[at] <= start and extents[at + 1] >= end:
        return data
    view = memoryview(data)
    masked = bytearray(len(data))
    while at < len(extents) and extents[at] < end:
        first = max(extents[at], start) - start
        last = min(extents[at + 1], end) - start
        masked[first:last] = view[first:last]
        at += 2
    return bytes(masked)


class _Maker:
    """The process that makes snapshots. It starts at a question, and takes one at a time."""

    def __init__(self, data_directory: Path) -> None:
        self.holding = False
        """Whether the process holds cursors, and must not end."""
        self._data_directory = data_directory
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        impatience = threading.Timer(ANSWER_S, process.kill)
        impatience.start()
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline() or b"null")
        except (OSError, ValueError) as error:
            return self._failed(str(error))
        finally:
            impatience.cancel()
        if answer is None:
            return self._failed("it has ended")
        self.holding = answer.get("holding", self.holding)
        return answer

    def end(self) -> None:
        """End the process, at once."""
        process, self._process = self._process, None
        self.holding = False
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            # It may be in the middle of a snapshot; the next sweep removes such a snapshot. A
            # thread that waits for its answer has the stream until the process has ended.
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):
                # A question of that thread may stand in the buffer, and the process is gone.
                process.stdin.close()
            process.stdout.close()

    def _failed(self, reason: str) -> dict[str, Any]:
        self.end()
        text = f"the process that makes snapshots failed: {reason}; the node's log has more"
        return {"error": "StoreRefused", "text": text}

    def _running(self) -> subprocess.Popen[bytes]:
        # The loop may end the process at any time, and this is another thread.
        process = self._process
        if process is not None and process.poll() is None:
            return process
        self.end()
        module = "warren.spark_export.snapshot.node_service"
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(self._data_directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return process


def can_make() -> bool:
    """Whether the packages that make snapshots are installed beside the node."""
    return importlib.util.find_spec("numpy") is not None
