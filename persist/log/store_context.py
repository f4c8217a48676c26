"""What the parts of a message storage are given: where it is, and how work gets done in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from warren.core.ports import Clock
from warren.persist.disk.filesystem import FileSystem
from warren.persist.disk.group_commit import Job, OnFault, log_callback_fault

OPEN_FILES_MAX = 64
"""Files kept open for reading."""


class StorageSizes(NamedTuple):
    """Sizes people and tests may choose.

    `file_bytes_max`: log files are full at that size. `embed_below`: smaller messages stand in
    the journal once for each queue, others once for all. `checkpoint_bytes`: what is written
    between two checkpoints, and so what recovery may have to replay; a second or two of work.
    `combine_bytes_min`: smaller log files are not worth writing anew. `tidy_bytes`: nor worth
    giving back when all that is in them is dead and nothing happens. `open_files_max`: log files
    that each store keeps open to read from.
    """

    file_bytes_max: int = 16 << 20
    embed_below: int = 4096
    checkpoint_bytes: int = 64 << 20
    combine_bytes_min: int = 64 << 10
    tidy_bytes: int = 1 << 20
    open_files_max: int = OPEN_FILES_MAX


DEFAULT_LIMITS = StorageSizes()


@dataclass(frozen=True, kw_only=True)
class StoreContext:
    """The place of a storage, its clock, its threads and its sizes.

    `run_journal`, `run_transient` and `run_background` each hand a job to a thread that runs its
    jobs in order; `call_on_loop` brings outcomes back. `on_fault` is told of an exception that was
    not expected, after which the storage is to be abandoned.
    """

    filesystem: FileSystem
    directory: Path
    node_id: bytes
    clock: Clock
    run_journal: Callable[[Job], None]
    run_transient: Callable[[Job], None]
    run_background: Callable[[Job], None]
    call_on_loop: Callable[[Callable[[], None]], object]
    on_fault: OnFault = log_callback_fault
    limits: StorageSizes = DEFAULT_LIMITS

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return int(self.clock.wall_time() * 1e6)

    def tell_loop(self, callback: Callable[[], None]) -> None:
        """Have the loop call this; to be called in the background thread."""
        try:
            self.call_on_loop(callback)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            return
