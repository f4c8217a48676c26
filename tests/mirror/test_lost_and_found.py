"""What only a superseded leader has is kept in a queue of its own, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.core.ports import Commit
from warren.core.vhosts.vhost import VirtualHost
from warren.mirror.replication.copies import lost_and_found
from warren.mirror.replication.copies.former_copy import FormerCopy, Tail
from warren.mirror.replication.copies.lost_and_found import HEADER, LOST_AND_FOUND
from warren.mirror.replication.leading.unasked import Unasked
from warren.mirror.replication.levels.renumbering import NO_LIMIT, LeaderChange


@pytest.fixture
def disks() -> dict[str, Disk]:
    return {}


@pytest.fixture
def cluster(disks: dict[str, Disk]) -> Cluster:
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks))
    cluster["a"].node.policies.set("/", "ha", "^ha", {"ha-mode": "all"}, 0, "queues")
    cluster.settle()
    return cluster


def client_at(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def declare(cluster: Cluster, client: Client, queue: str, **arguments: Field) -> None:
    arguments = {name.replace("_", "-"): field for name, field in arguments.items()}
    client.sends(commands.Queue.Declare, queue=queue, durable=True, arguments=arguments)
    cluster.clock.advance(3)
    client.receives(commands.Queue.DeclareOk)


def leader(cluster: Cluster, queue: str, node: str = "b") -> str:
    stored = cluster[node].metadata.get(("queue", "/", queue))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record.leader


def cut_off(cluster: Cluster) -> None:
    """Node a reaches neither its peers nor the definitions."""
    cluster.cut_store("a")
    for other in "bc":
        cluster.cut("a", other)
    cluster.clock.advance(1)


def heal(cluster: Cluster) -> None:
    cluster.restore_store("a")
    for other in "bc":
        cluster.connect("a", other)
    cluster.clock.advance(15)


def bodies(cluster: Cluster, queue: str, node: str = "b") -> list[bytes]:
    client = client_at(cluster, node)
    found = []
    while (got := client.gets(queue, no_ack=True)) is not None:
        found.append(got.body)
    client.vanishes()
    return found


def kept(cluster: Cluster, node: str = "b") -> list[bytes]:
    if LOST_AND_FOUND not in cluster[node].vhost.queues:
        return []
    return bodies(cluster, LOST_AND_FOUND, node)


def take_one(cluster: Cluster, client: Client, queue: str) -> bytes:
    """Get a message, when mirrors know that."""
    client.sends(commands.Basic.Get, queue=queue, no_ack=True)
    cluster.clock.advance(0.1)
    return client.receives_content(commands.Basic.GetOk).body


@pytest.mark.parametrize("priority", [0, 3])
def test_what_a_leader_took_while_it_was_cut_off_is_kept(cluster: Cluster, priority: int) -> None:
    a = client_at(cluster, "a")
    arguments = {"x_max_priority": Field("I", priority)} if priority else {}
    declare(cluster, a, "ha", **arguments)
    a.publishes("ha", b"mirrors know that more may be taken", priority=3)
    take_one(cluster, a, "ha")
    a.publishes("ha", b"mirrors have it", delivery_mode=2, priority=1)
    cluster.settle()
    cut_off(cluster)
    assert leader(cluster, "ha") != "a"
    for number in range(300):
        a.publishes("ha", b"%03d" % number, priority=number % 4, expiration="60000")
    heal(cluster)
    assert bodies(cluster, "ha") == [b"mirrors have it"]
    client = client_at(cluster, "c")
    first = client.gets(LOST_AND_FOUND)
    assert first is not None and first.method.exchange == "" and first.method.routing_key == "ha"
    origin = first.headers[HEADER].value
    assert (origin["queue"].value, origin["node"].value) == (b"ha", b"a")
    assert origin["original-expiration"].value == b"60000"
    assert AmqpContentCodec().property_text(first.header, "expiration") is None
    client.vanishes()
    found = sorted(kept(cluster))
    assert found == [b"%03d" % number for number in range(300)]
    # And the copy is gone: what was kept once is not kept again.
    cluster.clock.advance(90)
    assert not kept(cluster)


class EarlierStep(NamedTuple):
    """A step as versions before 2026-11-26 read it."""

    epoch: int
    shifts: Any
    tails: Any
    firsts: Any = ()

    holes = ()
    """They had no such thing, and the search of today looks at it."""


def test_a_node_of_an_earlier_version_reads_what_the_leader_lacks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    cut_off(cluster)
    a.publishes("ha", b"only here")
    monkeypatch.setattr(lost_and_found, "WHAT_IS_LACKING", "mirror.lacking")
    monkeypatch.setattr(lost_and_found, "LeaderChange", EarlierStep)
    heal(cluster)
    assert kept(cluster) == [b"only here"]


def test_it_is_kept_though_the_next_leader_was_started_again_meanwhile(cluster: Cluster) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    a.publishes("ha", b"mirrors have it", delivery_mode=2)
    cluster.settle()
    cut_off(cluster)
    there = leader(cluster, "ha")
    assert there != "a"
    a.publishes("ha", b"only here")
    for node in "bc":
        cluster.kill(node)
        cluster.tidy_after(node)
    cluster.comes_back(there)
    cluster.cut("a", there)
    cluster.clock.advance(20)
    assert leader(cluster, "ha", there) == there
    other = "c" if there == "b" else "b"
    cluster.comes_back(other)
    cluster.cut("a", other)
    cluster.clock.advance(5)
    heal(cluster)
    cluster.clock.advance(20)
    assert bodies(cluster, "ha") == [b"mirrors have it"]
    assert kept(cluster) == [b"only here"]


def test_what_somebody_sends_again_is_not_kept(cluster: Cluster) -> None:
    a, c, confirmed = client_at(cluster, "a"), client_at(cluster, "c"), client_at(cluster, "a")
    declare(cluster, a, "ha")
    confirmed.selects_confirms()
    for other in "bc":
        cluster.stall("a", other)
    a.publishes("ha", b"nobody sends it again")
    c.publishes("ha", b"its node sends it again")
    confirmed.publishes("ha", b"refused")
    a.publishes("ha", b"nor this")
    cluster.settle()
    assert len(cluster["a"].queue("ha")) == 4
    cut_off(cluster)
    for other in "bc":
        cluster.unstall("a", other)
    assert leader(cluster, "ha") != "a"
    heal(cluster)
    assert confirmed.receives(commands.Basic.Nack).delivery_tag == 1
    assert bodies(cluster, "ha") == [b"its node sends it again"]
    assert kept(cluster) == [b"nobody sends it again", b"nor this"]


def leads_without_all(cluster: Cluster) -> None:
    """Node a led a queue of which a mirror that leads now has only what came last; it is down."""
    a = client_at(cluster, "a")
    a.declares("later", durable=True)
    a.selects_confirms()
    for body in (b"consumed", b"one", b"two"):
        a.publishes("later", body, delivery_mode=2)
    cluster.clock.advance(0.1)
    assert a.receives(commands.Basic.Ack).delivery_tag
    policy = {"ha-mode": "all", "ha-promote-on-failure": "always"}
    cluster["a"].node.policies.set("/", "l", "^later", policy, 0, "queues")
    cluster.clock.advance(5)
    a.publishes("later", b"mirrors have it", delivery_mode=2)
    assert take_one(cluster, a, "later") == b"consumed"
    cluster.clock.advance(1)
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(30)
    assert leader(cluster, "later") != "a"


def test_what_a_mirror_lacked_that_leads_all_the_same_is_kept(cluster: Cluster) -> None:
    """Also when the leader before has been started anew meanwhile."""
    leads_without_all(cluster)
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert kept(cluster) == [b"one", b"two"]
    assert bodies(cluster, "later") == [b"mirrors have it"]


def test_what_a_mirror_lacked_is_kept_though_it_has_no_mirrors_any_more_and_was_started_anew(
    cluster: Cluster,
) -> None:
    leads_without_all(cluster)
    now = leader(cluster, "later")
    cluster[now].node.policies.clear("/", "l")
    cluster.clock.advance(15)
    cluster.kill(now)
    cluster.clock.advance(3)
    cluster.comes_back(now)
    cluster.clock.advance(15)
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert kept(cluster) == [b"one", b"two"]
    assert bodies(cluster, "later") == [b"mirrors have it"]


def test_what_was_confirmed_is_kept_of_a_leader_that_was_superseded_without_votes(
    cluster: Cluster,
) -> None:
    """Two of three copies confirm; who has neither of them may lead where the policy says so. The
    leader before lives on: what was confirmed, nobody sends again."""
    policy = {
        "ha-mode": "all",
        "ha-replication": "log",
        "log-acks": "majority",
        "ha-promote-on-failure": "always",
    }
    cluster["a"].node.policies.set("/", "ha", "^ha", policy, 0, "queues")
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    a.selects_confirms()
    a.publishes("ha", b"all have it", delivery_mode=2)
    cluster.clock.advance(1)
    assert a.receives(commands.Basic.Ack).delivery_tag == 1
    cluster.stall("a", "c")
    a.publishes("ha", b"two have it", delivery_mode=2)
    cluster.clock.advance(0.1)
    assert a.receives(commands.Basic.Ack).delivery_tag == 2
    cluster.kill("b")
    cluster.tidy_after("b")
    cluster.cut_store("a")
    cluster.cut("a", "c")
    cluster.unstall("a", "c")
    cluster.lease_ends("a")
    cluster.clock.advance(10)
    assert leader(cluster, "ha", "c") == "c"
    cluster.restore_store("a")
    cluster.has_lease_again("a")
    cluster.connect("a", "c")
    cluster.clock.advance(15)
    assert bodies(cluster, "ha", "c") == [b"all have it"]
    assert kept(cluster, "c") == [b"two have it"]


@pytest.mark.parametrize("is_full", [True, False])
def test_it_is_kept_once_however_often_the_node_is_started(cluster: Cluster, is_full: bool) -> None:
    leads_without_all(cluster)
    policies = cluster["b"].node.policies
    if is_full:
        full = {"max-length": 0, "overflow": "reject-publish"}
        policies.set("/", "full", "^lost", full, 0, "queues")
    else:
        # So that the former copy is not replaced by a new one.
        nodes = {"ha-mode": "nodes", "ha-params": ["b", "c"]}
        policies.set("/", "l", "^later", nodes, 0, "queues")
    cluster.settle()
    for _ in range(2):
        cluster.comes_back("a")
        cluster.clock.advance(15)
        cluster.kill("a")
        cluster.clock.advance(3)
    cluster.comes_back("a")
    cluster.clock.advance(15)
    if is_full:
        assert not kept(cluster)
        policies.clear("/", "full")
        cluster.clock.advance(15)
    assert kept(cluster) == [b"one", b"two"]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("in_sync", [True, False])
def test_of_other_nodes_only_that_is_kept_which_they_do_not_send_again(
    cluster: Cluster, in_sync: bool, is_known: bool
) -> None:
    """The queue was not mirrored from the start: the next leader cannot say what it has of a node
    of which its mirrors had never heard, and that node sends nothing again."""
    a, c, confirmed = client_at(cluster, "a"), client_at(cluster, "c"), client_at(cluster, "a")
    a.declares("later", durable=True)
    a.publishes("later", b"old", delivery_mode=2)
    cluster.settle()
    policy = {"ha-mode": "all", "ha-promote-on-failure": "always"}
    if in_sync:
        policy["ha-sync-mode"] = "automatic"
    cluster["a"].node.policies.set("/", "l", "^later", policy, 0, "queues")
    cluster.clock.advance(5)
    if is_known:
        c.publishes("later", b"first", delivery_mode=2)
    confirmed.selects_confirms()
    cluster.clock.advance(1)
    for other in "bc":
        cluster.stall("a", other)
    a.publishes("later", b"unasked")
    c.publishes("later", b"from afar")
    confirmed.publishes("later", b"refused")
    cluster.settle()
    cut_off(cluster)
    cluster.lease_ends("a")
    for other in "bc":
        cluster.unstall("a", other)
    cluster.clock.advance(20)
    assert leader(cluster, "later") != "a"
    cluster.has_lease_again("a")
    heal(cluster)
    assert confirmed.receives(commands.Basic.Nack).delivery_tag == 1
    there = bodies(cluster, "later")
    assert (b"from afar" in there, b"old" in there) == (is_known, in_sync)
    everything = sorted([*there, *kept(cluster)])
    assert everything == sorted([b"old", b"unasked", b"from afar", *([b"first"] * is_known)])


def test_nothing_is_kept_of_a_node_that_died(cluster: Cluster) -> None:
    """Nobody knows after its restart what others have sent again."""
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    for other in "bc":
        cluster.stall("a", other)
    a.publishes("ha", b"only on its disk", delivery_mode=2)
    cluster.clock.advance(0.5)
    cluster.kill("a")
    for other in "bc":
        cluster.unstall("a", other)
    cluster.clock.advance(5)
    assert leader(cluster, "ha") != "a"
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert not kept(cluster)


def test_it_is_kept_as_soon_as_that_is_possible(cluster: Cluster) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    full = {"max-length": 1, "overflow": "reject-publish"}
    cluster["a"].node.policies.set("/", "full", "^lost", full, 0, "queues")
    cluster.settle()
    cut_off(cluster)
    for number in range(3):
        a.publishes("ha", b"%d" % number)
    heal(cluster)
    assert kept(cluster) == [b"0"]
    cluster["b"].node.policies.clear("/", "full")
    cluster.clock.advance(5)
    assert kept(cluster) == [b"1", b"2"]


def test_a_copy_stays_until_it_was_searched(cluster: Cluster, disks: dict[str, Disk]) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    a.publishes("ha", b"mirrors have it", delivery_mode=2)
    full = {"max-length": 0, "overflow": "reject-publish"}
    cluster["a"].node.policies.set("/", "full", "^lost", full, 0, "queues")
    cluster.settle()
    cut_off(cluster)
    a.publishes("ha", b"only here", delivery_mode=2)
    cluster.clock.advance(0.1)
    heal(cluster)
    # The next copy is whole, and nobody needs the former one for that.
    stored = cluster["b"].metadata.get(("queue", "/", "ha"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    assert "a" in stored.record.in_sync
    on_disk = [messages for messages in disks["a"].queues.values() if messages]
    assert len(on_disk) == 2
    cluster["b"].node.policies.clear("/", "full")
    cluster.clock.advance(5)
    assert kept(cluster) == [b"only here"]
    cluster.clock.advance(1)
    on_disk = [messages for messages in disks["a"].queues.values() if messages]
    assert len(on_disk) == 1


def test_what_was_found_before_says_where_it_was_first(cluster: Cluster) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    mirrors = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "l", "^lost", mirrors, 0, "queues")
    declare(cluster, a, LOST_AND_FOUND)
    cut_off(cluster)
    headers = {HEADER: Field("F", {"queue": Field("S", b"another one")})}
    a.publishes(LOST_AND_FOUND, b"found before", headers=headers)
    heal(cluster)
    found = client_at(cluster, "b").gets(LOST_AND_FOUND)
    assert found is not None and found.body == b"found before"
    assert found.headers[HEADER].value["queue"].value == b"another one"


def test_nothing_is_declared_in_a_virtual_host_that_is_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = client_at(cluster, "a")
    declare(cluster, a, "ha")
    cut_off(cluster)
    a.publishes("ha", b"only here")
    declare_queue, declared = VirtualHost.declare_queue, Counter[str]()

    def deleted_meanwhile(vhost: VirtualHost, name: str, **more: Any) -> Commit:
        declared[name] += 1
        assert declared[name] < 10
        commit = declare_queue(vhost, name, **more)
        if declared[name] == 1:
            cluster["b"].node.delete_vhost("/")
        return commit

    monkeypatch.setattr(VirtualHost, "declare_queue", deleted_meanwhile)
    heal(cluster)
    assert declared[LOST_AND_FOUND] == 1


def test_nothing_is_kept_of_a_queue_that_is_deleted(
    cluster: Cluster, disks: dict[str, Disk]
) -> None:
    a, b = client_at(cluster, "a"), client_at(cluster, "b")
    declare(cluster, a, "ha")
    cut_off(cluster)
    a.publishes("ha", b"of no use")
    b.sends(commands.Queue.Delete, queue="ha")
    cluster.clock.advance(5)
    b.receives(commands.Queue.DeleteOk)
    heal(cluster)
    assert not kept(cluster)
    assert not any(disks["a"].queues.values())


@pytest.mark.parametrize(
    ("firsts", "unasked", "has_confirmed", "only_here"),
    [
        # All that is not asked for lies before what the next leader had not.
        ([20], [(5, 9)], False, [(0, 20)]),
        ([20], [(5, 25), (25, 28)], False, [(0, 28)]),
        ([8], [(5, 9), (24, 26)], False, [(0, 8), (24, 26)]),
        ([8], [(24, 26)], True, [(0, 8), (20, 30)]),
        ([8], None, False, [(0, 8), (20, 30)]),
        ([], [(5, 9), (18, 22), (22, 24), (26, 28)], True, [(20, 24), (26, 28)]),
        ([], None, False, []),
    ],
)
def test_what_the_next_leader_never_got(
    firsts: list[int],
    unasked: list[tuple[int, int]] | None,
    has_confirmed: bool,
    only_here: list[tuple[int, int]],
) -> None:
    """It went on at 20; the former leader had positions up to 30."""
    level = MemoryQueue()
    level.skip_to(30)
    tail = None if unasked is None else Tail([unasked], has_confirmed)
    former = FormerCopy(1, 0, [level], [0], safe_only=False, led=True, tail=tail)
    assert former.only_here(LeaderChange(1, [0], [20], firsts), 0) == only_here


@pytest.mark.parametrize(
    ("found_upto", "only_here"),
    [(None, [(0, 8), (20, 30)]), (4, [(4, 8), (20, 30)]), (24, [(24, 30)])],
)
def test_what_a_leader_never_got_that_was_not_in_sync(
    found_upto: int | None, only_here: list[tuple[int, int]]
) -> None:
    """It had what is in [8, 20); a mirror that was in sync had positions up to 30."""
    level = MemoryQueue()
    former = FormerCopy(1, 0, [level], [0], safe_only=True)
    for position in range(30):
        level.publish(Envelope("", "q", b"", True, 0, None), b"", None, None, position)
    step = LeaderChange(1, [0], [20], [8])
    assert former.only_here(step, 0, found_upto=found_upto) == only_here
    assert former.end_at(step, 0, moved=0, upto=NO_LIMIT) == 30
    assert former.end_at(step, 0, moved=0, upto=20) == 20


@pytest.mark.parametrize(
    ("found_upto", "only_here"),
    [
        # It went on at -10, and had nothing before -20; a copy with 10 more there has 30 here.
        (None, [(0, 20)]),
        (-32, [(8, 20)]),
        (-20, []),
    ],
)
def test_positions_of_the_next_leader_may_be_less_than_none(
    found_upto: int | None, only_here: list[tuple[int, int]]
) -> None:
    level = MemoryQueue()
    level.skip_to(40)
    former = FormerCopy(1, 3, [level], [10], safe_only=False, led=False)
    step = LeaderChange(7, [-25], [-10], [-20])
    runs = former.only_here(step, 0, moved=5, found_upto=found_upto, upto=-10)
    assert runs == only_here


def test_what_all_mirrors_have_reported_is_forgotten() -> None:
    unasked = Unasked()
    for position in (5, 6, 7):
        unasked.published(1, 0, position)
    unasked.published(1, 1, 9)
    unasked.published(2, 0, 8)
    unasked.published(2, 0, 10)
    assert unasked.runs(0) == [(5, 8), (8, 9), (10, 11)]
    assert unasked.runs(1) == [(9, 10)]
    unasked.reported_by_all(1)
    assert unasked.runs(0) == [(8, 9), (10, 11)]
    unasked.reported_by_all(2)
    assert unasked.runs(0) == []
