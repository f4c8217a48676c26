"""Who is elected among the mirrors of a queue that is carried by a log."""

from __future__ import annotations

import pytest

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.definition.confirm_rule import ALL
from warren.mirror.replication.elections.election import (
    Answer,
    CandidateCopy,
    Electorate,
    Vote,
    decide,
)


def record(acks: int, *in_sync: str) -> QueueRecord:
    mirrors = list(in_sync)
    return QueueRecord(
        False, {}, 0x100, leader="a", mirrors=mirrors, in_sync=mirrors, carrier="log", acks=acks
    )


def follows(epoch: int, batch: int, *positions: int) -> CandidateCopy:
    return CandidateCopy((epoch, batch), positions or (0,))


def on_disk(epoch: int, *positions: int) -> CandidateCopy:
    return CandidateCopy((epoch, 0), positions, from_disk=True)


@pytest.mark.parametrize(
    ("acks", "answers", "winner"),
    [
        pytest.param(2, {"b": follows(1, 5), "c": follows(1, 6)}, "c", id="who has most"),
        pytest.param(2, {"b": follows(1, 9), "c": follows(2, 1)}, "c", id="of the last epoch"),
        pytest.param(2, {"b": follows(1, 5), "c": follows(1, 5)}, "b", id="the oldest of equals"),
        pytest.param(2, {"b": follows(1, 5), "c": Vote.NONE}, None, id="too few votes"),
        pytest.param(2, {"b": follows(1, 5), "c": Vote.LEADER_LIVES}, None, id="the leader lives"),
        pytest.param(ALL, {"b": follows(1, 5), "c": on_disk(1, 90)}, "b", id="all: who followed"),
        pytest.param(ALL, {"c": on_disk(1, 90)}, "c", id="all: from disk if nobody followed"),
        pytest.param(2, {"b": on_disk(1, 80), "c": on_disk(1, 90)}, "c", id="from disk"),
        pytest.param(
            2, {"b": follows(1, 5, 80), "c": on_disk(1, 90)}, "c", id="both, disk has more"
        ),
        pytest.param(
            2, {"b": follows(1, 5, 90), "c": on_disk(1, 80)}, "b", id="both, disk has less"
        ),
        pytest.param(2, {"b": follows(1, 5, 99), "c": on_disk(2, 80)}, "c", id="disk is of later"),
        pytest.param(2, {"c": on_disk(1, 90)}, None, id="too few on disk"),
        pytest.param(
            2, {"b": on_disk(1, 80, 7), "c": on_disk(1, 90, 9)}, "c", id="more in each level"
        ),
        pytest.param(
            2, {"b": on_disk(1, 80, 9), "c": on_disk(1, 90, 7)}, None, id="each has more of a level"
        ),
    ],
)
def test_of_three_copies(acks: int, answers: dict[str, Answer], winner: str | None) -> None:
    result = decide(record(acks, "b", "c"), answers)
    assert result.winner == winner
    assert bool(result.why_not) == (winner is None)


def test_copies_on_disk_vote_only_where_others_are_not_enough() -> None:
    answers: dict[str, Answer] = {
        "b": follows(1, 5, 80),
        "c": follows(1, 6, 81),
        "d": follows(1, 4, 70),
        "e": on_disk(1, 99),
    }
    assert decide(record(3, "b", "c", "d", "e"), answers).winner == "c"


def test_dead_copies_that_are_given_up_need_not_vote() -> None:
    answers: dict[str, Answer] = {"b": on_disk(1, 80)}
    result = decide(record(2, "b", "c"), answers, given_up=1)
    assert (result.winner, result.electorate) == ("b", Electorate.LACKING)
    assert decide(record(ALL, "b", "c"), answers, given_up=1).electorate is Electorate.ENOUGH


def test_copies_on_disk_do_not_know_what_was_handed_out() -> None:
    """Copy c heard of everything and was started again; b, which lacks the most, leads."""
    answers: dict[str, Answer] = {"b": follows(1, 4, 80), "c": on_disk(1, 0)}
    result = decide(record(2, "b", "c"), answers)
    assert (result.winner, result.electorate) == ("b", Electorate.FROM_DISK)
    answers["d"] = follows(1, 6, 85)
    result = decide(record(3, "b", "c", "d"), answers)
    assert (result.winner, result.electorate) == ("d", Electorate.ENOUGH)
    answers = {"c": on_disk(1, 0)}
    assert decide(record(ALL, "b", "c"), answers).electorate is Electorate.ENOUGH
