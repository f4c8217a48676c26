"""A cluster of real processes, as clients meet it: queues of other nodes, and nodes that go."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    StreamLostError,
    UnroutableError,
)
from running_cluster import RunningCluster, publish, take, wait_until

LEASES_END = True
"""Tests wait until the lease of a node ends."""


def test_any_queue_is_used_from_any_node(running_cluster: RunningCluster) -> None:
    a, b, c = (running_cluster[name].connect() for name in "abc")
    a.channel().queue_declare("q", durable=True)
    publisher = b.channel()
    publisher.confirm_delivery()
    bodies = [b"%d" % number for number in range(100)]
    publish(publisher, "q", bodies)
    consumer = c.channel()
    assert take(consumer, "q", 100) == bodies
    consumer.queue_bind("q", "amq.topic", "a.#")
    lasting = pika.BasicProperties(delivery_mode=2)
    publisher.basic_publish("amq.topic", "a.b", b"large" * 300_000, lasting, mandatory=True)
    assert take(a.channel(), "q", 1) == [b"large" * 300_000]
    publisher.queue_delete("q")
    with pytest.raises(ChannelClosedByBroker, match="no queue 'q'"):
        consumer.queue_declare("q", passive=True)


def test_an_exclusive_queue_is_of_one_connection_of_the_cluster(
    running_cluster: RunningCluster,
) -> None:
    a, b = running_cluster["a"].connect(), running_cluster["b"].connect()
    a.channel().queue_declare("mine", exclusive=True)
    with pytest.raises(ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        b.channel().queue_declare("mine", exclusive=True)
    a.close()

    def is_free() -> bool:
        try:
            b.channel().queue_declare("mine", exclusive=True)
        except ChannelClosedByBroker:
            return False
        return True

    # The other nodes hear of it in a moment.
    wait_until(is_free)


def test_a_node_that_is_killed_comes_back_with_its_durable_queues(
    running_cluster: RunningCluster,
) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    theirs = b.connect()
    channel = theirs.channel()
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("transient")
    channel.queue_declare("exclusive", exclusive=True)
    channel.exchange_declare("logs", "fanout", durable=True)
    channel.queue_bind("durable", "logs")
    channel.queue_bind("transient", "logs")
    channel.confirm_delivery()
    bodies = [b"%d" % number for number in range(50)]
    publish(channel, "durable", bodies)
    ours = a.connect()
    working = ours.channel()
    working.queue_declare("ours", durable=True)
    working.confirm_delivery()
    b.kill()
    running_cluster.wait_until_linked("a", "c")
    # Other clients go on, over the exchange too.
    publish(working, "ours", [b"still here"])
    assert take(working, "ours", 1) == [b"still here"]
    with pytest.raises(ChannelClosedByBroker, match=r"home node 'b@127\.0\.0\.1' of durable queue"):
        ours.channel().queue_declare("durable", durable=True)
    refused = ours.channel()
    refused.confirm_delivery()
    with pytest.raises((NackError, UnroutableError)):
        publish(refused, "durable", [b"nobody takes this"])

    def queues() -> set[str]:
        return {row["name"] for row in a.asks("queues", columns="name")}

    wait_until(lambda: queues() == {"durable", "ours"})
    b.start()
    running_cluster.wait_until_linked("a", "b", "c")
    assert take(ours.channel(), "durable", 50) == bodies


def test_nodes_pause_without_etcd_and_lose_nothing(running_cluster: RunningCluster) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    one, other = a.connect(), b.connect()
    one.channel().queue_declare("q", durable=True)
    publisher = other.channel()
    publisher.confirm_delivery()
    bodies = [b"%d" % number for number in range(20)]
    publish(publisher, "q", bodies)
    running_cluster.etcd.kill()
    for connection in (one, other):
        with pytest.raises((ConnectionClosedByBroker, StreamLostError)):
            while True:
                connection.process_data_events(time_limit=1)
    for node in (a, b):
        wait_until(lambda: "node_pausing" in node.log)  # noqa: B023
        assert node.is_up
    with pytest.raises(AMQPConnectionError):
        a.connect()
    running_cluster.etcd.start()
    running_cluster.wait_until_linked("a", "b", "c")
    again = running_cluster["c"].connect()
    assert take(again.channel(), "q", 20) == bodies


def test_a_node_that_pauses_can_be_stopped(running_cluster: RunningCluster) -> None:
    c = running_cluster["c"]
    running_cluster.etcd.kill()
    pauses = c.log.count("node_pausing")
    wait_until(lambda: c.log.count("node_pausing") > pauses)
    c.stop()
    running_cluster.etcd.start()


def test_a_node_that_stood_still_is_down_for_the_others_and_comes_back(
    running_cluster: RunningCluster,
) -> None:
    b = running_cluster["b"]
    before = b.connect()
    before.channel().queue_declare("q", durable=True)
    publish(before.channel(), "q", [b"kept"])
    b.stand_still()
    running_cluster.wait_until_linked("a", "c")
    ours = running_cluster["a"].connect()
    with pytest.raises(ChannelClosedByBroker, match="is down or inaccessible"):
        ours.channel().queue_declare("q", durable=True, passive=True)
    b.go_on()
    running_cluster.wait_until_linked("a", "b", "c")
    assert take(ours.channel(), "q", 1) == [b"kept"]


def test_what_keeps_a_node_from_its_cluster_is_said_in_one_line(
    running_cluster: RunningCluster,
) -> None:
    a = running_cluster["a"]
    stranger = running_cluster.new_node("stranger")
    stranger.config = running_cluster.config.replace(running_cluster.etcd.url, "http://127.0.0.1:1")
    assert "127.0.0.1:1" in stranger.fails()
    stranger.config = running_cluster.config
    stranger.name = a.name
    assert f"duplicate name: a node {a.name} is up" in stranger.fails()
    stranger.name = "stranger@127.0.0.1"
    # Nothing of that has harmed its data directory.
    stranger.start()
    stranger.stop()
    elsewhere = running_cluster.config + "cluster_formation.etcd.cluster_name = other\n"
    stranger.config = elsewhere
    assert "etcd has no cluster below /warren/other" in stranger.fails()
    running_cluster.new_node("founder", elsewhere).start()
    said = stranger.fails()
    assert "belongs to cluster" in said and "etcd holds" in said
    stranger.config = running_cluster.config
    stranger.start()
    running_cluster.nodes["stranger"] = stranger
    running_cluster.wait_until_linked("a", "b", "c", "stranger")


DISCOVERY = {
    "listed": "cluster_formation.classic_config.nodes.1 = x@127.0.0.9\n"
    "cluster_formation.classic_config.nodes.2 = a@127.0.0.1\n",
    "dns": "cluster_formation.peer_discovery_backend = dns\n"
    "cluster_formation.dns.hostname = localhost\n",
}


@pytest.mark.parametrize("way", DISCOVERY)
def test_nodes_find_the_cluster_at_the_hosts_that_are_listed_or_by_dns(
    running_cluster: RunningCluster, way: str
) -> None:
    etcd = running_cluster.etcd
    given = f"cluster_formation.etcd.port = {etcd.port}\n{DISCOVERY[way]}"
    known = f"cluster_formation.etcd.endpoints.1 = {etcd.url}\n"
    assert known in running_cluster.config
    stranger = running_cluster.new_node("stranger", running_cluster.config.replace(known, given))
    stranger.start()
    running_cluster.nodes["stranger"] = stranger
    running_cluster.wait_until_linked("a", "b", "c", "stranger")


def test_a_node_with_another_secret_is_told_so(running_cluster: RunningCluster) -> None:
    stranger = running_cluster.new_node("stranger")
    stranger.config = running_cluster.config.replace("a secret of", "another secret of")
    assert "has another secret than the nodes of the cluster" in stranger.fails()
    stranger.config = running_cluster.config
    stranger.start()


def test_an_etcd_that_has_lost_its_data_costs_no_message(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a")
    a = cluster["a"]
    connection = a.connect()
    connection.channel().queue_declare("q", durable=True)
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel, "q", [b"kept"])
    connection.close()
    a.stop()
    cluster.etcd.kill()
    directory = cluster.etcd.data
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    cluster.etcd.lose_data()
    cluster.etcd.start()
    assert "etcd has no cluster below /warren/default" in a.fails()
    cluster.etcd.kill()
    cluster.etcd.lose_data()
    shutil.move(backup, directory)
    cluster.etcd.start()
    a.start()
    assert take(a.connect().channel(), "q", 1) == [b"kept"]


def test_a_node_brings_what_it_had_alone_into_a_new_cluster_only(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a")
    # Without its cluster it is a node that is alone.
    alone = cluster.new_node("alone", "")
    alone.start()
    channel = alone.connect().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"kept"])
    alone.close_connections()
    alone.stop()
    alone.config = cluster.config
    assert "has definitions of its own, and the cluster has others" in alone.fails()
    alone.config = cluster.config + "cluster_formation.etcd.cluster_name = new\n"
    alone.start()
    assert take(alone.connect().channel(), "q", 1) == [b"kept"]
    assert alone.linked() == {alone.name}


def test_a_node_that_ended_while_it_began_a_cluster_goes_on(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster()
    node = cluster.new_node("alone", "")
    node.start()
    channel = node.connect().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"kept"])
    node.close_connections()
    node.stop()
    node.config = cluster.config
    node.start()
    node.kill()
    # It was killed when it had joined, and had not noted yet whose member it is.
    directory = node.data_directory
    (directory / "cluster.json").rename(directory / "cluster.begun")
    node.start()
    assert take(node.connect().channel(), "q", 1) == [b"kept"]
    assert not (directory / "cluster.begun").exists()


def test_a_stopped_cluster_starts_with_what_lasts(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a", "b")
    b = cluster["b"].connect()
    channel = b.channel()
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("transient")
    channel.confirm_delivery()
    publish(channel, "durable", [b"kept"])
    b.close()
    for name in "ab":
        cluster[name].stop()
    # With another secret, if all of them have it.
    for name in "ab":
        cluster[name].config = cluster.config.replace("a secret of", "another secret of")
        cluster[name].start()
    cluster.wait_until_linked("a", "b")
    a = cluster["a"]
    assert [row["name"] for row in a.asks("queues", columns="name")] == ["durable"]
    assert take(a.connect().channel(), "durable", 1) == [b"kept"]
