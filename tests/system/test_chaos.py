"""Nodes, etcd and the network fail under load: the cluster rests then, with nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.run import Chaos

SEED = 2
ROUNDS = (33, 34, 36)
"""A node is cut off, where that can be; the leader is killed; etcd stands still."""


@pytest.mark.slow
def test_nothing_confirmed_is_lost_in_rounds_of_chaos(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, SEED)
    try:
        chaos.start(ROUNDS[0])
        for number in ROUNDS:
            happened, complaints = chaos.play(number)
            assert not complaints, happened
    finally:
        chaos.end()
