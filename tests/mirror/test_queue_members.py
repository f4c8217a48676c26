"""Quorum queues in clusters of three nodes: what their members have, and who leads when."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from cluster_disk import Disk, backings_on
from pamqp import commands
from quorum_cluster import QUORUM, QuorumCluster, bodies, cluster_of, confirmed, declared, got

from warren.core.definitions.records import QueueRecord
from warren.core.field import long, longstr
from warren.core.scheduling.waiting import run
from warren.mgmt.definitions.importer import Importer
from warren.mirror.replication.definition.replicas import SyncLimits, WantedMirrors

ORDINARY = WantedMirrors.of_members


def of_members(
    members: list[str], leader: str, limits: SyncLimits, gap_bytes_max: int
) -> WantedMirrors:
    return ORDINARY(members, leader, limits)._replace(gap_bytes_max=gap_bytes_max)


@pytest.fixture
def cluster() -> QuorumCluster:
    cluster = cluster_of("a", "b", "c")
    declared(cluster)
    return cluster


def test_a_queue_has_three_members_at_first(cluster: QuorumCluster) -> None:
    record = cluster.record()
    assert (record.carrier, record.leader, record.acks) == ("log", "a", 2)
    assert sorted(record.members) == ["a", "b", "c"]
    assert sorted(record.in_sync) == ["b", "c"]


def test_a_queue_has_as_many_members_as_it_asks_for(cluster: QuorumCluster) -> None:
    declared(cluster, "one", x_quorum_initial_group_size=long(1))
    declared(cluster, "many", x_quorum_initial_group_size=long(9))
    assert cluster.record("one").members == ["a"]
    assert cluster.record("one").mirrors == []
    assert sorted(cluster.record("many").members) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", [1, 2])
def test_a_majority_has_a_publish_before_it_is_confirmed(cluster: QuorumCluster, mode: int) -> None:
    """Whatever its delivery mode."""
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one", delivery_mode=mode)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.stall("a", "b")
    publisher.publishes("q", b"two", delivery_mode=mode)
    cluster.clock.advance(1)
    assert not confirmed(publisher)
    cluster.unstall("a", "b")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 2


def test_without_a_majority_nothing_is_confirmed_or_lost(cluster: QuorumCluster) -> None:
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.loses("b")
    cluster.loses("c")
    publisher.publishes("q", b"two")
    cluster.clock.advance(60)
    assert not confirmed(publisher)
    cluster.comes_back("c")
    cluster.clock.advance(20)
    assert confirmed(publisher) == 2
    assert bodies(cluster.client("c")) == [b"one", b"two"]


def test_without_a_majority_publishes_are_refused_when_too_many_wait(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WantedMirrors, "of_members", partial(of_members, gap_bytes_max=10_000))
    cluster.loses("b")
    cluster.loses("c")
    publisher = cluster.publisher()
    for _ in range(20):
        publisher.publishes("q", bytes(1000))
    cluster.clock.advance(20)
    assert publisher.frames() == []
    publisher.publishes("q", b"one too many")
    cluster.clock.advance(1)
    assert [frame.method.name for frame in publisher.frames()] == ["Basic.Nack"]
    cluster.comes_back("b")
    cluster.clock.advance(20)
    assert confirmed(publisher) == 20
    publisher.publishes("q", b"one more")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 22


def test_another_member_leads_when_the_leader_is_lost(cluster: QuorumCluster) -> None:
    publisher = cluster.publisher("b")
    for number in range(10):
        publisher.publishes("q", b"%d" % number)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 10
    cluster.loses("a")
    assert cluster.record().leader in ("b", "c")
    publisher.publishes("q", b"10")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 11
    assert bodies(cluster.client("c")) == [b"%d" % number for number in range(11)]


def test_a_member_alone_does_not_lead_with_less_than_was_confirmed(cluster: QuorumCluster) -> None:
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    for node in ("a", "b"):
        cluster.kill(node)
        cluster.tidy_after(node)
    cluster.clock.advance(60)
    assert cluster.record().leader == "a"


@pytest.mark.parametrize("limit", [None, 20])
def test_delivery_counts_are_those_of_before_when_another_member_leads(limit: int | None) -> None:
    disks: dict[str, Disk] = {}
    cluster = QuorumCluster("a", "b", "c", new_backing=backings_on(disks))
    declared(cluster, **({"x_delivery_limit": long(limit)} if limit else {}))
    client = cluster.publisher()
    for number in range(6):
        client.publishes("q", b"%d" % number)
    for _ in range(3):
        for _ in range(2):
            message = got(client)
            assert message is not None
            client.nacks(message.method.delivery_tag, requeue=True)
    cluster.clock.advance(1)
    level = next(iter(cluster["a"].node.local_queues)).level
    at_leader, first = dict(level.counts), level.next_position - 6
    assert sum(at_leader.values()) == 6
    assert cluster.counts("b") == cluster.counts("c") == [at_leader]
    cluster.loses("a")
    client = cluster.client(cluster.record().leader)
    found = {}
    while (message := got(client)) is not None:
        found[int(message.body)] = message.headers["x-delivery-count"].value
        client.acks(message.method.delivery_tag)
    assert found == {number: at_leader.get(first + number, 0) for number in range(6)}


def test_members_come_and_go(cluster: QuorumCluster) -> None:
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    members = cluster["b"].mirroring.queue_members
    key, queue_id = ("queue", "/", "q"), cluster.record().queue_id
    run(members.remove(key, queue_id, "c"), lambda result: result())
    cluster.clock.advance(5)
    assert (cluster.record().mirrors, cluster.record().in_sync) == (["b"], ["b"])
    assert not cluster.counts("c")
    run(members.add(key, queue_id, "c"), lambda result: result())
    cluster.clock.advance(5)
    assert sorted(cluster.record().in_sync) == ["b", "c"]

    # The leader is taken away: another member leads, and it has no copy any more.
    run(members.remove(key, queue_id, "a"), lambda result: result())
    cluster.clock.advance(10)
    record = cluster.record()
    assert record.leader in ("b", "c") and "a" not in (*record.mirrors, *record.members)
    # A queue with one member needs no other for anything, and the last one stays.
    for node in ("b", "c"):
        run(members.remove(key, queue_id, node), lambda result: result())
        cluster.clock.advance(10)
    record = cluster.record()
    assert (record.members, record.leader, record.mirrors) == (["c"], "c", [])
    publisher.publishes("q", b"two")
    cluster.clock.advance(5)
    assert confirmed(publisher) == 2
    assert bodies(cluster.client("a")) == [b"one", b"two"]


def test_a_forgotten_node_is_no_member_any_more(cluster: QuorumCluster) -> None:
    cluster.loses("c")
    cluster.forgets("c")
    assert sorted(cluster.record().members) == ["a", "b"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_copy_that_is_left_leads_when_the_others_are_forgotten(
    cluster: QuorumCluster, order: str
) -> None:
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.loses("a", "b")
    for node in order:
        # The other lost node may come back, and have what c lacks.
        assert cluster.record().epoch == 0
        cluster.forgets(node)
    record = cluster.record()
    assert (record.leader, record.mirrors, record.members) == ("c", [], ["c"])
    assert record.promoted.endswith("is down; other copies, which are gone, may have had more")
    publisher = cluster.publisher("c")
    publisher.publishes("q", b"two")
    cluster.clock.advance(5)
    assert confirmed(publisher) == 1
    assert bodies(cluster.client("c")) == [b"one", b"two"]


@pytest.mark.parametrize("order", ["ade", "dae", "eda"])
def test_of_the_copies_that_are_left_the_furthest_leads(order: str) -> None:
    cluster = cluster_of(*"abcde")
    declared(cluster, x_quorum_initial_group_size=long(5))
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    cluster.stall("a", "b")
    publisher.publishes("q", b"two")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 2
    cluster.loses(*"ade")
    for node in order:
        assert cluster.record().epoch == 0
        cluster.forgets(node)
    cluster.clock.advance(20)
    assert cluster.record().leader == "c" and sorted(cluster.record().members) == ["b", "c"]
    assert bodies(cluster.client("b")) == [b"one", b"two"]


def test_a_new_node_with_the_name_of_a_forgotten_leader_is_not_taken_for_it(
    cluster: QuorumCluster,
) -> None:
    cluster.publisher().publishes("q", b"one")
    cluster.clock.advance(1)
    cluster.loses("a", "b")
    cluster.forgets("a")
    cluster.begins_anew("a")
    cluster.clock.advance(20)
    # Node b may have what c lacks.
    assert (cluster.record().epoch, sorted(cluster.record().in_sync)) == (0, ["b", "c"])
    cluster.comes_back("b")
    cluster.clock.advance(30)
    assert cluster.record().leader in ("b", "c")
    assert bodies(cluster.client("c")) == [b"one"]


def test_a_replaced_member_is_not_waited_for_when_the_leader_is_forgotten_later(
    cluster: QuorumCluster,
) -> None:
    """The new node has the name of a member that was in sync, and nothing of the queue."""
    cluster.publisher().publishes("q", b"one")
    cluster.clock.advance(1)
    cluster.loses("a", "b")
    cluster.forgets("b")
    assert "b" not in cluster.record().mirrors
    cluster.begins_anew("b")
    cluster.clock.advance(20)
    # Node a may have what c lacks.
    assert cluster.record().leader == "a"
    cluster.forgets("a")
    cluster.clock.advance(20)
    assert cluster.record().leader == "c"
    assert bodies(cluster.client("b")) == [b"one"]


def test_a_new_queue_needs_a_majority_of_its_members(cluster: QuorumCluster) -> None:
    cluster.loses("b")
    declared(cluster, "two")
    assert len(cluster.record("two").members) == 3
    cluster.loses("c")
    client = cluster.client()
    client.sends(commands.Queue.Declare, queue="three", durable=True, arguments=QUORUM)
    assert "Cannot declare quorum" in client.receives_connection_close(541).reply_text
    declared(cluster, "alone", x_quorum_initial_group_size=long(1))


def test_a_queue_that_is_imported_waits_for_its_members(cluster: QuorumCluster) -> None:
    """A node that starts first would not start otherwise, and so would no other."""
    cluster.loses("b")
    cluster.loses("c")
    item = {
        "vhost": "/",
        "name": "imported",
        "durable": True,
        "arguments": {"x-queue-type": "quorum"},
    }
    Importer(cluster["a"].node, {}, None, None).of("queues")(item)
    cluster.clock.advance(5)
    assert len(cluster.record("imported").members) == 3
    publisher = cluster.publisher()
    publisher.publishes("imported", b"one")
    cluster.clock.advance(5)
    assert not confirmed(publisher)
    cluster.comes_back("b")
    cluster.clock.advance(20)
    assert confirmed(publisher) == 1
    assert cluster.record("imported").in_sync == ["b"]


def test_a_kept_dead_letter_stays_dead_when_another_member_leads(cluster: QuorumCluster) -> None:
    declared(
        cluster,
        "insists",
        x_dead_letter_exchange=longstr(""),
        x_dead_letter_routing_key=longstr("later"),
        x_dead_letter_strategy=longstr("at-least-once"),
        x_overflow=longstr("reject-publish"),
    )
    client = cluster.publisher()
    for number in range(2):
        client.publishes("insists", b"%d" % number)
    message = got(client, "insists")
    assert message is not None
    client.nacks(message.method.delivery_tag, requeue=False)
    cluster.clock.advance(1)
    cluster.loses("a")
    client = cluster.client("b")
    assert client.counts("insists")[0] == 1
    client.declares("later", durable=True)
    cluster.clock.advance(20)
    assert bodies(client, "later") == [b"0"]
    assert bodies(client, "insists") == [b"1"]


def test_a_member_that_comes_later_has_counts_and_what_was_returned(cluster: QuorumCluster) -> None:
    declared(cluster, "one", x_quorum_initial_group_size=long(1))
    client = cluster.publisher()
    for number in range(4):
        client.publishes("one", b"%d" % number)
    message = got(client, "one")
    assert message is not None
    client.nacks(message.method.delivery_tag, requeue=True)
    record = cluster.record("one")
    for node in ("b", "c"):
        change = cluster["a"].mirroring.queue_members.add(
            ("queue", "/", "one"), record.queue_id, node
        )
        run(change, lambda result: result())
        cluster.clock.advance(10)
    assert (len(cluster.record("one").in_sync), cluster.record("one").acks) == (2, 2)
    # What was returned is behind what was never delivered, and mirrors go on with that.
    message = got(client, "one", no_ack=True)
    assert message is not None and message.body == b"1"
    cluster.clock.advance(1)
    cluster.loses("a")
    client = cluster.client(cluster.record("one").leader)
    found = []
    while (message := got(client, "one")) is not None:
        found.append((bytes(message.body), message.headers["x-delivery-count"].value))
    assert found == [(b"0", 1), (b"2", 0), (b"3", 0)]


@pytest.mark.parametrize("was", ["declared with one", "shrunk", "from before there were members"])
def test_a_queue_with_one_member_does_not_wait_for_a_second_one_that_has_not_all(
    cluster: QuorumCluster, was: str
) -> None:
    key = ("queue", "/", "one")
    size = 3 if was == "shrunk" else 1
    declared(cluster, "one", x_quorum_initial_group_size=long(size))
    queue_id = cluster.record("one").queue_id
    members = cluster["a"].mirroring.queue_members
    for node in ("b", "c"):
        run(members.remove(key, queue_id, node), lambda result: result())
        cluster.clock.advance(5)
    if was == "from before there were members":
        cluster["a"].mirroring._definitions.write_record(
            key,
            queue_id,
            lambda record: msgspec.structs.replace(record, members=[], acks=0),
            lambda: None,
            lambda: None,
        )
    publisher = cluster.publisher()
    publisher.publishes("one", b"one")
    cluster.clock.advance(1)
    cluster.stall("a", "b")
    run(members.add(key, queue_id, "b"), lambda result: result())
    cluster.clock.advance(2)
    publisher.publishes("one", b"two")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 2
    cluster.unstall("a", "b")
    cluster.clock.advance(10)
    record = cluster.record("one")
    assert (record.members, record.in_sync, record.acks) == (["a", "b"], ["b"], 2)
    # From now on it does.
    cluster.stall("a", "b")
    publisher.publishes("one", b"three")
    cluster.clock.advance(1)
    assert not confirmed(publisher)


def new_queue_without_mirrors() -> QuorumCluster:
    """Node a leads queue `q`, and has reached no other member since it was declared."""
    disks: dict[str, Disk] = {}
    cluster = QuorumCluster("a", "b", "c", new_backing=backings_on(disks))
    for other in "bc":
        cluster.stall("a", other)
    declaring = cluster.client()
    declaring.sends(commands.Queue.Declare, queue="q", durable=True, arguments=QUORUM)
    cluster.clock.advance(5)
    assert (cluster.record().leader, cluster.record().mirrors) == ("a", [])
    return cluster


def test_a_new_queue_whose_leader_is_lost_before_others_have_copies_is_led_by_another_member() -> (
    None
):
    cluster = new_queue_without_mirrors()
    lost = cluster.publisher()
    lost.publishes("q", b"lost")
    cluster.clock.advance(5)
    assert not confirmed(lost)
    cluster.loses("a")
    record = cluster.record()
    assert record.leader in ("b", "c") and len(record.in_sync) == 1
    publisher = cluster.publisher("c")
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    # Who led before follows.
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert cluster.record().leader == record.leader and len(cluster.record().in_sync) == 2
    assert bodies(cluster.client("a")) == [b"one"]


def test_a_new_leader_that_is_only_cut_off_confirms_nothing_when_another_member_leads() -> None:
    cluster = new_queue_without_mirrors()
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    cluster.cut_store("a")
    cluster.lease_ends("a")
    cluster.clock.advance(5)
    leader = cluster["b"].metadata.get(("queue", "/", "q"))
    assert leader is not None and isinstance(leader.record, QueueRecord)
    assert leader.record.leader in ("b", "c")
    for other in "bc":
        cluster.unstall("a", other)
    cluster.clock.advance(5)
    assert not confirmed(publisher)
    # It hears who leads, and sends there what it has not confirmed.
    cluster.has_lease_again("a")
    cluster.restore_store("a")
    cluster.clock.advance(15)
    assert len(cluster.record().in_sync) == 2


def test_a_queue_of_which_something_may_be_confirmed_is_not_led_with_nothing() -> None:
    """It had one member, which confirmed alone, and the second has no copy yet."""
    disks: dict[str, Disk] = {}
    cluster = QuorumCluster("a", "b", "c", new_backing=backings_on(disks))
    declared(cluster, "q", x_quorum_initial_group_size=long(1))
    publisher = cluster.publisher()
    publisher.publishes("q", b"one")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    for other in "bc":
        cluster.stall("a", other)
    for other in "bc":
        adding = cluster["a"].mirroring.queue_members.add(
            ("queue", "/", "q"), cluster.record().queue_id, other
        )
        run(adding, lambda result: result())
    cluster.clock.advance(5)
    assert (cluster.record().members, cluster.record().mirrors) == (["a", "b", "c"], [])
    cluster.loses("a")
    assert cluster.record().leader == "a"
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert len(cluster.record().in_sync) == 2
    assert bodies(cluster.client("b")) == [b"one"]


def test_a_copy_that_only_the_lost_leader_had_asked_for_is_asked_for_anew() -> None:
    """The definition names the copy the node had before; the next leader does not know this one."""
    disks: dict[str, Disk] = {}
    delays_s = [0.0]
    cluster = QuorumCluster(*"abcde", new_backing=backings_on(disks), delay=lambda: delays_s[-1])
    declared(cluster, x_quorum_initial_group_size=long(5))
    cluster.loses("d")
    cluster.loses("e")
    publisher = cluster.publisher()
    for number in range(3):
        publisher.publishes("q", b"%d" % number)
    cluster.clock.advance(5)
    assert confirmed(publisher) == 3
    # Without it there is no majority, so it stays named while it is away.
    cluster.kill("c")
    cluster.comes_back("c")
    # There is time between the question and the definition.
    delays_s.append(0.02)

    def is_asked_for() -> bool:
        named = cluster.record().storage_id("c")
        copies = cluster["c"].mirroring.figures.copies_here()
        return any(copy.storage_id != named for copy in copies)

    for _ in range(10_000):
        if is_asked_for():
            break
        cluster.clock.advance(0.001)
    assert is_asked_for()
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    cluster.kill("a")
    delays_s.append(0.0)
    cluster.comes_back("d")
    cluster.comes_back("e")
    cluster.tidy_after("a")
    cluster.clock.advance(30)
    record = cluster.record()
    assert record.leader == "b" and "c" in record.in_sync
    (copy,) = cluster["c"].mirroring.figures.copies_here()
    assert copy.storage_id == record.storage_id("c")
    assert [level.backing.length for level in copy.mirror.levels] == [3]
