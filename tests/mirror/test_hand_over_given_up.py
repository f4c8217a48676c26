"""A leader that hands a queue over and is not answered: the target may lead, or may never.

It goes on only when the target cannot lead any more. With `log-acks: majority` what it confirms
then need not be at the target.
"""

from __future__ import annotations

import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from mirrored import mirrored, record
from pamqp import commands
from pipe import Client

from warren.mirror.messages.calls import Calls
from warren.mirror.replication.leading.hand_over import PATIENCE_S

LOG = {"ha-mode": "all", "ha-replication": "log", "log-acks": "majority"}


@pytest.fixture
def cluster() -> Cluster:
    disks: dict[str, Disk] = {}
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks))
    cluster["a"].node.policies.set("/", "ha", "^ha$", LOG, 0, "queues")
    cluster.clock.advance(5)
    mirrored(cluster, "ha")
    return cluster


def hand_over(cluster: Cluster) -> None:
    (led,) = cluster["a"].mirroring._led.values()
    cluster["a"].mirroring.hand_overs.begin(led, "b")
    cluster.settle()


def publisher(cluster: Cluster) -> Client:
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    return client


def is_confirmed(client: Client) -> bool:
    return any(isinstance(frame.method, commands.Basic.Ack) for frame in client.frames())


@pytest.mark.parametrize("loses_link", [True, False])
def test_what_is_confirmed_after_a_hand_over_was_given_up_is_not_lost(
    cluster: Cluster, loses_link: bool
) -> None:
    """The link breaks with the answer, or the target takes too long; then it could write at last
    that it leads."""
    client = publisher(cluster)
    cluster.cut_store("b")
    hand_over(cluster)
    if loses_link:
        cluster.cut("a", "b")
        cluster.settle()
    else:
        # It gets nothing more, and is not missed yet.
        cluster.stall("a", "b")
        cluster.clock.advance(PATIENCE_S + 0.1)
    client.publishes("ha", b"precious", delivery_mode=2)
    cluster.clock.advance(0.1)
    was_confirmed = is_confirmed(client)
    cluster.restore_store("b")
    cluster.clock.advance(1)
    if loses_link:
        cluster.connect("a", "b")
    else:
        cluster.unstall("a", "b")
    cluster.clock.advance(PATIENCE_S + 5)
    assert was_confirmed or is_confirmed(client)
    got = client.gets("ha")
    assert got is not None and got.body == b"precious", record(cluster, "ha")


def test_a_target_of_an_earlier_version_does_not_know_of_ballots(cluster: Cluster) -> None:
    calls: Calls = cluster["b"].calls
    del calls._methods["mirror.take_over_in"]
    hand_over(cluster)
    cluster.clock.advance(1)
    assert record(cluster, "ha").leader == "b"


def test_a_target_that_could_not_lead_in_time_says_so(cluster: Cluster) -> None:
    """The leader need not be patient until it goes on."""
    cluster.cut_store("b")
    hand_over(cluster)
    (led,) = cluster["a"].mirroring._led.values()
    led.disputed()
    cluster.settle()
    cluster.restore_store("b")
    cluster.clock.advance(0.1)
    assert record(cluster, "ha").leader == "a"
    assert not cluster["a"].queue("ha").is_held
