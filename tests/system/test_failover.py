"""The leader of a mirrored queue is lost under load: nothing that was confirmed is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cut_network import CutNetwork, NoNamespaces
from failover import Ledger, fail_over, prepare
from running_cluster import LEASE_TTL_S, RunningCluster


@pytest.mark.slow
def test_no_confirmed_message_is_lost_when_leaders_fail(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path, "a", "b", "c")
    try:
        cluster.start()
        prepare(cluster)
        ledger = Ledger(cluster, random.Random(1))
        ledger.start()
        for fault in ("kill", "stop", "pause", "kill"):
            fail_over(cluster, ledger, fault, LEASE_TTL_S)
        ledger.finish()
        assert len(ledger.confirmed) > 100
        assert not ledger.complaints()
    finally:
        cluster.end()


@pytest.mark.slow
def test_a_leader_that_is_cut_off_confirms_nothing_and_nothing_is_lost(tmp_path: Path) -> None:
    try:
        network = CutNetwork("a", "b", "c")
    except NoNamespaces as error:
        pytest.skip(str(error))
    cluster = RunningCluster(tmp_path, "a", "b", "c", network=network)
    try:
        cluster.start()
        prepare(cluster)
        ledger = Ledger(cluster, random.Random(1))
        ledger.start()
        for _ in range(2):
            fail_over(cluster, ledger, "cut", LEASE_TTL_S)
        ledger.finish()
        assert len(ledger.confirmed) > 100 and ledger.published_cut_off > 10
        assert not ledger.complaints()
    finally:
        cluster.end()
