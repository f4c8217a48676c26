"""The report of `warren migrate`, as text and as JSON."""

from __future__ import annotations

from warren.mgmt.migrate.definitions import Fate, ItemOutcome
from warren.mgmt.migrate.report import (
    all_taken,
    as_json,
    definitions_text,
    messages_text,
    progress_text,
)
from warren.mgmt.migrate.run import MigrationProgress, QueueResult

OUTCOMES = [
    ItemOutcome("queues", ("/", "a"), Fate.TAKEN),
    ItemOutcome("queues", ("/", "b"), Fate.SAME),
    ItemOutcome("queues", ("/", "s"), Fate.REFUSED, "a stream"),
    ItemOutcome("global_parameters", ("cluster_name",), Fate.LEFT, "the target stays itself"),
]


def test_definitions_are_counted_and_those_that_are_not_taken_named() -> None:
    assert definitions_text(OUTCOMES, dry_run=False) == [
        "queues: 1 taken, 1 there already, 1 refused",
        "global parameters: 0 taken, 0 there already, 1 left",
        "refused: queues '/' 's': a stream",
        "left: global_parameters 'cluster_name': the target stays itself",
    ]
    assert definitions_text(OUTCOMES[:1], dry_run=True) == [
        "queues: 1 to be taken, 0 there already"
    ]


def test_only_a_refusal_means_that_not_all_was_taken() -> None:
    assert not all_taken(OUTCOMES)
    assert all_taken([one for one in OUTCOMES if one.fate is not Fate.REFUSED])


def test_queue_is_told_with_counts_of_both_sides_and_what_may_be_doubled() -> None:
    result = QueueResult("/", "q", 5, 1, 2, None, unacked=1, moved=3, reason="it broke")
    result.doubtful, result.doubtful_ids = 2, ["m1"]
    empty = QueueResult("/", "empty", 0, 0, 0, 0)
    assert messages_text([result, empty], 2.0) == [
        "messages: 3 moved in 2.0 s, from 2 queues",
        "  / q: 3 moved; source 5 -> 2, target 1 -> unknown; 1 with clients of the source, not"
        " acknowledged; left: it broke; 2 may be at both brokers (ids m1, ...)",
    ]
    assert empty.all_moved
    assert not result.all_moved


def test_empty_queue_that_is_left_as_a_rule_leaves_nothing_behind() -> None:
    left = QueueResult("/", "q", 0, source_after=0, reason="exclusive", left_as_rule=True)
    assert left.all_moved
    assert "left: exclusive" in messages_text([left], 1.0)[1]
    left.source_after = 1
    assert not left.all_moved


def test_progress_has_the_rate_and_the_time_left() -> None:
    said = progress_text(MigrationProgress("q", 3000, 6000), 1.5)
    assert said == "3,000 messages moved, 2,000/s, 6,000 to go, 3 s left: q"


def test_json_has_what_was_looked_at_only() -> None:
    assert as_json(None, None, None, complete=False, error="no node") == {
        "complete": False,
        "error": "no node",
    }
    result = QueueResult("/", "q", moved=1)
    found = as_json(OUTCOMES[:1], None, [result], complete=True)
    assert found["definitions"] == [
        {"section": "queues", "identity": ["/", "a"], "fate": "taken", "reason": ""}
    ]
    assert (found["queues"][0]["moved"], found["queues"][0]["all_moved"]) == (1, True)
