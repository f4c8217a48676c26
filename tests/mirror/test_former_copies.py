"""Nodes that come back keep what they have of mirrored queues, and are sent the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from cluster import Cluster, FakeCardFiles
from cluster_checks import check_mirrors
from cluster_disk import Disk, backings_on
from pamqp import commands

from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import Envelope, Message
from warren.mirror.replication.copies import former_copy
from warren.mirror.replication.copies.copy_cards import COPY_BIT, Card, leftover_rule
from warren.mirror.replication.copies.former_copies import FORMER_S, FormerCopies
from warren.mirror.replication.leading import leader_calls
from warren.mirror.replication.leading.known_copy import KnownCopy
from warren.mirror.replication.leading.slice_writing import SliceWriter
from warren.mirror.replication.levels.instructions import Script
from warren.mirror.replication.levels.leader_level import LeaderLevel

BODY = bytes(1000)


class CountingLinks:
    """Octets that were carried to each node."""

    def __init__(self, cluster: Cluster) -> None:
        self.octets: dict[str, int] = {}
        carry = cluster.carry

        def counted(node: str, peer: str, frame: tuple[int, bytes]) -> None:
            self.octets[peer] = self.octets.get(peer, 0) + len(frame[1])
            carry(node, peer, frame)

        cluster.carry = counted  # type: ignore[method-assign]


@pytest.fixture
def disks() -> dict[str, Disk]:
    return {}


@pytest.fixture
def cluster(disks: dict[str, Disk]) -> Cluster:
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks))
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^ha", policy, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    return cluster


def record(cluster: Cluster, node: str) -> QueueRecord:
    stored = cluster[node].metadata.get(("queue", "/", "ha"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def publish(cluster: Cluster, node: str, numbers: range, **more: Any) -> None:
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    for number in numbers:
        client.publishes("ha", b"%6d" % number + BODY, delivery_mode=2, **more)
    cluster.clock.advance(0.5)
    assert client.receives(commands.Basic.Ack).delivery_tag


def come_back(cluster: Cluster, name: str) -> None:
    cluster.restart(name)
    cluster.clock.advance(0.1)
    for other in cluster.alive:
        if other != name:
            cluster.connect(name, other)
    cluster.clock.advance(10)


def numbers_in(cluster: Cluster, node: str) -> list[int]:
    client = cluster[node].connects()
    client.opens_channel(1)
    found = []
    while (got := client.gets("ha", no_ack=True)) is not None:
        found.append(int(got.body[:6]))
    return found


def test_a_mirror_that_comes_back_is_sent_what_came_meanwhile(cluster: Cluster) -> None:
    publish(cluster, "a", range(300))
    cluster.clock.advance(2)
    cluster.kill("b")
    cluster.clock.advance(3)
    publish(cluster, "a", range(300, 310))
    client = cluster["c"].connects()
    client.opens_channel(1)
    for _ in range(5):
        client.gets("ha", no_ack=True)
    links = CountingLinks(cluster)
    come_back(cluster, "b")
    assert "b" in record(cluster, "a").in_sync
    # The new ones, and not the 300 KB that are there.
    assert 10_000 < links.octets["b"] < 40_000, links.octets
    cluster.kill("a")
    cluster.kill("c")
    cluster.clock.advance(5)
    assert record(cluster, "b").leader == "b"
    assert numbers_in(cluster, "b") == list(range(5, 310))


class EarlierKept(NamedTuple):
    """What leaders read before some copies stayed in place."""

    epoch: int
    ranges: Any
    safe_only: bool
    at_a_time = former_copy.KEEP_COUNT
    in_place = False


def test_a_leader_of_an_earlier_version_reads_what_a_mirror_has(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_calls, "Kept", EarlierKept)
    publish(cluster, "a", range(300))
    cluster.kill("b")
    cluster.clock.advance(3)
    links = CountingLinks(cluster)
    come_back(cluster, "b")
    assert "b" in record(cluster, "a").in_sync
    assert links.octets["b"] < 40_000, links.octets


class NotGoneThrough(dict[int, Message]):
    """Messages by position, which nobody may go through one after the other."""

    def items(self) -> Any:
        raise AssertionError("all were looked at")

    values = keys = __iter__ = items


def test_a_mirror_that_comes_back_to_many_messages_out_is_told_of_a_share_at_a_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at all of them for each share would take hours with a million."""
    monkeypatch.setattr(former_copy, "KEEP_COUNT", 8)
    publish(cluster, "a", range(60))
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sets_prefetch(50)
    client.sends(commands.Basic.Consume, queue="ha", consumer_tag="c")
    cluster.clock.advance(1)
    cluster.kill("c")
    cluster.clock.advance(5)
    led = cluster["a"].mirroring.led(record(cluster, "a").queue_id)
    assert led is not None
    level = led.leader.levels[0]
    assert len(level.pending) == 50
    shares: list[int] = []
    write = SliceWriter.write

    def write_watched(
        self: SliceWriter, level: LeaderLevel, number: int, copy: KnownCopy, start: int
    ) -> tuple[Script, int]:
        before, there = copy.sent, level.pending
        level.pending = NotGoneThrough(there)
        written = write(self, level, number, copy, start)
        level.pending = there
        shares.append(copy.sent - before)
        return written

    monkeypatch.setattr(SliceWriter, "write", write_watched)
    come_back(cluster, "c")
    cluster.clock.advance(5)
    assert sorted(record(cluster, "a").in_sync) == ["b", "c"]
    assert sum(shares) == 60 and max(shares) <= 16
    assert len(list(check_mirrors(cluster))) == 2


def test_a_leader_that_comes_back_as_a_mirror_keeps_what_the_next_one_has(
    cluster: Cluster,
) -> None:
    publish(cluster, "a", range(200))
    cluster.clock.advance(2)
    cluster.kill("a")
    cluster.clock.advance(5)
    links = CountingLinks(cluster)
    come_back(cluster, "a")
    leader = record(cluster, "b").leader
    assert "a" in record(cluster, "b").in_sync
    assert links.octets["a"] < 20_000, links.octets
    publish(cluster, leader, range(200, 205))
    for other in ("b", "c"):
        cluster.kill(other)
    cluster.clock.advance(5)
    assert numbers_in(cluster, "a") == list(range(205))


def test_what_only_the_former_leader_has_does_not_come_back(
    cluster: Cluster, disks: dict[str, Disk]
) -> None:
    """MS27: it was never confirmed, and the queue has gone on without it."""
    publish(cluster, "a", range(3))
    cluster.clock.advance(2)
    for other in ("b", "c"):
        # The leader notices nothing.
        notices = iter((100.0, 0.0))
        cluster.cut("a", other, notice_s=lambda notices=notices: next(notices))
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    for number in range(90, 95):
        client.publishes("ha", b"%6d" % number + BODY, delivery_mode=2)
    cluster.clock.advance(0.5)
    assert not [f for f in client.frames() if isinstance(f.method, commands.Basic.Ack)]
    cluster.kill("a")
    cluster.clock.advance(5)
    leader = record(cluster, "b").leader
    publish(cluster, leader, range(3, 8))
    come_back(cluster, "a")
    assert "a" in record(cluster, "b").in_sync
    for other in ("b", "c"):
        cluster.kill(other)
    cluster.clock.advance(5)
    assert numbers_in(cluster, "a") == list(range(8))


def test_all_nodes_may_come_back_one_after_the_other(cluster: Cluster) -> None:
    publish(cluster, "a", range(100))
    cluster.clock.advance(2)
    links = CountingLinks(cluster)
    for turn, name in enumerate(("a", "b", "c", "a", "b", "c")):
        cluster.kill(name)
        cluster.clock.advance(5)
        come_back(cluster, name)
        first = 100 + turn
        publish(cluster, name, range(first, first + 1))
        assert sorted(record(cluster, name).in_sync) == sorted(
            {"a", "b", "c"} - {record(cluster, name).leader}
        )
    assert max(links.octets.values()) < 100_000, links.octets
    assert numbers_in(cluster, "b") == list(range(106))


def test_an_unreadable_card_costs_a_synchronisation(cluster: Cluster) -> None:
    publish(cluster, "a", range(50))
    cluster.clock.advance(2)
    cluster.kill("b")
    cards = cluster.cards["b"]
    assert cards
    for storage_id in cards:
        cards[storage_id] = b"no card"
    cluster.clock.advance(3)
    links = CountingLinks(cluster)
    come_back(cluster, "b")
    assert "b" in record(cluster, "a").in_sync
    assert links.octets["b"] > 50_000
    cluster.kill("a")
    cluster.kill("c")
    cluster.clock.advance(5)
    assert numbers_in(cluster, "b") == list(range(50))


def test_a_storage_that_lacks_what_its_card_promises_is_left_alone(
    cluster: Cluster, disks: dict[str, Disk]
) -> None:
    publish(cluster, "a", range(50))
    cluster.clock.advance(2)
    cluster.kill("b")
    (kept,) = [kept for kept in disks["b"].queues.values() if kept]
    del kept[sorted(kept)[20]]
    cluster.clock.advance(3)
    come_back(cluster, "b")
    cluster.clock.advance(10)
    assert "b" in record(cluster, "a").in_sync
    cluster.kill("a")
    cluster.kill("c")
    cluster.clock.advance(5)
    assert numbers_in(cluster, "b") == list(range(50))


def test_nothing_is_left_of_a_former_copy_nobody_wants(
    cluster: Cluster, disks: dict[str, Disk]
) -> None:
    publish(cluster, "a", range(5))
    cluster.clock.advance(2)
    cluster.kill("b")
    cluster["a"].node.policies.clear("/", "ha")
    cluster.clock.advance(3)
    come_back(cluster, "b")
    assert cluster.cards["b"]
    cluster.clock.advance(70)
    assert not cluster.cards["b"]
    assert not disks["b"].queues


def test_a_queue_that_is_deleted_meanwhile_leaves_nothing(
    cluster: Cluster, disks: dict[str, Disk]
) -> None:
    publish(cluster, "a", range(5))
    cluster.clock.advance(2)
    cluster.kill("b")
    cluster.clock.advance(3)
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Delete, queue="ha")
    cluster.clock.advance(1)
    come_back(cluster, "b")
    assert not cluster.cards["b"] and not cluster.cards["a"]


STORAGE, OTHER = COPY_BIT | 512, COPY_BIT | 768
"""Ids of two copies that a node has of one queue, which it leads with the second."""


@pytest.mark.parametrize("led", [False, True])
def test_an_older_copy_of_a_queue_that_is_led_here_does_not_stay(led: bool) -> None:
    """As when its node died after it had taken the lead, and before the older copy was removed."""
    card = Card(256, 1, [0], 1, [], led)
    stored = {STORAGE: msgspec.msgpack.encode(card)}
    cluster = Cluster("a")
    files = FakeCardFiles(stored, cluster["a"].clock, lambda: 0.0)  # type: ignore[arg-type]
    formers = FormerCopies("a", files, cluster.clock)
    record = QueueRecord(False, {}, 256, leader="a", epoch=2 if led else 1, stores={"a": OTHER})
    opened: list[MemoryQueue] = []

    def new_backing(_: BackingSpec) -> MemoryQueue:
        opened.append(MemoryQueue())
        opened[-1].publish(Envelope("", "q", b"", True, 0, None), BODY, None, None, 0)
        return opened[-1]

    formers.find([record], new_backing, lambda storage_id: False)
    (searched,) = formers.to_search().get(256, [None])
    if led:
        # Others may lack what it has.
        assert searched is not None and stored
        formers.searched(searched, 1)
    cluster.settle()
    assert not stored and not opened[0].length


def test_copies_of_a_queue_that_is_deleted_are_left_over() -> None:
    """Its definition may have named them at an earlier time only: their cards name the queue."""
    cards = {
        storage_id: msgspec.msgpack.encode(Card(queue_id, 1, [0], 1, []))
        for storage_id, queue_id in ((STORAGE, 256), (OTHER, 512), (COPY_BIT | 1024, 1280))
    }
    cards[COPY_BIT | 1536] = b"damaged"
    is_leftover = leftover_rule({512}, cards, {256, 512}.__contains__)
    assert is_leftover(STORAGE)
    # One queue is there; of the other it is not known that it was deleted.
    assert not is_leftover(OTHER) and not is_leftover(COPY_BIT | 1024)
    assert not is_leftover(COPY_BIT | 1536) and not is_leftover(1792)
    # Storages that are not in use: of deleted queues, of other nodes' queues, of unfinished copies.
    assert is_leftover(256) and is_leftover(512) and is_leftover(COPY_BIT | 2048)


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_former_copy_is_kept_while_only_the_leader_has_a_whole_one(is_needed: bool) -> None:
    cluster = Cluster("a")
    stored = {STORAGE: msgspec.msgpack.encode(Card(256, 1, [0], 1, []))}
    files = FakeCardFiles(stored, cluster["a"].clock, lambda: 0.0)  # type: ignore[arg-type]
    formers = FormerCopies("a", files, cluster.clock)
    in_sync = [] if is_needed else ["c"]
    record = QueueRecord(False, {}, 256, leader="b", epoch=1, in_sync=in_sync, former=["a"])
    formers.find([record], lambda _: MemoryQueue(), lambda storage_id: False)
    for _ in range(5):
        cluster.clock.advance(FORMER_S)
        formers.discard_unwanted([record], ["b", "c"])
    assert (formers.of_queue(256) is not None) == bool(stored) == is_needed
