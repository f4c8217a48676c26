"""Which node leads a new queue."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster import Cluster

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field


def leaders(cluster: Cluster, locator: str, *, exclusive: bool = False) -> Counter[str]:
    """Of thirty queues that a client of node a has declared."""
    client = cluster["a"].connects()
    client.opens_channel(1)
    arguments = {"x-queue-master-locator": Field("S", locator.encode())}
    found: Counter[str] = Counter()
    for number in range(30):
        client.declares(f"q{number}", arguments=arguments, exclusive=exclusive)
        stored = cluster["a"].metadata.get(("queue", "/", f"q{number}"))
        assert stored is not None and isinstance(stored.record, QueueRecord)
        found[stored.record.leader] += 1
    return found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def test_min_masters_spreads_queues_evenly(cluster: Cluster) -> None:
    assert leaders(cluster, "min-masters") == {"a": 10, "b": 10, "c": 10}


def test_random_spreads_them_somehow(cluster: Cluster) -> None:
    found = leaders(cluster, "random")
    assert set(found) == {"a", "b", "c"}
    assert found != leaders(Cluster("a", "b", "c", seed=1), "random")


def test_client_local_and_exclusive_queues_are_at_the_node_of_the_client(cluster: Cluster) -> None:
    assert leaders(cluster, "client-local") == {"a": 30}
    assert leaders(Cluster("a", "b", "c"), "min-masters", exclusive=True) == {"a": 30}


@pytest.mark.parametrize("locator", ["min-masters", "random"])
def test_a_node_that_is_gone_leads_nothing_new(cluster: Cluster, locator: str) -> None:
    cluster.kill("b")
    cluster.settle()
    assert set(leaders(cluster, locator)) == {"a", "c"}
