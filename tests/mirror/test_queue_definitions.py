"""Changes of the definitions of queues, when the node stops before they are written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Key, Stored
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.persist.disk.group_commit import PendingCommit

KEY: Key = ("queue", "/", "q")


class SlowStore:
    """Has one queue, and writes when it is told."""

    def __init__(self) -> None:
        self.commits: list[PendingCommit] = []

    def get(self, key: Key) -> Stored:
        return Stored(key, QueueRecord(False, {}, 256), 1)

    def transact(self, writes: object, preconditions: object) -> PendingCommit:
        self.commits.append(PendingCommit())
        return self.commits[-1]


@pytest.mark.parametrize("stops", [False, True])
def test_what_is_written_after_a_stop_has_no_consequences(stops: bool) -> None:
    store = SlowStore()
    definitions = QueueDefinitions(cast("Any", store), cast("Any", None))
    written: list[str] = []
    definitions.write_record(KEY, 256, lambda record: record, lambda: written.append("then"))
    if stops:
        definitions.stop()
    store.commits[0].complete()
    assert written == ([] if stops else ["then"])
