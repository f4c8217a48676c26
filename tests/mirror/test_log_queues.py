"""Queues whose batches are carried by a log, in clusters of three nodes."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from cluster_checks import check_mirrors
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.definitions.validation import ValidationFailed
from warren.core.policies.policy_definition import check_definition
from warren.mirror.carriers.ports import StopReason
from warren.mirror.gm.ring_view import RingStanding, ShownMember
from warren.mirror.replication.copies.lost_and_found import LOST_AND_FOUND
from warren.mirror.replication.definition.replicas import WantedMirrors

LOG = {"ha-mode": "all", "ha-replication": "log"}


class LoggedCluster(Cluster):
    """Node a leads queue `q`."""

    def policy(self, **more: Any) -> None:
        definition = {**LOG, **{key.replace("_", "-"): value for key, value in more.items()}}
        self["a"].node.policies.set("/", "q", "^q$", definition, 0, "queues")
        self.clock.advance(5)

    def record(self) -> QueueRecord:
        node = next(node for node in self.alive)
        stored = self[node].metadata.get(("queue", "/", "q"))
        assert stored is not None and isinstance(stored.record, QueueRecord)
        return stored.record

    def client(self, node: str = "a") -> Client:
        client = self[node].connects()
        client.opens_channel(1)
        return client

    def publisher(self, node: str = "a") -> Client:
        client = self.client(node)
        client.selects_confirms()
        return client


def confirmed(client: Client) -> int:
    """Up to which publish of this client all is confirmed."""
    tags = [f.method.delivery_tag for f in client.frames() if f.method.name == "Basic.Ack"]
    return max(tags, default=0)


@pytest.fixture
def cluster() -> LoggedCluster:
    disks: dict[str, Disk] = {}
    cluster = LoggedCluster("a", "b", "c", new_backing=backings_on(disks))
    cluster.policy()
    cluster.client().declares("q", durable=True)
    cluster.clock.advance(5)
    record = cluster.record()
    assert (record.carrier, record.leader, sorted(record.in_sync)) == ("log", "a", ["b", "c"])
    return cluster


def test_every_whole_copy_has_a_publish_before_it_is_confirmed(cluster: LoggedCluster) -> None:
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert not confirmed(publisher)
    cluster.unstall("a", "c")
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1


def test_a_majority_is_enough_where_the_policy_says_so(cluster: LoggedCluster) -> None:
    cluster.policy(log_acks="majority")
    assert cluster.record().acks == 2
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    # The one that has it leads, not the one that lacks it.
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(5)
    assert cluster.record().leader == "b"
    got = cluster.client("b").gets("q", no_ack=True)
    assert got is not None and got.body == b"one"


def test_no_mirror_leads_that_may_lack_what_was_confirmed(cluster: LoggedCluster) -> None:
    """Of three copies two confirm: one alone cannot know whether it has all."""
    cluster.policy(log_acks="majority", ha_promote_on_failure="when-synced")
    for name in ("a", "b"):
        cluster.kill(name)
        cluster.tidy_after(name)
    cluster.clock.advance(20)
    assert (cluster.record().leader, cluster.record().epoch) == ("a", 0)
    cluster.comes_back("a")
    cluster.clock.advance(10)
    assert cluster.record().leader == "a"


def test_a_mirror_in_sync_does_not_lead_without_votes(cluster: LoggedCluster) -> None:
    """As when it was about to lead out of sync, and its leader came back and synchronised it."""
    copy = next(iter(cluster["b"].mirroring.figures.copies_here()))
    copy.take_lead(cluster.record().epoch)
    cluster.clock.advance(2)
    assert (cluster.record().leader, cluster.record().epoch) == ("a", 0)


def test_with_too_few_copies_publishes_are_refused(cluster: LoggedCluster) -> None:
    cluster.policy(log_min_insync=3)
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.kill("c")
    cluster.clock.advance(1)
    publisher.publishes("q", b"two", delivery_mode=2)
    cluster.clock.advance(1)
    publisher.receives(commands.Basic.Nack)
    assert len(cluster["a"].queue("q")) == 1
    cluster.comes_back("c")
    cluster.clock.advance(10)
    publisher.publishes("q", b"three", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 3


def test_a_mirror_that_is_too_far_behind_is_dropped_and_catches_up(cluster: LoggedCluster) -> None:
    cluster.policy(log_max_gap_bytes=1 << 20)
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    for _ in range(3):
        publisher.publishes("q", bytes(700_000), delivery_mode=2)
    cluster.clock.advance(3)
    assert cluster.record().in_sync == ["b"]
    assert confirmed(publisher) == 3
    cluster.unstall("a", "c")
    cluster.clock.advance(20)
    assert sorted(cluster.record().in_sync) == ["b", "c"]


def test_the_carrier_changes_while_clients_publish_and_no_copy_is_made_anew(
    cluster: LoggedCluster,
) -> None:
    publisher = cluster.publisher("b")
    stores = cluster.record().stores
    for number, carrier in enumerate(("gm", "log", "gm"), 1):
        publisher.publishes("q", b"before %d" % number, delivery_mode=2)
        cluster["a"].node.policies.set(
            "/", "q", "^q$", {"ha-mode": "all", "ha-replication": carrier}, 0, "queues"
        )
        publisher.publishes("q", b"after %d" % number, delivery_mode=2)
        cluster.clock.advance(5)
        record = cluster.record()
        assert record.carrier == ("" if carrier == "gm" else carrier)
        assert (record.epoch, record.stores) == (number, stores)
        assert sorted(record.in_sync) == ["b", "c"]
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(10)
    client = cluster.client(cluster.record().leader)
    bodies = []
    while (got := client.gets("q", no_ack=True)) is not None:
        bodies.append(got.body)
    assert bodies == [b"%s %d" % (when, n) for n in (1, 2, 3) for when in (b"before", b"after")]
    assert confirmed(publisher) == 6


def test_what_a_mirror_got_before_it_began_is_not_taken_for_all_there_was(
    cluster: LoggedCluster,
) -> None:
    """c lacks what a was sent in slices, and a, which leads next, cannot send it as batches."""
    cluster.stall("b", "c")
    cluster.kill("a")
    cluster.tidy_after("a")
    cluster.clock.advance(5)
    assert cluster.record().leader == "b"
    cluster.client("b").publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    cluster.comes_back("a")
    cluster.clock.advance(5)
    assert cluster.record().in_sync == ["c", "a"]
    cluster.kill("b")
    cluster.tidy_after("b")
    cluster.clock.advance(10)
    record = cluster.record()
    assert (record.leader, record.in_sync) == ("a", ["c"])
    assert list(check_mirrors(cluster)) == ["c"]
    assert len(cluster["a"].queue("q")) == 1


def test_a_mirror_that_hears_late_of_definitions_keeps_the_copy_that_counts(
    cluster: LoggedCluster,
) -> None:
    """It was named, named no more and named again before it hears of the first."""
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.kill("c")
    cluster.kill("b")
    cluster.clock.advance(1)
    cluster.restart("b")
    cluster.settle()
    for name in ("a", "b"):
        cluster.cut_store(name)
    cluster.connect("a", "b")
    cluster.clock.advance(0.1)
    # It has answered that it has a copy, and does not hear that this is to begin.
    cluster.stall("a", "b")
    cluster.restore_store("a")
    cluster.clock.advance(0.1)
    assert cluster.record().mirrors == ["b"]
    cluster.cut("a", "b")
    cluster.unstall("a", "b")
    cluster.clock.advance(0.1)
    assert cluster.record().mirrors == []
    cluster.connect("a", "b")
    cluster.clock.advance(15)
    assert cluster.record().in_sync == ["b"]
    cluster.kill("a")
    cluster.clock.advance(0.01)
    cluster.comes_back("a")
    cluster.clock.advance(5)
    cluster.restore_store("b")
    cluster.clock.advance(10)
    record = cluster.record()
    assert (record.leader, record.promoted) == ("b", "a is down")


def test_a_leader_that_is_back_waits_for_a_mirror_that_does_not_know_yet_that_it_has_all(
    cluster: LoggedCluster,
) -> None:
    for name in ("b", "c"):
        cluster.kill(name)
    cluster.clock.advance(1)
    cluster.restart("b")
    cluster.settle()
    cluster.cut_store("a")
    cluster.connect("a", "b")
    cluster.clock.advance(0.1)
    # It hears that it is a mirror, and not that it is in sync.
    cluster.stall("b", "a")
    cluster.restore_store("a")
    cluster.clock.advance(0.1)
    cluster.cut_store("b")
    cluster.unstall("b", "a")
    cluster.clock.advance(0.1)
    assert cluster.record().in_sync == ["b"]
    cluster.client().publishes("q", b"one", delivery_mode=1)
    cluster.clock.advance(0.1)
    cluster.kill("a")
    cluster.clock.advance(0.01)
    cluster.comes_back("a")
    cluster.clock.advance(5)
    cluster.restore_store("b")
    cluster.clock.advance(10)
    assert cluster.record().leader == "b"
    assert len(cluster["b"].queue("q")) == 1


def test_a_copy_that_follows_no_leader_votes_with_what_it_has(cluster: LoggedCluster) -> None:
    """As one that a new leader cannot send what it lacks. It counts until it is named no more."""
    cluster.policy(log_acks="majority", ha_promote_on_failure="when-synced")
    publisher = cluster.publisher("b")
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    cluster.kill("a")
    (copy,) = cluster["c"].mirroring.figures.copies_here()
    copy.stopped(StopReason.INCONSISTENT)
    assert copy.is_outside
    cluster.tidy_after("a")
    cluster.clock.advance(5)
    assert cluster.record().leader in ("b", "c")
    got = cluster.client("b").gets("q", no_ack=True)
    assert got is not None and got.body == b"one"


def test_a_missing_copy_counts_while_the_policy_comes_to_want_all_acknowledgements(
    cluster: LoggedCluster,
) -> None:
    """What two of three had confirmed, c lacks: it must not lead alone."""
    cluster.policy(log_acks="majority", ha_promote_on_failure="when-synced")
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.kill("b")
    cluster.clock.advance(1)
    assert (cluster.record().in_sync, cluster.record().missing) == (["c"], 1)
    cluster.policy(ha_promote_on_failure="when-synced")
    assert (cluster.record().acks, cluster.record().missing) == (2, 1)
    cluster.kill("a")
    for name in ("a", "b"):
        cluster.tidy_after(name)
    cluster.clock.advance(20)
    assert cluster.record().leader == "a"


def test_a_copy_that_leaves_is_missing_while_the_policy_comes_to_want_all_acknowledgements(
    cluster: LoggedCluster,
) -> None:
    cluster.policy(log_acks="majority", ha_promote_on_failure="when-synced")
    publisher = cluster.publisher()
    cluster.stall("a", "c")
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.policy(ha_promote_on_failure="when-synced")
    cluster.kill("b")
    cluster.clock.advance(1)
    assert (cluster.record().in_sync, cluster.record().acks) == (["c"], 2)
    assert cluster.record().missing == 1


def test_who_leads_without_the_votes_it_needs_delivers_everything_as_redelivered(
    cluster: LoggedCluster,
) -> None:
    """c cannot know what was handed out when it heard nothing more, and the policy lets it lead."""
    cluster.policy(log_acks="majority", ha_promote_on_failure="always")
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.stall("a", "c")
    consumer = cluster.client()
    consumer.consumes("q")
    cluster.clock.advance(1)
    assert consumer.receives_bodies() == [b"one"]
    for name in ("a", "b"):
        cluster.kill(name)
    for name in ("a", "b"):
        cluster.tidy_after(name)
    cluster.clock.advance(20)
    assert cluster.record().leader == "c"
    told = "a is down; other copies, which are gone, may have had more"
    assert cluster.record().promoted == told
    got = cluster.client("c").gets("q")
    assert got is not None and got.body == b"one" and got.method.redelivered


def test_what_is_lacked_by_who_leads_without_votes_is_found_when_the_leader_is_back(
    cluster: LoggedCluster,
) -> None:
    cluster.policy(log_acks="majority", ha_promote_on_failure="always")
    cluster.stall("a", "c")
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    for name in ("a", "b"):
        cluster.kill(name)
    for name in ("a", "b"):
        cluster.tidy_after(name)
    cluster.clock.advance(20)
    assert cluster.record().leader == "c"
    cluster.comes_back("a")
    cluster.clock.advance(30)
    got = cluster.client("c").gets(LOST_AND_FOUND)
    assert got is not None and got.body == b"one"


def test_the_leader_is_shown_first_and_then_its_mirrors(cluster: LoggedCluster) -> None:
    queue = cluster["a"].queue("q")
    ring = cluster["a"].mirroring.figures.ring(queue)
    assert ring[0] == ShownMember("a", RingStanding.LEADER)
    assert sorted(ring[1:]) == [
        ShownMember("b", RingStanding.IN_SYNC),
        ShownMember("c", RingStanding.IN_SYNC),
    ]


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"ha-replication": "raft"}, "ha-replication must be gm or log"),
        ({"log-acks": "one"}, "ha-replication must be log to specify log-acks"),
        ({"ha-replication": "log", "log-acks": "two"}, "log-acks must be async"),
        ({"ha-replication": "log", "log-acks": 0}, "log-acks must be async"),
        ({"ha-replication": "log", "log-min-insync": 0}, "log-min-insync takes"),
        ({"ha-replication": "log", "log-flush": "never"}, "log-flush must be"),
        ({"ha-replication": "log", "log-max-gap-bytes": 5}, "log-max-gap-bytes takes"),
        ({"ha-replication": "log", "log-catchup-rate": -1}, "log-catchup-rate takes"),
        ({"ha-replication": "log", "log-acks": 2**63}, "log-acks takes integers up to 92233"),
        ({"ha-replication": "log", "log-flush": 2**63}, "log-flush takes integers up to 9223"),
        (
            {"ha-replication": "log", "log-catchup-rate": 10**30},
            "log-catchup-rate takes integers up to 9223372036854775807, 10{30} given",
        ),
    ],
)
def test_a_policy_says_what_is_wrong_with_it(more: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValidationFailed, match=refusal):
        check_definition({"ha-mode": "all", **more}, operator=False)


@pytest.mark.parametrize(
    ("acks", "copies"), [("async", 1), ("one", 2), ("majority", 3), ("all-in-sync", 0), (4, 4)]
)
def test_acknowledgements_by_name_are_a_number_of_copies(acks: str | int, copies: int) -> None:
    assert WantedMirrors.of({**LOG, "log-acks": acks}).acks_of(5) == copies


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_a_mirror_that_was_synchronised_leads_on_with_positions_nobody_has_used(
    carrier: str,
) -> None:
    """Else the copies of others would have to be made anew: they had messages that were gone when
    it was synchronised."""
    disks: dict[str, Disk] = {}
    cluster = LoggedCluster("a", "b", "c", new_backing=backings_on(disks))

    def members(*nodes: str) -> None:
        cluster.policy(
            ha_mode="nodes", ha_params=[*nodes], ha_replication=carrier, ha_sync_mode="automatic"
        )

    members("a", "c")
    client = cluster.publisher()
    client.declares("q", durable=True)
    cluster.clock.advance(5)
    for number in range(5):
        client.publishes("q", b"%d" % number, delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(client) == 5
    client.sets_prefetch(10)
    client.consumes("q")
    cluster.clock.advance(1)
    tags = [content.method.delivery_tag for content in client.receives_deliveries()]
    for tag in tags[3:]:
        client.acks(tag)
    client.vanishes()
    cluster.clock.advance(1)
    members("a", "b", "c")
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    members("b", "c")
    cluster.clock.advance(5)
    assert (cluster.record().leader, cluster.record().in_sync) == ("b", ["c"])
    before = cluster.record().stores["c"]
    publisher = cluster.publisher("b")
    publisher.publishes("q", b"5", delivery_mode=2)
    cluster.clock.advance(5)
    assert confirmed(publisher) == 1
    assert (cluster.record().in_sync, cluster.record().stores["c"]) == (["c"], before)


def half_cut(cluster: LoggedCluster) -> None:
    """The link between a and b is lost, and a does not notice."""
    unnoticed = iter((1_000.0, 0.0))
    cluster.cut("a", "b", notice_s=lambda: next(unnoticed))


def test_a_mirror_that_comes_to_be_in_sync_makes_votes_void_that_were_counted_without_it() -> None:
    """b alone was enough to elect b, and then c confirmed what b has not."""
    disks: dict[str, Disk] = {}
    cluster = LoggedCluster("a", "b", "c", new_backing=backings_on(disks), delay=lambda: 0.001)
    cluster.policy(log_acks=2)
    publisher = cluster.client()
    publisher.sends(commands.Queue.Declare, queue="q", durable=True, arguments={})
    cluster.clock.advance(5)
    publisher.sends(commands.Confirm.Select)
    cluster.kill("c")
    cluster.clock.advance(5)
    cluster.comes_back("c")
    while "c" not in cluster.record().mirrors:
        cluster.clock.advance(0.001)
    assert (cluster.record().acks, cluster.record().in_sync) == (2, ["b"])
    # What b writes comes late.
    half_cut(cluster)
    cluster.cut_store("b")
    while cluster.record().in_sync != ["b", "c"]:
        cluster.clock.advance(0.001)
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.restore_store("b")
    cluster.clock.advance(5)
    assert cluster.record().leader == "a"


def test_a_smaller_number_of_acknowledgements_makes_votes_void_that_were_counted_with_a_larger_one(
    cluster: LoggedCluster,
) -> None:
    """Each mirror had all that was confirmed, so b alone was enough to elect b."""
    half_cut(cluster)
    cluster.cut("b", "c")
    cluster.cut_store("b")
    cluster.clock.advance(0.5)
    cluster.policy(log_acks="majority")
    assert (cluster.record().acks, cluster.record().in_sync) == (2, ["b", "c"])
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    cluster.restore_store("b")
    cluster.clock.advance(5)
    assert cluster.record().leader == "a"


def test_what_an_earlier_copy_of_a_mirror_has_on_disk_says_nothing_of_its_present_copy(
    cluster: LoggedCluster,
) -> None:
    """Its disk was slow, and in the epoch of the next leader batches are counted anew."""
    mirroring, queue_id = cluster["b"].mirroring, cluster.record().queue_id
    earlier = mirroring.copies.by_queue[queue_id].mirror
    cluster.policy(log_acks=2)
    cluster.cut("a", "b")
    cluster.clock.advance(2)
    cluster.connect("a", "b")
    cluster.clock.advance(5)
    assert mirroring.copies.by_queue[queue_id].mirror is not earlier
    for one, other in ("ab", "ac"):
        cluster.stall(one, other)
    publisher = cluster.publisher()
    publisher.publishes("q", b"one", delivery_mode=2)
    earlier._report(earlier, 1_000)
    cluster.clock.advance(1)
    assert not confirmed(publisher)


def test_a_synchronisation_follows_a_change_of_its_limit_at_once(cluster: LoggedCluster) -> None:
    """A slice of 64 KiB is followed by a pause of a day at an octet a second."""
    cluster.policy(log_catchup_rate=1)
    cluster.kill("c")
    cluster.tidy_after("c")
    client = cluster.client()
    for _ in range(8):
        client.publishes("q", bytes(50_000), delivery_mode=2)
    cluster.clock.advance(20)
    cluster.comes_back("c")
    cluster.clock.advance(60)
    assert cluster.record().in_sync == ["b"]
    cluster.policy(log_catchup_rate=0)
    assert sorted(cluster.record().in_sync) == ["b", "c"]
