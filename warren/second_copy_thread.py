"""Runs the second copy of a node's own definitions in a thread."""

from __future__ import annotations

import asyncio

from warren.clock import LoopClock
from warren.core.ports import MetadataStore
from warren.persist.definitions.metadata import LmdbMetadataStore
from warren.persist.definitions.second_copy import SecondCopy
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.disk.group_commit import OnFault, SyncThread


class SecondCopyThread:
    """The second copy of a node's own definitions, and the thread that writes it."""

    def __init__(
        self,
        metadata: MetadataStore,
        directory: DataDirectory,
        loop: asyncio.AbstractEventLoop,
        clock: LoopClock,
        on_fault: OnFault,
    ) -> None:
        assert isinstance(metadata, LmdbMetadataStore)
        self._thread = SyncThread("definitions-copy", on_fault)
        self._copy = SecondCopy(
            metadata,
            RealFileSystem(),
            directory.path,
            bytes.fromhex(directory.node_id),
            run=self._thread.run,
            call_on_loop=loop.call_soon_threadsafe,
            call_later=clock.call_later,
        )

    def close(self) -> None:
        self._copy.stop()
        self._thread.close()
        self._copy.close()
