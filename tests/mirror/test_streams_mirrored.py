"""Streams in clusters of three nodes: every node has a copy, with the same offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on, other_queues_on_disk
from pamqp import commands
from pipe import BODY, HEADER, METHOD, Client

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.stream_log import StreamLog
from warren.core.definitions.records import QueueRecord
from warren.core.field import Field, Table, long, longstr
from warren.core.ports import Key
from warren.core.queues.queue_type import QueueType
from warren.core.scheduling.waiting import run
from warren.mirror.replication.copies.lost_and_found import LOST_AND_FOUND
from warren.mirror.replication.leading import leader_calls

STREAM: Table = {"x-queue-type": longstr("stream")}


class Reader:
    """A client that reads a stream and acknowledges each message."""

    def __init__(
        self, cluster: StreamCluster, node: str, offset: Field | None = None, queue: str = "s"
    ) -> None:
        self.client = cluster.client(node)
        self.client.sends(commands.Basic.Qos, prefetch_count=7)
        arguments = {} if offset is None else {"x-stream-offset": offset}
        self.client.sends(commands.Basic.Consume, queue=queue, arguments=arguments)
        self._cluster = cluster
        self.got: list[tuple[int, bytes]] = []
        cluster.clock.advance(0.5)
        self.client.receives(commands.Basic.QosOk)
        self.client.receives(commands.Basic.ConsumeOk)

    def reads(self) -> list[tuple[int, bytes]]:
        """All it has got so far, when nothing more comes."""
        while True:
            self._cluster.clock.advance(0.5)
            self.client._collect()
            if not self.client.inbox:
                return self.got
            while self.client.inbox:
                content = self.client.receives_content(commands.Basic.Deliver)
                assert not content.method.redelivered
                self.got.append((content.headers["x-stream-offset"].value, bytes(content.body)))
                self.client.sends(commands.Basic.Ack, delivery_tag=content.method.delivery_tag)


class StreamCluster(Cluster):
    """Node a leads stream `s`."""

    def record(self, queue: str = "s") -> QueueRecord:
        node = next(node for node in self.alive)
        stored = self[node].metadata.get(("queue", "/", queue))
        assert stored is not None and isinstance(stored.record, QueueRecord)
        return stored.record

    def client(self, node: str = "a") -> Client:
        client = self[node].connects()
        client.opens_channel(1)
        return client

    def publishes(self, numbers: range, node: str = "a") -> int:
        """Returns up to which of the publishes all is confirmed."""
        client = self.client(node)
        client.selects_confirms()
        for number in numbers:
            client.publishes("s", b"%d" % number)
        self.clock.advance(1)
        tags = [f.method.delivery_tag for f in client.frames() if f.method.name == "Basic.Ack"]
        return max(tags, default=0)

    def loses(self, node: str) -> None:
        self.kill(node)
        self.tidy_after(node)
        self.clock.advance(15)

    def log(self, node: str) -> StreamLog:
        """What a node has of the stream."""
        for copy in self[node].mirroring.figures.copies_here():
            backing = copy.mirror.levels[0].backing
            assert isinstance(backing, StreamLog)
            return backing
        log: StreamLog = self[node].queue("s").log  # type: ignore[attr-defined]
        return log

    def there(self, node: str) -> list[tuple[int, bytes]]:
        peeked = self.log(node).peek(0, 10_000, 1 << 30)
        return [(message.position, message.body) for message in peeked.messages]


def declared(cluster: StreamCluster, queue: str = "s", **more: Field) -> None:
    arguments = {**STREAM, **{key.replace("_", "-"): value for key, value in more.items()}}
    cluster.client().declares(queue, durable=True, arguments=arguments)
    cluster.clock.advance(5)


@pytest.fixture
def disks() -> dict[str, Disk]:
    return {}


@pytest.fixture
def cluster(disks: dict[str, Disk]) -> Iterator[StreamCluster]:
    with other_queues_on_disk():
        cluster = StreamCluster("a", "b", "c", new_backing=backings_on(disks))
        declared(cluster)
        yield cluster


def numbered(numbers: range) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


def declares_and_does_not_wait(cluster: StreamCluster, queue: str) -> None:
    client = cluster.client()
    client.sends(commands.Queue.Declare, queue=queue, durable=True, arguments=STREAM)
    cluster.clock.advance(5)


def test_an_earlier_version_has_no_copy_of_a_stream(
    cluster: StreamCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have one of another kind, and end with a fault when it leads the stream."""
    with monkeypatch.context() as patch:
        for node in "bc":
            patch.delitem(cluster[node].mirroring._calls._methods, "mirror.invite_to_stream")
        declares_and_does_not_wait(cluster, "t")
        assert cluster.record("t").in_sync == []
    cluster.clock.advance(5)
    assert sorted(cluster.record("t").in_sync) == ["b", "c"]


def test_a_leader_of_an_earlier_version_gets_no_copy_of_a_stream(
    cluster: StreamCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(leader_calls, "invitation_to", lambda record: "mirror.invite")
        declares_and_does_not_wait(cluster, "t")
        assert cluster.record("t").in_sync == []
    cluster.clock.advance(5)
    assert sorted(cluster.record("t").in_sync) == ["b", "c"]


def test_every_node_has_a_copy(cluster: StreamCluster) -> None:
    record = cluster.record()
    assert (record.carrier, record.leader, record.acks) == ("log", "a", 2)
    assert sorted(record.members) == ["a", "b", "c"]
    assert sorted(record.in_sync) == ["b", "c"]
    assert cluster.publishes(range(20), "c") == 20
    for node in "abc":
        assert cluster.there(node) == numbered(range(20))


def test_a_stream_has_as_many_copies_as_it_asks_for(cluster: StreamCluster) -> None:
    declared(cluster, "one", x_initial_cluster_size=long(1))
    assert (cluster.record("one").members, cluster.record("one").mirrors) == (["a"], [])
    policy = {"initial-cluster-size": 2}
    cluster["a"].node.policies.set("/", "two", "^two$", policy, 0, "queues")
    cluster.clock.advance(1)
    declared(cluster, "two", x_initial_cluster_size=long(1))
    assert len(cluster.record("two").members) == 2


def changes_members(cluster: StreamCluster, queue: str, added: str = "", removed: str = "") -> None:
    members, queue_id = cluster["b"].mirroring.queue_members, cluster.record(queue).queue_id
    for change, node in ((members.add, added), (members.remove, removed)):
        if node:
            run(change(("queue", "/", queue), queue_id, node), lambda result: result())
            cluster.clock.advance(20)


def test_replicas_come_and_go(cluster: StreamCluster) -> None:
    reader = Reader(cluster, "c", longstr("first"))
    assert cluster.publishes(range(300)) == 300
    changes_members(cluster, "s", removed="c")
    assert (cluster.record().mirrors, cluster.record().in_sync) == (["b"], ["b"])
    assert cluster.publishes(range(300, 310)) == 10
    changes_members(cluster, "s", added="c")
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    assert cluster.there("c") == numbered(range(310))
    # The leader is taken away: another replica leads.
    changes_members(cluster, "s", removed="a")
    record = cluster.record()
    assert record.leader in ("b", "c") and "a" not in (*record.mirrors, *record.members)
    assert cluster.publishes(range(310, 320), "a") == 10
    for node in "bc":
        changes_members(cluster, "s", removed=node)
    record = cluster.record()
    assert (record.members, record.leader, record.mirrors) == (["c"], "c", [])
    assert cluster.publishes(range(320, 330)) == 10
    assert reader.reads() == numbered(range(330))


@pytest.mark.parametrize("was", ["declared with one", "from before there were replicas"])
def test_a_stream_at_one_node_gets_replicas(cluster: StreamCluster, was: str) -> None:
    changes_members(cluster, "s", removed="b")
    changes_members(cluster, "s", removed="c")
    if was == "from before there were replicas":
        cluster["a"].mirroring._definitions.write_record(
            ("queue", "/", "s"),
            cluster.record().queue_id,
            lambda record: msgspec.structs.replace(record, members=[], acks=0, carrier=""),
            lambda: None,
            lambda: None,
        )
        cluster.clock.advance(1)
    reader = Reader(cluster, "b", longstr("first"))
    assert cluster.publishes(range(100)) == 100
    for node in ("b", "c"):
        changes_members(cluster, "s", added=node)
    record = cluster.record()
    assert (record.carrier, record.acks, len(record.in_sync)) == ("log", 2, 2)
    assert cluster.publishes(range(100, 110), "c") == 10
    cluster.loses("a")
    assert cluster.publishes(range(110, 120), "c") == 10
    assert reader.reads() == numbered(range(120))


def test_readers_get_what_a_majority_has(cluster: StreamCluster) -> None:
    reader = Reader(cluster, "b", longstr("first"))
    cluster.stall("a", "c")
    assert cluster.publishes(range(5)) == 5
    assert reader.reads() == numbered(range(5))
    cluster.stall("a", "b")
    here = Reader(cluster, "a", longstr("first"))
    assert cluster.publishes(range(5, 9)) == 0
    assert here.reads() == numbered(range(5))
    cluster.unstall("a", "b")
    assert here.reads() == numbered(range(9))
    assert reader.reads() == numbered(range(9))


@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_readers_go_on_where_they_are_when_another_node_leads(
    cluster: StreamCluster, node: str
) -> None:
    """Those that have begun at the beginning, and those that wait for what comes next."""
    old, new = Reader(cluster, "b", longstr("first")), Reader(cluster, "c")
    assert cluster.publishes(range(50)) == 50
    assert old.reads() == new.reads() == numbered(range(50))
    late = Reader(cluster, "c")
    leader = cluster.record().leader
    if node == leader:
        cluster.kill(node)
        cluster.tidy_after(node)
    else:
        mirroring = cluster[leader].mirroring
        (led,) = mirroring._led.values()
        mirroring.hand_overs.begin(led, node)
    cluster.clock.advance(15)
    assert cluster.record().leader != "a"
    assert cluster.publishes(range(50, 70), "b") == 20
    assert old.reads() == new.reads() == numbered(range(70))
    assert late.reads() == numbered(range(50, 70))


def test_a_reader_at_the_leader_goes_on_when_that_gives_up_the_lead(cluster: StreamCluster) -> None:
    reader, idle = Reader(cluster, "a", longstr("first")), Reader(cluster, "a")
    assert cluster.publishes(range(30)) == 30
    assert reader.reads() == numbered(range(30))
    (led,) = cluster["a"].mirroring._led.values()
    cluster["a"].mirroring.hand_overs.begin(led, "b")
    cluster.clock.advance(5)
    assert cluster.record().leader == "b"
    assert cluster.publishes(range(30, 40), "a") == 10
    assert reader.reads() == idle.reads() == numbered(range(40))
    (led,) = cluster["b"].mirroring._led.values()
    cluster["b"].mirroring.hand_overs.begin(led, "a")
    cluster.clock.advance(5)
    assert cluster.record().leader == "a"
    assert cluster.publishes(range(40, 50), "c") == 10
    assert reader.reads() == idle.reads() == numbered(range(50))


def test_a_node_that_was_away_gets_what_it_lacks(cluster: StreamCluster) -> None:
    assert cluster.publishes(range(300)) == 300
    cluster.loses("c")
    assert cluster.publishes(range(300, 600)) == 300
    cluster.comes_back("c")
    cluster.clock.advance(30)
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    assert cluster.there("c") == numbered(range(600))
    cluster.loses("a")
    assert cluster.record().leader in ("b", "c")
    assert cluster.publishes(range(600, 610), "b") == 10
    cluster.comes_back("a")
    cluster.clock.advance(30)
    for node in "abc":
        assert cluster.there(node) == numbered(range(610))


def test_a_message_arrives_once(cluster: StreamCluster) -> None:
    """A copy that is made later knows when its messages arrived."""
    cluster.loses("c")
    for first in range(0, 300, 100):
        assert cluster.publishes(range(first, first + 100)) == 100
        cluster.clock.advance(600)
    cluster.comes_back("c")
    cluster.clock.advance(30)
    assert cluster.there("c") == numbered(range(300))
    for position in (0, 99, 100, 199, 200, 299):
        there, here = (cluster.log(node).arrived_at(position) for node in "ac")
        assert there is not None and here is not None
        assert abs(there - here) <= 1.5
    # And once more, when it is taken from what the node has from before.
    cluster.loses("c")
    assert cluster.publishes(range(300, 310)) == 10
    cluster.comes_back("c")
    cluster.clock.advance(30)
    for position in (0, 150, 299, 305):
        there, here = (cluster.log(node).arrived_at(position) for node in "ac")
        assert there is not None and here is not None
        assert abs(there - here) <= 3


def test_a_message_that_waits_for_a_majority_arrived_when_it_came(cluster: StreamCluster) -> None:
    assert cluster.publishes(range(10)) == 10
    cluster.loses("b")
    cluster.loses("c")
    assert cluster.publishes(range(10, 20)) == 0
    cluster.clock.advance(60)
    assert cluster.publishes(range(20, 30)) == 0
    cluster.comes_back("c")
    cluster.clock.advance(30)
    assert cluster.there("c") == numbered(range(30))
    for position in (0, 9, 10, 19, 20, 29):
        there, here = (cluster.log(node).arrived_at(position) for node in "ac")
        assert there is not None and here is not None
        assert abs(there - here) <= 1.5


def test_what_is_removed_at_the_front_goes_from_every_copy(cluster: StreamCluster) -> None:
    cluster["a"].node.policies.set(
        "/",
        "s",
        "^s$",
        {"max-length-bytes": 3000, "stream-max-segment-size-bytes": 1000},
        0,
        "queues",
    )
    cluster.clock.advance(1)
    assert cluster.publishes(range(300)) == 300
    cluster.clock.advance(2)
    firsts = {node: cluster.log(node).first for node in "abc"}
    assert firsts["a"] > 200
    assert set(firsts.values()) == {firsts["a"]}
    assert len({cluster.log(node).length for node in "abc"}) == 1
    assert len({cluster.log(node).ready_bytes for node in "abc"}) == 1
    # A node that comes later begins where the others do.
    cluster.loses("b")
    assert cluster.publishes(range(300, 500)) == 200
    cluster.comes_back("b")
    cluster.clock.advance(30)
    assert cluster.log("b").first == cluster.log("a").first > firsts["a"]
    assert cluster.there("b") == cluster.there("a")


def test_a_leader_that_was_superseded_begins_anew(cluster: StreamCluster) -> None:
    """A message that only this leader had was never read. Its offset goes to another message."""
    assert cluster.publishes(range(10)) == 10
    reader = Reader(cluster, "a", longstr("first"))
    assert reader.reads() == numbered(range(10))
    cluster.cut("a", "b")
    cluster.cut("a", "c")
    cluster.client("a").publishes("s", b"only here")
    cluster.clock.advance(20)
    assert reader.reads() == numbered(range(10))
    assert cluster.record().leader in ("b", "c")
    assert cluster.publishes(range(10, 12), "b") == 2
    cluster.connect("a", "b")
    cluster.connect("a", "c")
    cluster.clock.advance(40)
    assert reader.reads() == numbered(range(12))
    for node in "abc":
        assert cluster.there(node) == numbered(range(12))


def test_the_whole_cluster_is_started_again(cluster: StreamCluster) -> None:
    assert cluster.publishes(range(100)) == 100
    for node in "abc":
        cluster.kill(node)
        cluster.tidy_after(node)
    for node in "bca":
        cluster.comes_back(node)
    cluster.clock.advance(30)
    assert cluster.publishes(range(100, 110), "c") == 10
    assert Reader(cluster, "b", longstr("first")).reads() == numbered(range(110))
    cluster.clock.advance(30)
    for node in "abc":
        assert cluster.there(node) == numbered(range(110))


def test_a_majority_goes_on_when_all_were_down_and_the_leader_stays_away(
    cluster: StreamCluster,
) -> None:
    assert cluster.publishes(range(100)) == 100
    for node in "abc":
        cluster.kill(node)
        cluster.tidy_after(node)
    for node in "bc":
        cluster.comes_back(node)
    cluster.clock.advance(60)
    assert cluster.record().leader in ("b", "c")
    assert cluster.publishes(range(100, 110), "c") == 10
    assert Reader(cluster, "b", longstr("first")).reads() == numbered(range(110))


def test_a_node_that_comes_back_goes_on_with_the_copy_it_has(cluster: StreamCluster) -> None:
    assert cluster.publishes(range(300)) == 300
    before = cluster.record().stores["c"]
    cluster.loses("c")
    assert cluster.publishes(range(300, 320)) == 20
    cluster.comes_back("c")
    cluster.clock.advance(30)
    assert "c" in cluster.record().in_sync
    assert cluster.record().stores["c"] == before
    # Nothing of what was there was published once more.
    assert cluster.log("c").published == 20
    assert cluster.there("c") == numbered(range(320))
    # What it has counts, should it lead.
    cluster.loses("b")
    cluster.loses("a")
    cluster.comes_back("b")
    cluster.clock.advance(30)
    assert cluster.publishes(range(320, 330), "c") == 10
    assert Reader(cluster, "b", longstr("first")).reads() == numbered(range(330))


def test_a_copy_with_other_messages_at_its_end_is_made_anew(cluster: StreamCluster) -> None:
    assert cluster.publishes(range(100)) == 100
    before = cluster.record().stores.get("a")
    cluster.cut("a", "b")
    cluster.cut("a", "c")
    cluster.client("a").publishes("s", b"only here")
    cluster.clock.advance(20)
    assert cluster.record().leader in ("b", "c")
    cluster.connect("a", "b")
    cluster.connect("a", "c")
    cluster.clock.advance(60)
    assert "a" in cluster.record().in_sync
    assert cluster.record().stores["a"] != before
    assert cluster.there("a") == numbered(range(100))
    assert cluster.publishes(range(100, 105), "a") == 5
    assert cluster.there("a") == numbered(range(105))
    # Its publisher does not send it again, and it is not lost.
    found = cluster.client("b").gets(LOST_AND_FOUND)
    assert found is not None and found.body == b"only here"


def test_who_waits_for_what_comes_gets_what_the_next_leader_is_sent_first(
    cluster: StreamCluster,
) -> None:
    """Also where the leader before had messages that no other node got. A reader that asked for an
    offset still begins at that offset."""
    assert cluster.publishes(range(10)) == 10
    cluster.stall("a", "b")
    cluster.stall("a", "c")
    client = cluster.client("a")
    for _ in range(5):
        client.publishes("s", b"never")
    reader, ahead = Reader(cluster, "a"), Reader(cluster, "a", long(13))
    cluster.cut("a", "b")
    cluster.cut("a", "c")
    cluster.clock.advance(20)
    cluster.unstall("a", "b")
    cluster.unstall("a", "c")
    cluster.connect("a", "b")
    cluster.connect("a", "c")
    assert cluster.publishes(range(10, 15), "b") == 5
    cluster.clock.advance(20)
    assert reader.reads() == numbered(range(10, 15))
    assert ahead.reads() == numbered(range(13, 15))


def test_streams_are_spread_over_the_nodes(cluster: StreamCluster) -> None:
    for number in range(5):
        declared(cluster, f"s{number}")
    run(cluster["b"].mirroring.hand_overs.rebalance(kind=QueueType.STREAM), lambda result: None)
    cluster.clock.advance(20)
    leaders = Counter([cluster.record(f"s{n}").leader for n in range(5)])
    leaders[cluster.record("s").leader] += 1
    assert leaders == {"a": 2, "b": 2, "c": 2}


def test_readers_wait_for_a_leader_that_has_no_mirrors_at_the_moment(
    cluster: StreamCluster,
) -> None:
    declared(cluster, "two", x_initial_cluster_size=long(2))
    (heir,) = cluster.record("two").mirrors
    other = "c" if heir == "b" else "b"
    reader = Reader(cluster, other, longstr("first"), "two")
    cluster.loses("a")
    assert (cluster.record("two").leader, cluster.record("two").mirrors) == (heir, [])
    cluster.cut(heir, other)
    cluster.clock.advance(1)
    cluster.connect(heir, other)
    cluster.comes_back("a")
    cluster.clock.advance(10)
    client = cluster.client(other)
    client.publishes("two", b"0")
    assert reader.reads() == numbered(range(1))


def test_a_copy_that_has_not_begun_does_not_pass_for_a_whole_one(cluster: StreamCluster) -> None:
    """Its node may not know yet that the definition does not call it in sync any more."""
    cluster.loses("b")
    assert cluster.publishes(range(100)) == 100
    cluster.loses("c")
    assert cluster.record().in_sync == ["c"]
    cluster.comes_back("c")
    copies = cluster["c"].mirroring.copies
    have_copy = copies._have_copy
    cards = []

    def have_copy_at_tick(key: Key, record: QueueRecord, *more: Any) -> None:
        have_copy(key, record, *more)
        copy = copies.by_queue[record.queue_id]
        assert record.in_sync == ["c"] and not copy.mirror.started
        copies.look_at(copy)
        cards.append(copy.mirror.has_card)

    copies._have_copy = have_copy_at_tick  # type: ignore[method-assign]
    cluster.clock.advance(5)
    assert cards == [False]
    assert cluster.record().in_sync == ["c"]
    assert cluster.there("c") == numbered(range(100))


def test_who_waits_for_what_comes_gets_what_the_next_leader_was_sent_meanwhile(
    cluster: StreamCluster,
) -> None:
    """Readers at the node that led are out of its reach when it begins to lead."""
    assert cluster.publishes(range(10)) == 10
    cluster.stall("a", "b")
    cluster.stall("a", "c")
    client = cluster.client("a")
    for _ in range(5):
        client.publishes("s", b"never")
    reader = Reader(cluster, "a")
    cluster.cut("a", "b")
    cluster.cut("a", "c")
    cluster.clock.advance(20)
    assert cluster.publishes(range(10, 20), "b") == 10
    cluster.unstall("a", "b")
    cluster.unstall("a", "c")
    cluster.connect("a", "b")
    cluster.connect("a", "c")
    cluster.clock.advance(20)
    assert reader.reads() == numbered(range(10, 20))


def test_operators_see_what_a_majority_has(cluster: StreamCluster) -> None:
    """Nor is anything else sent once more, or moved."""
    assert cluster.publishes(range(10)) == 10
    cluster.stall("a", "b")
    cluster.stall("a", "c")
    assert cluster.publishes(range(10, 15)) == 0
    (level,) = cluster["a"].queue("s").levels
    assert len(level.peek(0, 100, 1 << 20).messages) == 10
    assert level.list_positions(0, 100, 100).positions == list(range(10))


@pytest.mark.parametrize("all_come_back", [True, False])
def test_a_leader_with_a_slow_disk_dies_before_it_has_everything(
    cluster: StreamCluster, disks: dict[str, Disk], all_come_back: bool
) -> None:
    """What was confirmed is on the disks of the leader before and of another mirror."""
    assert cluster.publishes(range(10)) == 10
    heir, other = cluster.record().in_sync
    disks[heir].sync_s = lambda: 30.0
    assert cluster.publishes(range(10, 20)) == 10
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(5)
    for node in (heir, other):
        cluster.kill(node)
        cluster.tidy_after(node)
    disks[heir].sync_s = lambda: 0.001
    for node in (heir, other, *(("a",) if all_come_back else ())):
        cluster.comes_back(node)
    cluster.clock.advance(60)
    assert cluster.publishes(range(20, 25), other) == 5
    assert Reader(cluster, other, longstr("first")).reads() == numbered(range(25))


def test_nobody_reads_what_only_the_next_leader_may_have() -> None:
    """Its leader died before the message was on its disk, and the third node has not got it: were
    the next leader lost as well, these two would give its offset to another message."""
    disks = {"a": Disk(lambda: 60.0)}
    with other_queues_on_disk():
        cluster = StreamCluster("a", "b", "c", new_backing=backings_on(disks), delay=lambda: 0.01)
        cluster.clock.advance(1)
        arguments = {"queue": "s", "durable": True, "arguments": STREAM}
        cluster.client().sends(commands.Queue.Declare, **arguments)
        cluster.clock.advance(5)
        reader = Reader(cluster, "b", longstr("first"))
        cluster.stall("a", "c")
        cluster.client("a").publishes("s", b"0")
        cluster.clock.advance(0.2)
        cluster.kill("a")
        while cluster.record().leader == "a":
            cluster.clock.advance(0.01)
        assert cluster.record().leader == "b"
        cluster.stall("b", "c")
        cluster.tidy_after("a")
        cluster.clock.advance(1)
        assert cluster.there("b") == numbered(range(1))
        assert reader.reads() == []
        cluster.unstall("b", "c")
        assert reader.reads() == numbered(range(1))


def test_a_reader_whose_channel_takes_no_more_misses_nothing() -> None:
    """A limit of the channel, set later, stops it at its node: messages on their way go back."""
    with other_queues_on_disk():
        cluster = StreamCluster("a", "b", "c", new_backing=backings_on({}), delay=lambda: 0.05)
        cluster.clock.advance(1)
        arguments = {"queue": "s", "durable": True, "arguments": STREAM}
        cluster.client().sends(commands.Queue.Declare, **arguments)
        cluster.clock.advance(5)
        assert cluster.publishes(range(40)) == 40
        client = cluster.client("b")
        client.sends(commands.Basic.Qos, prefetch_count=30)
        first: Table = {"x-stream-offset": longstr("first")}
        client.sends(commands.Basic.Consume, queue="s", arguments=first)
        cluster.clock.advance(0.12)
        client.sends(commands.Basic.Qos, prefetch_count=4, global_=True)
        got: list[tuple[int, bytes]] = []
        for _ in range(200):
            cluster.clock.advance(0.1)
            for frame in client.frames():
                if frame.kind == METHOD and frame.method.name == "Basic.Deliver":
                    client.sends(commands.Basic.Ack, delivery_tag=frame.method.delivery_tag)
                elif frame.kind == HEADER:
                    headers = AmqpContentCodec().headers(frame.payload)
                    got.append((headers["x-stream-offset"].value, b""))
                elif frame.kind == BODY:
                    got[-1] = (got[-1][0], frame.payload)
        assert got == numbered(range(40))
