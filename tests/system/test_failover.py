"""The leader of a mirrored queue is lost under load: nothing that was confirmed is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cut_network import CutNetwork, NoNamespaces
from failover import Ledger, fail_over, leader_of, prepare, put_policy
from running_cluster import LEASE_TTL_S, RunningCluster, wait_until

LEASES_END = True
"""Tests wait until the lease of a node ends."""


@pytest.mark.slow
def test_no_confirmed_message_is_lost_when_leaders_fail(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    prepare(cluster)
    ledger = Ledger(cluster, random.Random(1))
    ledger.start()
    for fault in ("kill", "stop", "pause", "kill"):
        fail_over(cluster, ledger, fault, LEASE_TTL_S)
    ledger.finish()
    assert len(ledger.confirmed) > 100
    assert not ledger.complaints()


def test_a_log_loses_nothing_with_its_leader_or_when_the_carrier_changes(
    running_cluster: RunningCluster,
) -> None:
    """Publisher and consumer are at other nodes than the leader that is killed."""
    cluster = running_cluster
    prepare(cluster, {"ha-replication": "log"})
    ledger = Ledger(cluster, random.Random(1))
    ledger.avoid = leader_of(cluster)
    ledger.start()
    ledger.wait_for_confirms(20)
    fail_over(cluster, ledger, "kill", LEASE_TTL_S)
    for carrier in ("gm", "log"):
        leader = leader_of(cluster)
        switched = leader.log.count("carrier_switched")
        put_policy(leader, "ha", "^ha", {"ha-mode": "all", "ha-replication": carrier})
        wait_until(lambda: leader.log.count("carrier_switched") > switched)  # noqa: B023
        ledger.wait_for_confirms(20)
    ledger.finish()
    assert not ledger.complaints()


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
