"""A member's one outstanding business with the group's record: a read or a change.

A change is a function from a record to the record wanted, or to the same one when there is nothing
(more) to do. It is tried on the record as it is known, tried again on the record as it is when
somebody else was first, and after an answer that says nothing (`unavailable`: written or not) the
record is read before anything else. So a change that was written unnoticed is found done.

        read ──────> READING ──record──> done
                      ^   │ with a change: as `change`
                 timer│   v
                   WAITING <──unavailable── WRITING ──committed──> done
                                             ^  │
                              change ────────┘  └─refused: change the record it is now

While there is business the member processes nothing else, so `done` finds it as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from warren.core.definitions.records import GroupRecord
from warren.mirror.gm.effects import Effect, ReadRecord, Transact

Change: TypeAlias = Callable[[Any], GroupRecord | None]
"""Gets the record, None if there is none; a deleted one is changed by `view.with_only` alone."""
Done: TypeAlias = Callable[[GroupRecord | None], None]


class RecordAccess:
    """Appends its effects to `effects`; `retry_later` is to cause a call of `retry`."""

    def __init__(self, effects: list[Effect], retry_later: Callable[[], None]) -> None:
        self._effects = effects
        self._retry_later = retry_later
        self._requests = 0
        self._request: int | None = None
        self._change: Change | None = None
        self._wanted: GroupRecord | None = None
        self._done: Done | None = None
        self._version: int | None = None

    @property
    def is_busy(self) -> bool:
        return self._done is not None

    def read(self, done: Done, version: int | None = None) -> None:
        """Read the record as it is now; or, in that version or a later one."""
        assert self._done is None
        self._done = done
        self._version = version
        self._read(version)

    def change(self, record: GroupRecord | None, change: Change, done: Done) -> None:
        """Change the record, known to have been this; `done` gets what it is in the end."""
        assert self._done is None
        self._done = done
        self._change = change
        self._try(record)

    def retry(self) -> None:
        if self._done is not None and self._request is None:
            self._read(None if self._change else self._version)

    def forget(self) -> None:
        """Have no business any more; late answers are ignored."""
        self._request = self._change = self._wanted = self._done = self._version = None

    # Answers

    def record_read(self, request: int, record: GroupRecord | None) -> None:
        if request == self._request:
            self._try(record) if self._change else self._finish(record)

    def committed(self, request: int) -> None:
        if request == self._request:
            self._finish(self._wanted)

    def refused(self, request: int, record: GroupRecord | None) -> None:
        if request == self._request:
            self._try(record)

    def unavailable(self, request: int) -> None:
        if request == self._request:
            self._request = None
            self._retry_later()

    def _read(self, version: int | None) -> None:
        self._effects.append(ReadRecord(self._next_request(), version))

    def _try(self, record: GroupRecord | None) -> None:
        assert self._change is not None
        wanted = self._change(record)
        if wanted is None or wanted is record:
            self._finish(record)
            return
        expected = 0 if record is None else record.version
        assert wanted.version == expected + 1, (record, wanted)
        self._wanted = wanted
        self._effects.append(Transact(self._next_request(), expected, wanted))

    def _finish(self, record: GroupRecord | None) -> None:
        done = self._done
        assert done is not None
        self.forget()
        done(record)

    def _next_request(self) -> int:
        self._requests += 1
        self._request = self._requests
        return self._requests
