"""Why a queue has another leader: every reason is told, and counted as what it is."""

from __future__ import annotations

import pytest

from warren.mirror.replication.definition.promotion import (
    LEADER_BACK,
    handed_over,
    leader_down,
    promotion,
)

ODD = "is down@host has handed it over"


@pytest.mark.parametrize("leader", ["rabbit@a", ODD, "x is down"])
def test_every_reason_is_counted_as_what_it_is(leader: str) -> None:
    assert promotion(leader_down(leader, in_sync=True)) == "leader_down"
    assert promotion(leader_down(leader, in_sync=False)) == "leader_down_not_in_sync"
    without_votes = leader_down(leader, in_sync=True, has_votes=False)
    assert promotion(without_votes) == "leader_down_not_in_sync"
    assert promotion(handed_over(leader)) == "handed_over"
    assert promotion(LEADER_BACK) == "leader_back"
