"""The changes that a leader makes to the definition of its queue: one write at a time.

Changes that come while one is being written are made together afterwards. So a definition that two
mirrors want to change at one moment is written once, and not refused to the slower one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock, Key
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions

ChangeOfRecord: TypeAlias = Callable[[QueueRecord], QueueRecord | None]
"""Returns the changed definition, or None if there is nothing to change."""

TOGETHER_S = 0.05
"""How long one mirror waits for others, so that the definition names all of them at once."""


class RecordChanges:
    """The changes of one definition that wait, and the one that is being written."""

    def __init__(
        self, key: Key, queue_id: int, definitions: QueueDefinitions, clock: Clock
    ) -> None:
        self._key = key
        self._queue_id = queue_id
        self._definitions = definitions
        self._clock = clock
        # Each change with what is called when it is written.
        self._waiting: list[tuple[ChangeOfRecord, Callable[[], None]]] = []
        self._is_writing = False

    def add(self, change: ChangeOfRecord, then: Callable[[], None], *, may_wait: bool) -> None:
        """Make a change as soon as possible, or, if it `may_wait`, `TOGETHER_S` later."""
        self._waiting.append((change, then))
        if may_wait:
            self._clock.call_later(TOGETHER_S, self._write)
        else:
            self._write()

    def _write(self) -> None:
        if self._is_writing or not self._waiting:
            return
        changes, self._waiting = self._waiting, []
        made: list[Callable[[], None]] = []
        self._is_writing = True

        def make(record: QueueRecord) -> QueueRecord | None:
            made.clear()
            latest = record
            for change, then in changes:
                changed = change(latest)
                if changed is not None:
                    latest = changed
                    made.append(then)
            return latest if made else None

        def written() -> None:
            for then in made:
                then()
            over()

        def over() -> None:
            self._is_writing = False
            self._write()

        self._definitions.write_record(self._key, self._queue_id, make, written, over)
