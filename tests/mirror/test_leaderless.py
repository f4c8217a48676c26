"""What a queue waits for that no node leads, as operators are told."""

from __future__ import annotations

import pytest

from warren.core.definitions.records import QueueRecord, forgotten
from warren.mirror.replication.elections.leaderless import waits_for

LOST = "its leader is forgotten, and no copy that is left has all its messages"
ALWAYS = "a policy with ha-promote-on-failure: always, by which a mirror leads with what it has"


def record(leader: str, *in_sync: str, **more: object) -> QueueRecord:
    return QueueRecord(False, {}, 7, leader=leader, in_sync=list(in_sync), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queue", "promote", "text"),
    [
        (record("a"), "when-synced", "its leader a"),
        (
            record("a", "b", "c"),
            "always",
            "its leader a, or 1 of the nodes that have all its messages: b, c",
        ),
        (
            record("a", "b", "c", carrier="log", acks=2, members=["a", "b", "c"]),
            "when-synced",
            "its leader a, or 2 of the nodes that have all its messages: b, c",
        ),
        (
            record(forgotten("a"), "b", "c", carrier="log", acks=2),
            "always",
            "2 of the nodes that have all its messages: b, c",
        ),
        (
            record(forgotten("a"), mirrors=["b"]),
            "when-synced",
            f"its deletion, or {ALWAYS}: {LOST}",
        ),
        (record(forgotten("a"), mirrors=["b"]), "always", f"a mirror to take the lead: {LOST}"),
        (
            record(forgotten("a"), mirrors=["b"], members=["b"]),
            "when-synced",
            "all nodes that had a copy, of which the one that has most will lead: b",
        ),
        (
            record(forgotten("a"), former=["b", "c"]),
            "always",
            "all nodes that had a copy, of which the one that has most will lead: b, c",
        ),
    ],
)
def test_what_is_waited_for_is_told(queue: QueueRecord, promote: str, text: str) -> None:
    assert waits_for(queue, promote) == text
