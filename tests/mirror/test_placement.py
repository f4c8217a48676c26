"""Which node leads a new queue."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from cluster import Cluster, ClusterNode

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.mirror.replication.definition.replicas import Copies, WantedMirrors, wanted_mirrors


def leaders(
    cluster: Cluster, locator: str, *, exclusive: bool = False, node: str = "a"
) -> Counter[str]:
    """Of thirty queues that a client of a node has declared."""
    client = cluster[node].connects()
    client.opens_channel(1)
    arguments = {"x-queue-master-locator": Field("S", locator.encode())}
    found: Counter[str] = Counter()
    for number in range(30):
        client.declares(f"q{number}", arguments=arguments, exclusive=exclusive)
        found[record_of(cluster[node], f"q{number}").leader] += 1
    return found


def record_of(node: ClusterNode, queue: str) -> QueueRecord:
    stored = node.metadata.get(("queue", "/", queue))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def machine_of(name: str) -> str:
    """Nodes of one machine begin with the same letter."""
    return name[0]


def on_machines(*names: str) -> Cluster:
    return Cluster(*names, machine_of=machine_of)


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


class TestMachines:
    """Nodes a1 and a2 are processes of one machine."""

    def test_new_queues_are_spread_over_the_processes_of_the_client_s_machine(self) -> None:
        cluster = on_machines("a1", "a2", "b1")
        assert leaders(cluster, "client-local", node="a1") == {"a1": 15, "a2": 15}

    def test_exclusive_ones_stay_at_the_process_of_their_client(self) -> None:
        cluster = on_machines("a1", "a2")
        assert leaders(cluster, "client-local", exclusive=True, node="a1") == {"a1": 30}

    def test_a_quorum_queue_has_one_member_on_each_machine(self) -> None:
        cluster = on_machines("a1", "a2", "b1", "b2", "c1", "c2")
        client = cluster["a1"].connects()
        client.opens_channel(1)
        chosen = set()
        for number in range(20):
            quorum = {"x-queue-type": Field("S", b"quorum")}
            client.declares(f"q{number}", durable=True, arguments=quorum)
            members = record_of(cluster["a1"], f"q{number}").members
            assert sorted(member[0] for member in members) == ["a", "b", "c"]
            chosen |= set(members)
        assert chosen == {"a1", "a2", "b1", "b2", "c1", "c2"}

    @pytest.mark.parametrize(
        ("mode", "params", "mirrors", "chosen"),
        [
            ("all", None, (), {("b1", "c1"), ("b1", "c2"), ("b2", "c1"), ("b2", "c2")}),
            ("all", None, ("b2", "c1"), {("b2", "c1")}),
            ("exactly", 2, (), {("b1",), ("b2",), ("c1",), ("c2",)}),
            ("exactly", 3, ("b2",), {("b2", "c1"), ("b2", "c2")}),
            ("exactly", 9, ("b2", "c2"), {("b2", "c2")}),
            ("nodes", ["a1", "a2", "b2"], (), {("b2",)}),
            ("nodes", ["b1", "b2"], (), {("b1",), ("b2",)}),
            ("nodes", ["b1", "b2"], ("b1",), {("b1",)}),
        ],
    )
    def test_mirrors_are_on_machines_of_their_own(
        self, mode: str, params: object, mirrors: tuple[str, ...], chosen: set[tuple[str, ...]]
    ) -> None:
        wanted = WantedMirrors(mode, params)
        now = Copies("a1", mirrors, mirrors)
        nodes = ["a1", "a2", "b1", "b2", "c1", "c2"]
        found = {wanted_mirrors(wanted, now, nodes, Random(seed), machine_of) for seed in range(50)}
        assert {tuple(sorted(one)) for one in found} == chosen

    @pytest.mark.parametrize(
        ("params", "chosen"), [(2, {("b2",)}), (3, {("b2", "c1"), ("b2", "c2")})]
    )
    def test_nodes_that_had_a_copy_get_one_before_others(
        self, params: int, chosen: set[tuple[str, ...]]
    ) -> None:
        now = Copies("a1", (), (), ("b2",))
        nodes, wanted = ["a1", "a2", "b1", "b2", "c1", "c2"], WantedMirrors("exactly", params)
        found = {wanted_mirrors(wanted, now, nodes, Random(seed), machine_of) for seed in range(50)}
        assert found == chosen


def test_nodes_that_were_chosen_by_chance_are_not_chosen_anew() -> None:
    """They have been asked to have a mirror, and a declaration waits for them."""
    wanted, nodes = WantedMirrors("exactly", 3), [f"n{number}" for number in range(10)]
    chosen = wanted_mirrors(wanted, Copies("n0", [], [], ["n1", "n2"]), nodes[3:], Random(0))
    assert len(chosen) == 2
    for seed in range(20):
        now = Copies("n0", [], [], ["n1", "n2"], chosen)
        assert {*wanted_mirrors(wanted, now, nodes, Random(seed))} == {*chosen}


def test_of_a_machine_the_node_is_chosen_that_was_chosen_before_or_had_a_copy() -> None:
    nodes = ["a1", *[f"b{number}" for number in range(9)]]
    for now in (Copies("a1", [], [], ["b2", "b5"], ["b5"]), Copies("a1", [], [], ["b5"])):
        for seed in range(20):
            of_all = wanted_mirrors(
                WantedMirrors("all"), now, nodes, Random(seed), lambda node: node[0]
            )
            assert of_all == ("b5",)
