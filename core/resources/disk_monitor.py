"""Watches the free space of the data directory and raises the disk alarm below the limit.

Answerable for storage_internals.md section d.3. The next look comes after half the time in which a
fast disk could fill up to the limit, so that publishers are stopped before it is full; a file
system that cannot be asked is asked again every two minutes, and after ten times no more. While
the directory is gone (moved away, removed, unmounted) the alarm is on, too: what is written then
goes to files that are not found again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from warren.core.log_line import log_event
from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.memory_monitor import Absolute, Fraction, Limit, limit_bytes

DEFAULT_LIMIT = Absolute(50_000_000)
DEFAULT_SNAPSHOT_LIMIT = Fraction(0.2)
"""The fraction of the disk that snapshots may keep of files the node has removed."""
GROWING_ONLY_DOWN_TO = 0.5
"""While this part of the limit is free, only publishers to queues that grow have to wait."""
INTERVAL_MIN_S = 0.1
INTERVAL_MAX_S = 10.0
# The fastest a disk is taken to fill up.
FAST_BYTES_PER_S = 250_000_000
RETRY_S = 120.0
RETRIES_MAX = 10

log = logging.getLogger("warren.alarm")


class DirectoryGone(OSError):
    """The data directory is not where it was, or another one is in its place."""


class DiskMonitor:
    """Compares the free space with the limit; `Periodic` drives `check`.

    `free_bytes()` raises OSError when it does not know, and `DirectoryGone`;
    `total_memory_bytes()` is asked for a limit that is a share of the memory. `enabled` turns false
    when the monitor has given up.
    `pinned_bytes` is what snapshots keep on the disk, which may be the cause of an alarm.
    `blocks_all`: all publishers wait as soon as less is free than the limit.
    """

    def __init__(
        self,
        free_bytes: Callable[[], int],
        alarms: Alarms,
        limit: Limit = DEFAULT_LIMIT,
        *,
        total_memory_bytes: Callable[[], int],
        blocks_all: bool = False,
    ) -> None:
        self.limit = limit
        self.free_bytes: int | None = None
        self.enabled = True
        self.pinned_bytes: Callable[[], int] = lambda: 0
        self._low = False
        self._writes_fail = False
        self._gone = False
        self._ask_free_bytes = free_bytes
        self._total_memory_bytes = total_memory_bytes
        self._alarms = alarms
        self._failures = 0
        self._blocks_all = blocks_all

    @property
    def limit_bytes(self) -> int:
        if isinstance(self.limit, Absolute):
            return self.limit.octets
        return limit_bytes(self.limit, self._total_memory_bytes())

    def check(self, now: float) -> float | None:
        """Look once; returns the seconds until the next time, None when there is none."""
        try:
            free = self._ask_free_bytes()
        except DirectoryGone as error:
            self._note_gone(error)
            self._report(None)
            return INTERVAL_MAX_S
        except OSError:
            return self._failed()
        self._note_gone(None)
        self._failures = 0
        self.enabled = True
        self.free_bytes = free
        spare = free - self.limit_bytes
        if spare < 0 and not self._low:
            self._name_snapshots()
        self._low = spare < 0
        self._report(free)
        if spare < 0:
            until_all_wait = free - self._all_wait_below
            if self._blocks_all or until_all_wait < 0:
                return INTERVAL_MAX_S
            return min(max(until_all_wait / FAST_BYTES_PER_S / 2, INTERVAL_MIN_S), INTERVAL_MAX_S)
        return min(max(spare / FAST_BYTES_PER_S / 2, INTERVAL_MIN_S), INTERVAL_MAX_S)

    def writes_fail(self, fail: bool) -> None:
        """Note that the storage cannot write, whatever the file system says of its space, or can
        again."""
        self._writes_fail = fail
        self._report(self.free_bytes)

    @property
    def _all_wait_below(self) -> float:
        return self.limit_bytes * GROWING_ONLY_DOWN_TO

    def _report(self, free: int | None) -> None:
        short = free is not None and free < self.limit_bytes
        enough = free is None or free >= self._all_wait_below
        useless = self._writes_fail or self._gone
        growing_only = enough and not useless and not self._blocks_all
        self._alarms.report(Resource.DISK, short or useless, growing_only=growing_only)

    @property
    def snapshots_are_the_cause(self) -> bool:
        """Whether there would be no alarm without the files that snapshots keep on the disk."""
        free = self.free_bytes
        return free is not None and free < self.limit_bytes <= free + self.pinned_bytes()

    def _name_snapshots(self) -> None:
        if not self.snapshots_are_the_cause:
            return
        log_event(
            log,
            logging.WARNING,
            "disk_filled_by_snapshots",
            free_bytes=self.free_bytes,
            limit_bytes=self.limit_bytes,
            pinned_bytes=self.pinned_bytes(),
            action="warren export snapshot list, release; or lower snapshot_limit",
        )

    def _note_gone(self, error: DirectoryGone | None) -> None:
        gone = error is not None
        if gone is self._gone:
            return
        self._gone = gone
        if gone:
            log_event(
                log,
                logging.ERROR,
                "data_directory_gone",
                reason=error,
                action="publishers wait until it is back",
            )
        else:
            log_event(log, logging.WARNING, "data_directory_back")

    def _failed(self) -> float | None:
        """An alarm that is on stays on: it has not been seen that there is space again."""
        self.free_bytes = None
        self._failures += 1
        self.enabled = self._failures <= RETRIES_MAX
        return RETRY_S if self.enabled else None
