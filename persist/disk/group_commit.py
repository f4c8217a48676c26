"""Group commit: one write and one sync for all items that were submitted meanwhile.

Theory. `submit` takes an item and returns its commit. At most one batch is being written; items
submitted meanwhile wait and become the next batch, so the cost of a sync is shared by as many
items as arrive while one lasts. Batches are written in order by one thread and commits
complete in order, on the loop, only after the batch that holds them was written without error.

A batch that fails is tried again as it is, with growing pauses, until it works or the group is
closed: nothing overtakes it and none of its commits completes before. `write_batch` must hence
be idempotent.

All state is touched on the loop. The thread only runs the job it is handed, and its outcome comes
back through `call_on_loop` (`loop.call_soon_threadsafe`). With `run=lambda job: job()` and
`call_on_loop=lambda callback: callback()` the same code runs without a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, Protocol, TypeAlias, TypeVar

from warren.core.ports import Timer

logger = logging.getLogger("warren.storage")

Item = TypeVar("Item")
Job: TypeAlias = Callable[[], None]
OnFault: TypeAlias = Callable[[BaseException], None]
"""Told, in any thread, of an unexpected exception."""

RETRY_FIRST_S = 0.1
# A full disk is usually freed by a person: looking more often than this does not help.
RETRY_MAX_S = 5.0
# Tries made when closing; a disk that fails twice in a row is not waited for at shutdown.
CLOSE_TRIES_MAX = 2


class CallLater(Protocol):
    """`Clock.call_later`."""

    def __call__(self, delay_s: float, callback: Callable[[], None], /) -> Timer: ...


def log_callback_fault(error: BaseException) -> None:
    logger.error("commit_callback_failed", exc_info=error)


class PendingCommit:
    """A change on its way to disk; implements `core.ports.Commit`."""

    __slots__ = ("_callbacks", "_done")

    def __init__(self) -> None:
        self._done = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._done

    @property
    def visible(self) -> bool:
        return True

    @property
    def refused(self) -> bool:
        return False

    def then(self, callback: Callable[[], None]) -> None:
        if self._done:
            callback()
        else:
            self._callbacks.append(callback)

    def complete(self, on_fault: OnFault = log_callback_fault) -> None:
        """Called once, on the loop, after the sync."""
        assert not self._done
        self._done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                # The other callbacks must be called all the same: their changes are as durable as
                # this one.
                on_fault(error)


class SyncThread:
    """A thread that runs blocking jobs one after the other.

    After a job that raises, which is a fault, no other is run: it may rely on the one before.
    """

    def __init__(self, name: str, on_fault: OnFault) -> None:
        self._on_fault = on_fault
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Job) -> None:
        """Run the job after those handed in before."""
        self._jobs.put(job)

    def close(self) -> None:
        """Return when all jobs have run, but for those after a fault; no more may be handed in."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        failed = False
        while (job := self._jobs.get()) is not None:
            if failed:
                continue
            try:
                job()
            except BaseException as error:
                failed = True
                self._on_fault(error)


class _Batch(Generic[Item]):
    """Items written together. The thread sets `error`, then `finished`; the loop reads both."""

    __slots__ = ("commits", "error", "finished", "items")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.commits: list[PendingCommit] = []
        self.error: Exception | None = None
        self.finished = False


class GroupCommit(Generic[Item]):
    """Collects items into batches and has them written one batch at a time.

    `write_batch` runs on the thread behind `run` and returns when the items are durable; it may
    then have emptied its list.
    `on_failure` and `on_recovery` are told on the loop of the first failure in a row (with the
    error) and of the write that ended it. Only errors that are `expected` are tried again: after
    any other the batch stays unwritten, and `on_fault` is told.
    """

    def __init__(
        self,
        write_batch: Callable[[list[Item]], None],
        *,
        run: Callable[[Job], None],
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        on_failure: Callable[[Exception], None],
        on_recovery: Callable[[], None],
        on_fault: OnFault = log_callback_fault,
        expected: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._on_fault = on_fault
        self._expected = expected
        self._write_batch = write_batch
        self._run = run
        self._call_on_loop = call_on_loop
        self._call_later = call_later
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._waiting: _Batch[Item] = _Batch()
        self._writing: _Batch[Item] | None = None
        self._youngest: PendingCommit | None = None
        self._retry: Timer | None = None
        self._retry_delay_s = RETRY_FIRST_S
        self._failing = False
        self._closed = False
        self._abandoned = False

    def submit(self, item: Item) -> PendingCommit:
        assert not self._closed, "submitted after close"
        commit = PendingCommit()
        self._waiting.items.append(item)
        self._waiting.commits.append(commit)
        self._youngest = commit
        if self._writing is None and not self._abandoned:
            self._write_waiting()
        return commit

    def uncommitted(self) -> PendingCommit | None:
        """The youngest commit that is not durable yet."""
        youngest = self._youngest
        return None if youngest is None or youngest.done else youngest

    def close(self) -> int:
        """Write all pending items in the calling thread; returns how many could not be written.

        Nothing is written after `abandon`.

        The thread behind `run` must have finished its jobs; whether the loop has heard of their
        outcome does not matter.
        """
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._writing is not None:
            if self._abandoned or not self._close_batch(self._writing):
                return len(self._writing.items) + len(self._waiting.items)
        return 0

    def abandon(self) -> None:
        """Write nothing more, and complete nothing more."""
        self._abandoned = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _close_batch(self, batch: _Batch[Item]) -> bool:
        if batch.finished:
            self._settle(batch)
        for _ in range(CLOSE_TRIES_MAX):
            if self._writing is not batch:
                break
            self._attempt(batch)
            self._settle(batch)
        return self._writing is not batch

    def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, _Batch()
        self._writing = batch
        self._start(batch)

    def _start(self, batch: _Batch[Item]) -> None:
        def job() -> None:
            self._attempt(batch)
            try:
                self._call_on_loop(lambda: self._attempted(batch))
            except RuntimeError:
                # The loop is closed; `close` finds the outcome in the batch.
                pass

        self._run(job)

    def _attempt(self, batch: _Batch[Item]) -> None:
        try:
            self._write_batch(batch.items)
        except Exception as error:
            batch.error = error
        else:
            batch.error = None
        batch.finished = True

    def _attempted(self, batch: _Batch[Item]) -> None:
        """On the loop: unless `close` was faster, settle the batch and go on."""
        if not self._closed and not self._abandoned and batch is self._writing:
            self._settle(batch)

    def _settle(self, batch: _Batch[Item]) -> None:
        error = batch.error
        batch.finished = False
        if error is not None:
            self._failed(batch, error)
            return
        if self._failing:
            self._failing = False
            self._retry_delay_s = RETRY_FIRST_S
            self._on_recovery()
        for commit in batch.commits:
            commit.complete(self._on_fault)
        self._writing = None
        if self._abandoned or not self._waiting.items:
            return
        if self._closed:
            self._writing, self._waiting = self._waiting, _Batch()
        else:
            self._write_waiting()

    def _failed(self, batch: _Batch[Item], error: Exception) -> None:
        if not self._closed and not isinstance(error, self._expected):
            self._on_fault(error)
            return
        if not self._failing:
            self._failing = True
            self._on_failure(error)
        if self._closed:
            return
        delay_s = self._retry_delay_s
        self._retry_delay_s = min(2 * delay_s, RETRY_MAX_S)
        self._retry = self._call_later(delay_s, lambda: self._try_again(batch))

    def _try_again(self, batch: _Batch[Item]) -> None:
        self._retry = None
        self._start(batch)
