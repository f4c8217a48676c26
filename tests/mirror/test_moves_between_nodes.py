"""Moves and turns where a queue is at another node."""

from __future__ import annotations

import pytest
from clock_loop import ClockLoop
from cluster import Cluster
from cluster_disk import backings_on
from pamqp import commands

from warren.amqp.settling import SETTLED_AT_ONCE
from warren.core.field import long, longstr
from warren.core.messages.message import Message
from warren.mgmt.messages.job import Job, JobState
from warren.mgmt.messages.plan import Action, JobPlan
from warren.mgmt.messages.targets import MessageTarget


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("when", ["before", "under way"])
def test_a_dead_letter_waits_for_a_limited_queue_whose_node_is_away(
    limited: bool, when: str
) -> None:
    cluster = Cluster("a", "b")
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    limits = {"x-max-length": long(1000), "x-overflow": longstr("reject-publish")}
    a.declares("dead", durable=True, arguments=limits if limited else {})
    b.declares(
        "source",
        durable=True,
        arguments={
            "x-dead-letter-exchange": longstr(""),
            "x-dead-letter-routing-key": longstr("dead"),
        },
    )
    b.publishes("source", b"precious")
    assert b.gets("source") is not None
    if when == "before":
        cluster.cut("a", "b")
        cluster.settle()
        b.nacks(1, requeue=False)
    else:
        b.nacks(1, requeue=False)
        cluster.cut("a", "b")
    cluster.settle()
    cluster["b"].clock.advance(0.5)
    cluster.connect("a", "b")
    for _ in range(5):
        cluster["b"].clock.advance(1)
        cluster.settle()
    assert len(cluster["a"].queue("dead")) >= 1


def test_recover_in_turns_with_deliveries_of_another_node() -> None:
    cluster = Cluster("a", "b")
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("far")
    b.declares("near")
    many = 3 * SETTLED_AT_ONCE
    for _ in range(many):
        b.publishes("near")
    b.consumes("far", "f")
    b.sends(commands.Basic.Consume, queue="near", consumer_tag="n", nowait=True)
    assert len(b.receives_deliveries()) == many
    b.sends(commands.Basic.Cancel, consumer_tag="n", nowait=True)
    a.publishes("far", b"1")
    cluster["b"].node.turns.left_us = -1
    b.sends(commands.Basic.Recover, requeue=True)
    b.frames()
    channel = b.connection.channels[1]
    tag = channel.last_delivery_tag
    assert list(channel.unacked) == [tag]
    b.acks(tag, multiple=True)
    cluster.settle()
    assert not channel.unacked


def test_queue_that_cannot_be_handed_over_yet_serves_its_clients() -> None:
    """Its dead letter waits for a queue that cannot be reached."""
    cluster = Cluster("a", "b", "c")
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("dead", durable=True)
    b.declares(
        "source",
        durable=True,
        arguments={
            "x-dead-letter-exchange": longstr(""),
            "x-dead-letter-routing-key": longstr("dead"),
        },
    )
    b.publishes("source", b"precious")
    assert b.gets("source") is not None
    cluster.cut("a", "b")
    cluster.settle()
    b.nacks(1, requeue=False)
    policy = {"ha-mode": "nodes", "ha-params": ["c"], "ha-sync-mode": "automatic"}
    cluster["c"].node.policies.set("/", "to-c", "^source$", policy, 0, "queues")
    b.selects_confirms()
    seconds, served = 70, 0
    for number in range(seconds):
        b.publishes("source", b"%d" % number)
        cluster.clock.advance(1)
        served += any(frame.method.name == "Basic.Ack" for frame in b.frames())
    assert served > 0.8 * seconds
    cluster.connect("a", "b")
    cluster.clock.advance(60)
    assert len(cluster["a"].queue("dead")) >= 1
    stored = cluster["c"].metadata.get(("queue", "/", "source"))
    assert stored is not None and stored.record.leader == "c"


@pytest.mark.parametrize(("first", "next_one"), [("a", "b"), ("b", "a"), ("b", "c")])
def test_message_is_moved_to_a_queue_that_gets_another_leader_meanwhile(
    first: str, next_one: str
) -> None:
    """The job at a looks up where it goes, and the lead moves before it sends the message."""
    cluster = Cluster("a", "b", "c")
    a, leader = cluster["a"].connects(), cluster[first].connects()
    for client in (a, leader):
        client.opens_channel(1)
    a.declares("source", durable=True)
    leader.declares("target", durable=True)
    a.publishes("source", b"precious", delivery_mode=2)
    vhost = cluster["a"].vhost
    looked_up = vhost.queues["target"]
    job = Job(
        cluster["a"].node, vhost.queues["source"], JobPlan(Action.MOVE, to_queue="target"), None
    )
    job._find = lambda message: MessageTarget((looked_up,), message.envelope)
    policy = {"ha-mode": "nodes", "ha-params": [next_one], "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "t", "^target$", policy, 0, "queues")
    cluster.clock.advance(15)
    assert vhost.queues["target"] is not looked_up
    task = ClockLoop(cluster["a"].clock).create_task(job.run())
    cluster.clock.advance(5)
    assert task.done() and job.state is JobState.COMPLETED and job.done == 1
    assert len(cluster[next_one].queue("target")) == 1


def test_message_stays_where_it_is_when_the_queue_it_goes_to_is_gone_meanwhile() -> None:
    cluster = Cluster("a", "b")
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("source", durable=True)
    b.declares("target")
    a.publishes("source", b"precious", delivery_mode=2)
    vhost = cluster["a"].vhost
    gone = vhost.queues["target"]
    job = Job(
        cluster["a"].node, vhost.queues["source"], JobPlan(Action.MOVE, to_queue="target"), None
    )
    job._find = lambda message: MessageTarget((gone,), message.envelope)
    b.sends(commands.Queue.Delete, queue="target")
    cluster.settle()
    task = ClockLoop(cluster["a"].clock).create_task(job.run())
    cluster.clock.advance(5)
    assert task.done() and job.state is JobState.COMPLETED
    assert list(job.left) == ["a queue was deleted before it had the message"]
    assert len(vhost.queues["source"]) == 1


MOVED_FROM = {
    "ring": ({"ha-mode": "all", "ha-sync-mode": "automatic"}, {}),
    "log": ({"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": "log"}, {}),
    "quorum": ({}, {"x-queue-type": longstr("quorum")}),
}


@pytest.mark.parametrize("kind", MOVED_FROM)
def test_what_is_moved_is_not_in_both_places_as_new_when_its_leader_dies(kind: str) -> None:
    """No mirror hears of the move before the leader dies: it is in its old place only, or counts
    as redelivered there."""
    policy, arguments = MOVED_FROM[kind]
    cluster = Cluster("a", "b", "c", new_backing=backings_on({}))
    if policy:
        cluster["a"].node.policies.set("/", "source", "^source$", policy, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="source", durable=True, arguments=arguments)
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    client.declares("target", durable=True)
    client.publishes("source", b"precious", delivery_mode=2)
    cluster.clock.advance(1)
    vhost = cluster["a"].vhost
    assert vhost.queues["source"].is_here
    for mirror in "bc":
        cluster.stall("a", mirror)
    job = Job(
        cluster["a"].node, vhost.queues["source"], JobPlan(Action.MOVE, to_queue="target"), None
    )
    ClockLoop(cluster["a"].clock).create_task(job.run())
    cluster.clock.advance(1)
    cluster.kill("a")
    cluster.clock.advance(15)
    cluster.comes_back("a")
    cluster.clock.advance(15)
    assert not len(cluster["a"].queue("target"))
    other = cluster["b"].connects()
    other.opens_channel(1)
    got = other.gets("source")
    assert got is not None and got.body == b"precious"


def test_job_ends_with_its_mirrored_queue() -> None:
    """The queue is deleted just before messages are taken out."""
    policy, _ = MOVED_FROM["log"]
    cluster = Cluster("a", "b", "c")
    cluster["a"].node.policies.set("/", "source", "^source$", policy, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="source", durable=True)
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    client.declares("target", durable=True)
    client.publishes("source", b"1", delivery_mode=2)
    cluster.clock.advance(1)
    vhost = cluster["a"].vhost
    source = vhost.queues["source"]
    job = Job(cluster["a"].node, source, JobPlan(Action.MOVE, to_queue="target"), None)
    find = job._find

    def find_and_delete(message: Message) -> MessageTarget:
        client.sends(commands.Queue.Delete, queue="source")
        cluster.settle()
        return find(message)

    job._find = find_and_delete
    task = ClockLoop(cluster["a"].clock).create_task(job.run())
    cluster.clock.advance(15)
    assert source.deleted
    assert task.done() and job.state in (JobState.COMPLETED, JobState.FAILED)
