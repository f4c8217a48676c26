"""Writes to an LMDB file in the background, and says in the log while the disk refuses.

Answerable for writing whole batches in their order, for trying again what failed, and for what is
pending when the file is closed. `group_commit.py` has the rules of batches and retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from warren.core.log_line import log_event
from warren.persist.definitions.database import EXPECTED, Database
from warren.persist.disk.group_commit import (
    CallLater,
    GroupCommit,
    OnFault,
    PendingCommit,
    SyncThread,
    log_callback_fault,
)

log = logging.getLogger("warren.storage")

Item = TypeVar("Item")


class DatabaseWriter(Generic[Item]):
    """`write_batch` writes items to the database; it runs on the thread.

    Without a `sync_thread` it runs where `submit` is called: for simulations. The writer closes the
    thread and the database. `name` begins the events in the log.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        write_batch: Callable[[Sequence[Item]], None],
        *,
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        sync_thread: SyncThread | None,
        on_fault: OnFault = log_callback_fault,
    ) -> None:
        self._name = name
        self._database = database
        self._sync_thread = sync_thread
        self._write_batch = write_batch
        self._group: GroupCommit[Item] = GroupCommit(
            self._write,
            run=sync_thread.run if sync_thread is not None else _run_here,
            call_on_loop=call_on_loop,
            call_later=call_later,
            on_failure=self._report_failure,
            on_recovery=self._report_recovery,
            on_fault=on_fault,
            expected=EXPECTED,
        )

    def submit(self, item: Item) -> PendingCommit:
        """Write an item behind those submitted before."""
        return self._group.submit(item)

    def uncommitted(self) -> PendingCommit | None:
        """The youngest commit that is not durable yet."""
        return self._group.uncommitted()

    def close(self) -> int:
        """Write all pending items; returns how many could not be written."""
        if self._sync_thread is not None:
            self._sync_thread.close()
        lost = self._group.close()
        self._database.close()
        return lost

    def _write(self, batch: list[Item]) -> None:
        """Write a batch and let go of it, one item after the other.

        It may be a hundred thousand definitions. The loop would free them all at once, which takes
        tens of milliseconds.
        """
        self._write_batch(batch)
        while batch:
            batch.pop()

    def _report_failure(self, error: Exception) -> None:
        log_event(
            log,
            logging.ERROR,
            f"{self._name}_write_failed",
            path=self._database.path,
            error=repr(error),
            action="retrying",
        )

    def _report_recovery(self) -> None:
        log_event(log, logging.INFO, f"{self._name}_write_recovered", path=self._database.path)


def _run_here(job: Callable[[], None]) -> None:
    job()
