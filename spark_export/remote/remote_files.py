"""The files of a snapshot at the node that made it, read over HTTP with the snapshot's token."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from warren.spark_export.node_urls import NodeAddress
from warren.spark_export.remote.remote_node import NodeClient
from warren.spark_export.snapshot.unit import (
    ENTRY,
    HEAD_BYTES,
    Entries,
    EntriesHead,
    LogOctets,
    parse_entries_head,
)

QUEUES_KEPT: Final = 8
"""Queues whose entries are kept: planning asks for the entries of each queue twice in a row."""


@dataclass(frozen=True)
class RemoteFiles:
    """The files of the snapshot with this id; `token` opens it."""

    address: NodeAddress
    snapshot: str
    token: str = field(repr=False)

    gap_bytes_max = 128 << 10
    """A request costs as much as sending this many octets."""

    @property
    def client(self) -> NodeClient:
        return NodeClient(self.address, f"Bearer {self.token}")

    def load_entries(self, queue_id: int) -> Entries:
        return _all_entries(self, queue_id)

    def entries(self, queue_id: int, first: int, end: int) -> Entries:
        head = _head(self, queue_id)
        start = head.start + first * ENTRY.itemsize
        return np.frombuffer(self._octets(queue_id, start, (end - first) * ENTRY.itemsize), ENTRY)

    def _octets(self, queue_id: int, start: int, size: int) -> bytearray:
        octets = bytearray()
        while len(octets) < size:
            piece = self.client.read(
                *self._path(queue_id), start=start + len(octets), size=size - len(octets)
            )
            if not piece:
                raise OSError(f"the entries of queue {queue_id:016x} at {self} are not whole")
            octets += piece
        return octets

    def head(self, queue_id: int) -> EntriesHead:
        octets = self.client.read(*self._path(queue_id), start=0, size=HEAD_BYTES)
        return parse_entries_head(octets, f"queue {queue_id:016x} at {self}")

    def _path(self, queue_id: int) -> tuple[str, str, str]:
        return self.snapshot, "queues", f"{queue_id:016x}"

    def log_names(self) -> list[str]:
        return list(_log_sizes(self))

    def open_log(self, name: str) -> LogOctets:
        size = _log_sizes(self).get(name)
        if size is None:
            raise FileNotFoundError(name)
        return RemoteLogOctets(self, name, size)

    def log_sizes(self) -> dict[str, int]:
        rows: list[dict[str, Any]] = self.client.ask("GET", self.snapshot, "log")
        return {row["name"]: row["size"] for row in rows}

    def __str__(self) -> str:
        return f"snapshot {self.snapshot} at {self.address.url}"


@lru_cache(QUEUES_KEPT)
def _all_entries(files: RemoteFiles, queue_id: int) -> Entries:
    return files.entries(queue_id, 0, _head(files, queue_id).rows)


@lru_cache(1024)
def _head(files: RemoteFiles, queue_id: int) -> EntriesHead:
    return files.head(queue_id)


@lru_cache(8)
def _log_sizes(files: RemoteFiles) -> dict[str, int]:
    """The sizes of the log files, cached: a snapshot's files never change."""
    return files.log_sizes()


class RemoteLogOctets:
    """A log file at a node; there is nothing to close."""

    whole = False

    def __init__(self, files: RemoteFiles, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._files = files

    @cached_property
    def key(self) -> Hashable:
        return self._files, self.name

    def read(self, offset: int, size: int) -> bytes:
        octets = bytearray()
        while len(octets) < size:
            piece = self._read(offset + len(octets), size - len(octets))
            if not piece:
                break
            octets += piece
        return bytes(octets)

    def read_into(self, view: memoryview, offset: int) -> int:
        piece = self._read(offset, len(view))
        view[: len(piece)] = piece
        return len(piece)

    def _read(self, offset: int, size: int) -> bytes:
        files = self._files
        return files.client.read(files.snapshot, "log", self.name, start=offset, size=size)

    def close(self) -> None:
        pass
