"""A leader dies, its heir dies soon after, and a mirror that lacks most of the queue leads.

Whatever the moment of the second death, and whoever is back first: what was confirmed, and not
acknowledged, is in the queue or in `lost+found` when all are back, and on some disk until then.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND

POLICY = {"ha-mode": "all", "ha-promote-on-failure": "always", "ha-sync-mode": "manual"}

MOMENTS = (0.0, 0.0005, 0.002, 0.005, 0.05, 0.3, 0.6, 0.95, 1.05, 2.1)
"""From when the heir leads by the definition to its death: cards took a millisecond to be safe and
were written once a second."""

RETURNS = (("a", "b"), ("b", "a"), ("ab",), ("a",), ("b",))
"""Who comes back, one step after the other."""


@pytest.fixture
def disks() -> dict[str, Disk]:
    return {}


class CarriedCluster(Cluster):
    """`carrier` is what all policies say of the way of batches to mirrors."""

    carrier: str

    def policy(self, definition: dict[str, Any]) -> dict[str, Any]:
        return {**definition, "ha-replication": self.carrier}


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest, disks: dict[str, Disk]) -> CarriedCluster:
    """Node a leads queue `q`, of which b has all and c only what comes."""
    cluster = CarriedCluster("a", "b", "c", new_backing=backings_on(disks), card_sync_s=0.001)
    cluster.carrier = request.param
    to_b = cluster.policy(
        {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-mode": "automatic"}
    )
    cluster["a"].node.policies.set("/", "q", "^q$", to_b, 0, "queues")
    client = client_at(cluster, "a")
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments={})
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    return cluster


def client_at(cluster: CarriedCluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def record(cluster: CarriedCluster, node: str = "c") -> QueueRecord:
    stored = cluster[node].metadata.get(("queue", "/", "q"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


class Publisher:
    """Publishes at one node, and knows what was confirmed to it."""

    def __init__(self, cluster: CarriedCluster, node: str) -> None:
        self.client = client_at(cluster, node)
        self.client.selects_confirms()
        self.published: list[bytes] = []

    def publishes(self, *bodies: bytes) -> None:
        for body in bodies:
            self.client.publishes("q", body, delivery_mode=2)
        self.published += bodies

    def confirmed(self) -> set[bytes]:
        found: set[bytes] = set()
        settled = 0
        for frame in self.client.frames():
            method = frame.method
            if isinstance(method, commands.Basic.Ack):
                first = settled if method.multiple else method.delivery_tag - 1
                found.update(self.published[first : method.delivery_tag])
                settled = max(settled, method.delivery_tag)
        return found


def c_begins(cluster: CarriedCluster) -> None:
    """Have c be a mirror that is not in sync."""
    cluster["a"].node.policies.set("/", "q", "^q$", cluster.policy(POLICY), 0, "queues")
    cluster.clock.advance(5)
    at = record(cluster)
    assert (at.leader, at.in_sync, sorted(at.mirrors)) == ("a", ["b"], ["b", "c"])


def dies(cluster: CarriedCluster, name: str) -> None:
    cluster.kill(name)


def b_leads(cluster: CarriedCluster) -> None:
    for _ in range(10_000):
        if record(cluster).leader == "b" and record(cluster, "b").leader == "b":
            return
        cluster.clock.advance(0.0005)
    raise AssertionError(record(cluster))


def c_leads(cluster: CarriedCluster) -> None:
    for name in "ab":
        cluster.tidy_after(name)
    cluster.clock.advance(10)
    at = record(cluster)
    assert (at.leader, at.epoch) == ("c", 2), at


def come_back(cluster: CarriedCluster, names: str) -> None:
    for name in names:
        cluster.restart(name)
    cluster.settle()
    for one in cluster.alive:
        for other in cluster.alive:
            if one < other and not cluster.are_connected(one, other):
                cluster.connect(one, other)
    cluster.clock.advance(15)


def bodies(cluster: CarriedCluster, queue: str) -> list[bytes]:
    if queue not in cluster["c"].vhost.queues:
        return []
    client = client_at(cluster, "c")
    found = []
    while (got := client.gets(queue)) is not None:
        found.append(got.body)
    client.vanishes()
    cluster.clock.advance(0.1)
    return found


def on_disk(cluster: CarriedCluster, disks: dict[str, Disk]) -> set[bytes]:
    """What the disks of nodes have."""
    return {
        message.body
        for disk in disks.values()
        for kept in disk.queues.values()
        for message in kept.values()
    }


def check_nothing_lost(
    cluster: CarriedCluster, disks: dict[str, Disk], confirmed: set[bytes]
) -> None:
    assert confirmed <= on_disk(cluster, disks), confirmed - on_disk(cluster, disks)
    if cluster.dead:
        return
    found = bodies(cluster, LOST_AND_FOUND)
    there = bodies(cluster, "q")
    assert confirmed <= {*found, *there}, sorted(confirmed - {*found, *there})
    assert len(found) == len(set(found)), "kept twice"
    assert not set(found) & set(there), "kept, though it is in the queue"


def comes_to_the_end(
    cluster: CarriedCluster, disks: dict[str, Disk], returns: tuple[str, ...], confirmed: set[bytes]
) -> None:
    c_leads(cluster)
    late = Publisher(cluster, "c")
    late.publishes(b"late")
    cluster.clock.advance(1)
    confirmed |= late.confirmed()
    assert b"late" in confirmed
    for names in returns:
        come_back(cluster, names)
        # As long as any former copy is kept that nobody asks for.
        cluster.clock.advance(90)
        check_nothing_lost(cluster, disks, confirmed)


@pytest.mark.parametrize("returns", RETURNS, ids="-".join)
@pytest.mark.parametrize("moment_s", MOMENTS)
def test_what_a_leader_and_its_heir_had_is_found(
    cluster: CarriedCluster, disks: dict[str, Disk], moment_s: float, returns: tuple[str, ...]
) -> None:
    a = Publisher(cluster, "a")
    a.publishes(*[b"%03d" % number for number in range(120)])
    cluster.clock.advance(1)
    c_begins(cluster)
    confirmed = a.confirmed()
    assert len(confirmed) == 120
    dies(cluster, "a")
    b_leads(cluster)
    cluster.clock.advance(moment_s)
    dies(cluster, "b")
    comes_to_the_end(cluster, disks, returns, confirmed)


@pytest.mark.parametrize("returns", RETURNS, ids="-".join)
def test_what_an_heir_had_is_found_though_no_mirrors_are_wanted_for_a_while(
    cluster: CarriedCluster, disks: dict[str, Disk], returns: tuple[str, ...]
) -> None:
    a = Publisher(cluster, "a")
    a.publishes(b"one", b"two")
    cluster.clock.advance(1)
    c_begins(cluster)
    confirmed = a.confirmed()
    dies(cluster, "a")
    b_leads(cluster)
    dies(cluster, "b")
    c_leads(cluster)
    cluster["c"].node.policies.clear("/", "q")
    cluster.clock.advance(3)
    assert not cluster["c"].mirroring._led
    cluster["c"].node.policies.set("/", "q", "^q$", cluster.policy(POLICY), 0, "queues")
    cluster.clock.advance(3)
    for names in returns:
        come_back(cluster, names)
        check_nothing_lost(cluster, disks, confirmed)


@pytest.mark.parametrize("is_heard_of", [True, False])
@pytest.mark.parametrize("moment_s", [0.0, 0.002, 0.05, 2.1])
@pytest.mark.parametrize("alone", ["a", "b"])
def test_one_copy_that_comes_back_is_enough(
    cluster: CarriedCluster, disks: dict[str, Disk], alone: str, moment_s: float, is_heard_of: bool
) -> None:
    """Though the other may be gone for ever; if it is back all the same, nothing comes twice."""
    a = Publisher(cluster, "a")
    a.publishes(*[b"%03d" % number for number in range(300)])
    cluster.clock.advance(1)
    c_begins(cluster)
    confirmed = a.confirmed()
    b = Publisher(cluster, "b")
    dies(cluster, "a")
    if not is_heard_of:
        cluster.stall("b", "c")
    b_leads(cluster)
    b.publishes(b"heir")
    cluster.clock.advance(moment_s)
    by_heir = b.confirmed()
    dies(cluster, "b")
    c_leads(cluster)
    come_back(cluster, alone)
    cluster.clock.advance(LATE_S + 60)
    found, there = bodies(cluster, LOST_AND_FOUND), bodies(cluster, "q")
    assert confirmed | by_heir <= {*found, *there}
    come_back(cluster, "b" if alone == "a" else "a")
    cluster.clock.advance(LATE_S + 60)
    check_nothing_lost(cluster, disks, confirmed | by_heir)


@pytest.mark.parametrize("returns", RETURNS, ids="-".join)
def test_what_a_leader_and_its_mirror_in_sync_had_is_found(
    cluster: CarriedCluster, disks: dict[str, Disk], returns: tuple[str, ...]
) -> None:
    """They die together; either disk is enough, and both have it once."""
    a = Publisher(cluster, "a")
    a.publishes(*[b"%03d" % number for number in range(300)])
    cluster.clock.advance(1)
    c_begins(cluster)
    confirmed = a.confirmed()
    for name in "ab":
        dies(cluster, name)
        cluster.tidy_after(name)
    cluster.clock.advance(10)
    assert record(cluster).leader == "c"
    for names in returns:
        come_back(cluster, names)
        cluster.clock.advance(LATE_S + 60)
        assert confirmed <= {*bodies(cluster, LOST_AND_FOUND), *bodies(cluster, "q")}
        check_nothing_lost(cluster, disks, confirmed)


@pytest.mark.parametrize("last", ["a", "b"])
def test_what_was_consumed_since_a_node_went_is_not_found_on_it(
    cluster: CarriedCluster, disks: dict[str, Disk], last: str
) -> None:
    """The copy of the node that went first waits for that of the last leader with all."""
    first = "b" if last == "a" else "a"
    publisher = Publisher(cluster, last)
    publisher.publishes(b"consumed", b"left")
    cluster.clock.advance(2)
    dies(cluster, first)
    cluster.tidy_after(first)
    cluster.clock.advance(5)
    cluster[last].node.policies.set("/", "q", "^q$", cluster.policy(POLICY), 0, "queues")
    cluster.clock.advance(5)
    got = client_at(cluster, last).gets("q", no_ack=True)
    assert got is not None and got.body == b"consumed"
    cluster.clock.advance(1)
    dies(cluster, last)
    cluster.tidy_after(last)
    cluster.clock.advance(10)
    assert record(cluster).leader == "c"
    come_back(cluster, first)
    cluster.clock.advance(90)
    assert not bodies(cluster, LOST_AND_FOUND)
    come_back(cluster, last)
    cluster.clock.advance(30)
    assert bodies(cluster, LOST_AND_FOUND) == [b"left"]
    cluster.clock.advance(LATE_S)
    assert bodies(cluster, LOST_AND_FOUND) == [b"left"]


def test_an_heir_leads_on_that_is_to_have_no_mirrors(cluster: CarriedCluster) -> None:
    client = client_at(cluster, "b")
    cluster.card_sync_s = 0.5
    dies(cluster, "a")
    b_leads(cluster)
    cluster["b"].node.policies.clear("/", "q")
    cluster.clock.advance(0.1)
    client.publishes("q", b"held", delivery_mode=2)
    assert not len(cluster["b"].queue("q"))
    cluster.clock.advance(1)
    assert not cluster["b"].mirroring._led
    got = client.gets("q", no_ack=True)
    assert got is not None and got.body == b"held"


def test_an_heir_confirms_and_hands_out_nothing_before_its_card_is_on_disk(
    cluster: CarriedCluster,
) -> None:
    a, b = Publisher(cluster, "a"), Publisher(cluster, "b")
    a.publishes(b"before")
    cluster.clock.advance(1)
    consumer = client_at(cluster, "b")
    cluster.card_sync_s = 0.5
    dies(cluster, "a")
    b_leads(cluster)
    b.publishes(b"after")
    consumer.consumes("q", no_ack=True)
    cluster.clock.advance(0.45)
    assert not b.confirmed()
    assert not consumer.frames()
    cluster.clock.advance(0.1)
    assert b.confirmed() == {b"after"}
    for body in (b"before", b"after"):
        assert consumer.receives_content(commands.Basic.Deliver).body == body


@pytest.mark.parametrize("returns", RETURNS, ids="-".join)
@pytest.mark.parametrize("moment_s", MOMENTS)
def test_what_an_heir_has_confirmed_is_found(
    cluster: CarriedCluster, disks: dict[str, Disk], moment_s: float, returns: tuple[str, ...]
) -> None:
    a = Publisher(cluster, "a")
    a.publishes(*[b"%03d" % number for number in range(50)])
    cluster.clock.advance(1)
    c_begins(cluster)
    confirmed = a.confirmed()
    b = Publisher(cluster, "b")
    dies(cluster, "a")
    b_leads(cluster)
    for number in range(5):
        b.publishes(b"heir %d" % number)
        cluster.clock.advance(moment_s / 5)
    confirmed |= b.confirmed()
    dies(cluster, "b")
    assert moment_s < 1 or b"heir 0" in confirmed
    comes_to_the_end(cluster, disks, returns, confirmed)
