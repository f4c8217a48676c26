"""An alarm of one node is one of all."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands

from warren.core.resources.alarms import Alarm, Resource
from warren.core.resources.growth import ALWAYS
from warren.mirror.members.alarm_news import AlarmNews
from warren.mirror.messages.post import PostKind, Undeliverable


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b")
    for node in "ab":
        AlarmNews(cluster[node].alarms, cluster[node].node.growth, cluster[node].post)
    return cluster


def test_publishers_at_every_node_wait_for_the_node_that_runs_short(cluster: Cluster) -> None:
    b = cluster["b"].connects()
    b.opens_channel(1)
    b.declares("queue")
    cluster["a"].alarms.report(Resource.MEMORY, True)
    cluster.settle()
    b.publishes("queue", b"waits")
    assert b.receives(commands.Connection.Blocked).reason == "low on memory"
    cluster["a"].alarms.report(Resource.MEMORY, False)
    cluster.settle()
    b.receives(commands.Connection.Unblocked)
    assert b.counts("queue") == (1, 0)


def test_a_node_hears_of_alarms_there_were_and_forgets_those_of_a_node_that_is_gone(
    cluster: Cluster,
) -> None:
    cluster.cut("a", "b")
    cluster["a"].alarms.report(Resource.DISK, True)
    cluster["b"].alarms.report(Resource.MEMORY, True)
    cluster.settle()
    assert cluster["b"].alarms.in_effect() == [Alarm(Resource.MEMORY, "b")]
    cluster.connect("a", "b")
    cluster.settle()
    for node in "ab":
        assert cluster[node].alarms.in_effect() == [
            Alarm(Resource.DISK, "a"),
            Alarm(Resource.MEMORY, "b"),
        ]
    cluster.kill("a")
    cluster.settle()
    assert cluster["b"].alarms.in_effect() == [Alarm(Resource.MEMORY, "b")]


def test_publishers_at_every_node_wait_for_a_queue_that_grows(cluster: Cluster) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("grows")
    a.declares("still")
    cluster.settle()
    cluster["b"].alarms.report(Resource.MEMORY, True, growing_only=True)
    cluster.settle()
    for count in (ALWAYS.messages + 1, 1):
        for _ in range(count):
            b.publishes("grows", b"x")
        cluster.settle()
    b.publishes("still", b"passes")
    cluster.settle()
    assert a.counts("still") == (1, 0)
    b.publishes("grows", b"waits")
    reason = "low on memory: queue 'grows' in vhost '/' grows"
    assert b.receives(commands.Connection.Blocked).reason == reason
    assert a.counts("grows") == (ALWAYS.messages + 2, 0)
    a.sends(commands.Queue.Purge, queue="grows")
    a.receives(commands.Queue.PurgeOk)
    cluster.clock.advance(1.0)
    b.receives(commands.Connection.Unblocked)
    assert a.counts("grows") == (1, 0)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\xa5quill", b"\x01"])
def test_what_is_no_list_of_resources_is_refused(cluster: Cluster, payload: bytes) -> None:
    with pytest.raises(Undeliverable):
        cluster["a"].links.user.on_frames("b", [(PostKind.ALARMS, payload)])
    assert cluster["a"].alarms.in_effect() == []
