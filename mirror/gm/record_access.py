"""The one read or change of the group's record that a member has under way.

A change is a function from a record to the record wanted; it returns the same record when there is
nothing (more) to do. It is tried on the record as this member knows it. If another member has
changed the record meanwhile, it is tried again on the present record. After the answer
`unavailable`, which leaves open whether the record was written, the record is read first. So a
change that was written without an answer is found done.

        read ──────> READING ──record──> done
                      ^   │ with a change: as `change`
                 timer│   v
                   WAITING <──unavailable── WRITING ──committed──> done
                                             ^  │
                              change ────────┘  └─refused: change the record it is now

Until the read or change is done, the member processes nothing else, so its state is the same when
`done` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from warren.core.definitions.records import GroupRecord
from warren.mirror.gm.effects import Effect, ReadRecord, Transact

Change: TypeAlias = Callable[[Any], GroupRecord | None]
"""Gets the record, None if there is none; only `view.with_only` then makes a new one."""
Done: TypeAlias = Callable[[GroupRecord | None], None]


class RecordAccess:
    """Appends its effects to `effects`."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
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
        """Read the record as it is now, or, given a version, in that version or a later one."""
        assert self._done is None
        self._done = done
        self._version = version
        self._read(version)

    def change(self, record: GroupRecord | None, change: Change, done: Done) -> None:
        """Change the record, last known as `record`; `done` gets the record as it is in the end."""
        assert self._done is None
        self._done = done
        self._change = change
        self._try(record)

    def retry(self) -> None:
        if self._done is not None and self._request is None:
            self._read(None if self._change else self._version)

    def forget(self) -> None:
        """Give up the read or change under way; late answers are ignored."""
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

    def unavailable(self, request: int) -> bool:
        """Returns whether `retry` is to be called later."""
        if request != self._request:
            return False
        self._request = None
        return True

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
