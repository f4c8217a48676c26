"""Whether the store of definitions can be reached, reported once when that changes: etcd, or the
supervisor of a broker of several processes.

Several tasks of a node talk to it. It counts as unreachable from the moment that one fails, until
all that failed have succeeded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from warren.core.log_line import log_event, log_fault
from warren.mirror.definitions.cluster_log import logger


class Reachability:
    """`failing` are the tasks that failed when they last tried."""

    def __init__(self, store: str, on_reachable: Callable[[bool], None]) -> None:
        self.failing: set[str] = set()
        self._store = store
        self._on_reachable = on_reachable

    def lost(self, work: str, error: BaseException) -> None:
        was_reachable = not self.failing
        self.failing.add(work)
        if was_reachable:
            log_event(
                logger,
                logging.ERROR,
                "definitions_unreachable",
                store=self._store,
                during=work,
                error=error,
            )
            self._tell(False)

    def found(self, work: str) -> None:
        if work in self.failing:
            self.failing.remove(work)
            if not self.failing:
                log_event(logger, logging.INFO, "definitions_reachable", store=self._store)
                self._tell(True)

    def _tell(self, reachable: bool) -> None:
        try:
            self._on_reachable(reachable)
        except Exception:
            log_fault(logger, "reachable_callback_failed")
