"""What a node does of itself for thousands of mirrored queues: little, and not all in one turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from cluster import Cluster
from pamqp import commands

from warren.core.scheduling.turns import TURN_US
from warren.mirror.definitions.shared_definitions import SharedCommit, SharedDefinitions
from warren.mirror.replication.copies.copies_here import CopiesHere
from warren.mirror.replication.mirroring import LOOK_US, REST_TICKS, TICK_S, Mirroring

QUEUES = 400


def with_mirrored_queues(count: int, delay: Callable[[], float] = lambda: 0.0) -> Cluster:
    """With so many queues that are led at a and mirrored at b and c."""
    cluster = Cluster("a", "b", "c", delay=delay)
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"ha{number}", durable=True, arguments={})
    cluster.clock.advance(30)
    assert len(client.frames()) == count
    return cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return with_mirrored_queues(QUEUES)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that look at a queue, and what they turn to in between."""
    seen: list[str] = []

    def noting(kind: type[Mirroring | CopiesHere], name: str) -> None:
        looked: Callable[..., Any] = getattr(kind, name)

        def look(self: Mirroring | CopiesHere, item: Any) -> Any:
            seen.append(self._nodes.name)
            return looked(self, item)

        monkeypatch.setattr(kind, name, look)

    noting(Mirroring, "reconcile")
    noting(CopiesHere, "look_at")
    return seen


def test_queues_of_which_nothing_is_awaited_are_looked_at_in_shares(
    cluster: Cluster, looks: list[str]
) -> None:
    cluster.clock.advance(REST_TICKS * TICK_S)
    for node in "abc":
        assert QUEUES * 0.9 <= looks.count(node) <= QUEUES * 1.2


def test_a_change_of_policies_is_followed_in_turns(cluster: Cluster, looks: list[str]) -> None:
    a = cluster["a"]
    a.mirroring._policies_changed("/")
    at_once = looks.count("a")
    assert 0 < at_once <= TURN_US / LOOK_US + 1
    cluster.clock.advance(0)
    assert looks.count("a") >= QUEUES


def test_a_node_that_stops_looks_at_its_queues_no_more(cluster: Cluster, looks: list[str]) -> None:
    c = cluster["c"]
    c.mirroring._policies_changed("/")
    c.mirroring.stop_leading()
    looked = looks.count("c")
    cluster.clock.advance(2 * REST_TICKS * TICK_S)
    assert looks.count("c") == looked
    assert looks.count("a")


def test_a_failover_writes_three_definitions_a_queue_and_asks_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That a member died, that its messages have gone round, and who leads: what etcd is asked
    besides is what thousands of queues wait for."""
    queues = 50
    random = Random(1)
    longest_s = [0.0]
    cluster = with_mirrored_queues(queues, lambda: random.random() * longest_s[0])
    sent: list[SharedCommit] = []
    transact = SharedDefinitions.transact

    def noting(self: SharedDefinitions, *more: Any) -> Any:
        commit = transact(self, *more)
        sent.append(commit)
        return commit

    monkeypatch.setattr(SharedDefinitions, "transact", noting)
    longest_s[0] = 0.02
    cluster.kill("a")
    cluster.clock.advance(10)
    led = [queue_id for node in "bc" for queue_id in cluster[node].mirroring._led]
    assert len(led) == queues
    assert not any(commit.refused for commit in sent)
    assert len(sent) <= 3 * queues + 5
