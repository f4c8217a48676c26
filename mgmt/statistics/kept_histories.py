"""Keeps the histories of queues, virtual hosts and the node over a restart.

A file that cannot be read or written is logged; charts lose their past, and nothing else is lost.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from typing import TypeAlias

import msgspec

from warren.core.log_line import log_event
from warren.mgmt.statistics.history import History, Retention
from warren.mgmt.statistics.history_file import (
    HistoryFileDamaged,
    HistoryWriter,
    encoded,
    read,
)
from warren.persist.disk.filesystem import FileSystem

log = logging.getLogger("warren.http")

WRITE_OCTETS = 1 << 20
"""Octets written to the disk at a time; only these are in memory twice."""

Restored: TypeAlias = dict[str, dict[Hashable, History]]
"""Histories by kind and key."""

Layout: TypeAlias = dict[str, tuple[Retention, int]]
"""The retention of each kind, and the number of its figures."""


class KeptHistories:
    """The file of one node. `layout` has the kinds that this version keeps; others are skipped."""

    def __init__(self, filesystem: FileSystem, directory: Path, layout: Layout) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._layout = layout

    async def load(self, now: float, wall_offset_s: float) -> Restored:
        """The histories of an earlier start; none if any part of the file is damaged."""
        try:
            return await asyncio.to_thread(self._load, now, wall_offset_s)
        except (OSError, HistoryFileDamaged) as problem:
            log_event(log, logging.WARNING, "history_not_loaded", reason=problem)
            return {}

    def _load(self, now: float, wall_offset_s: float) -> Restored:
        found: Restored = {kind: {} for kind in self._layout}
        contents = read(self._filesystem, self._directory)
        if contents is None:
            return found
        offset_then_s, records = contents
        later_s = offset_then_s - wall_offset_s
        for record in records:
            if record.kind not in self._layout:
                continue
            retention, places = self._layout[record.kind]
            try:
                history = History.restored(record.rings, retention, places, later_s, now)
            except (ValueError, struct.error, msgspec.DecodeError) as problem:
                raise HistoryFileDamaged(f"{record.kind} {record.key}: {problem}") from problem
            if not history.empty:
                found[record.kind][record.key] = history
        return found

    async def save(
        self,
        histories: AsyncIterator[tuple[str, Hashable, History]],
        wall_offset_s: float,
    ) -> None:
        """Write all histories in slices; a thread does the work of the disk."""
        try:
            await self._save(histories, wall_offset_s)
        except OSError as problem:
            log_event(log, logging.WARNING, "history_not_saved", reason=problem)

    async def _save(
        self,
        histories: AsyncIterator[tuple[str, Hashable, History]],
        wall_offset_s: float,
    ) -> None:
        writer = await asyncio.to_thread(
            HistoryWriter, self._filesystem, self._directory, wall_offset_s
        )
        try:
            await self._write(writer, histories)
        except OSError:
            await asyncio.to_thread(writer.give_up)
            raise
        await asyncio.to_thread(writer.finish)

    @staticmethod
    async def _write(
        writer: HistoryWriter, histories: AsyncIterator[tuple[str, Hashable, History]]
    ) -> None:
        records: list[bytes] = []
        octets = 0
        async for kind, key, history in histories:
            record = encoded(kind, key, history.stored())
            records.append(record)
            octets += len(record)
            if octets >= WRITE_OCTETS:
                await asyncio.to_thread(writer.write, b"".join(records))
                records, octets = [], 0
        await asyncio.to_thread(writer.write, b"".join(records))
