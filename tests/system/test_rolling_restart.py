"""A rolling restart under load: nothing that was confirmed is lost, and the queue goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from failover import Ledger, prepare
from rolling_restart import lost_of_backlog, pile_up, roll
from running_cluster import PATIENT, RunningCluster

OUTAGE_S_MAX = 10.0
"""A failover takes a fraction of it; the machine may be busy."""


BACKLOG = 500
CONFIRMED = 100
"""More messages than so many are confirmed while nodes are restarted."""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False], ids=["waiting for mirrors", "without waiting"])
def test_a_rolling_restart_loses_no_confirmed_message(tmp_path: Path, wait: bool) -> None:
    cluster = RunningCluster(tmp_path, "a", "b", "c", more=PATIENT)
    try:
        cluster.start()
        prepare(cluster)
        pile_up(cluster, BACKLOG)
        ledger = Ledger(cluster, random.Random(1))
        ledger.start()
        steps = list(roll(cluster, ledger, wait=wait))
        # Nodes that are not waited for may be back before so many messages are under way.
        while len(ledger.confirmed) <= CONFIRMED:
            steps += roll(cluster, ledger, wait=wait)
        ledger.finish()
        assert not ledger.complaints() + lost_of_backlog(cluster, BACKLOG)
        if wait:
            assert any(step.led for step in steps)
            assert max(step.outage_s for step in steps) < OUTAGE_S_MAX
    finally:
        cluster.end()
