"""Nodes, etcd and the network fail in turns, under load: nothing that was confirmed is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.run import Chaos

SEED = 1


@pytest.mark.parametrize("rounds", [range(3)], ids=["three rounds"])
def test_a_cluster_rests_with_nothing_lost_after_a_round_of_chaos(
    tmp_path: Path, rounds: range
) -> None:
    chaos = Chaos(tmp_path, SEED)
    try:
        chaos.start(rounds[0])
        for number in rounds:
            happened, complaints = chaos.play(number)
            assert not complaints, happened
    finally:
        chaos.end()
