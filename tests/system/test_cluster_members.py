"""`warren ctl` and the members of a cluster: looking, waiting, stopping, forgetting, resetting."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from urllib.request import Request, urlopen

import pytest
from pika.exceptions import AMQPConnectionError
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until
from warren_command import run_warren

from warren.config import ClusterConfig
from warren.mirror.members.directory import member_key


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Nodes a and b; each test leaves them up and linked, and without queues."""
    cluster = RunningCluster(tmp_path_factory.mktemp("cluster"), "a", "b")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


Ctl = Callable[..., str]


def run(node: ClusterProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_warren("ctl", "--data-dir", node.data_directory, *arguments)


def ctl(node: ClusterProcess, *arguments: str) -> str:
    """What it prints; it has to succeed."""
    done = run(node, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(node: ClusterProcess, *arguments: str) -> tuple[int, str]:
    done = run(node, *arguments)
    assert done.returncode != 0, done.stdout
    return done.returncode, done.stderr


def test_cluster_status_shows_all_nodes(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    said = json.loads(ctl(a, "cluster_status", "--formatter", "json"))
    names = [a.name, b.name]
    assert said["disk_nodes"] == said["running_nodes"] == names
    for section in ("versions", "maintenance_status", "listeners"):
        assert sorted(said[section]) == names, section
    assert (said["ram_nodes"], said["partitions"], said["alarms"]) == ([], {}, [])
    # Federation goes by the name: it is the same at all nodes before anybody gives one.
    assert said["cluster_name"] in names
    text = ctl(b, "cluster_status")
    assert f"Cluster name: {said['cluster_name']}" in text
    assert f"Node: {a.name}, interface: 127.0.0.1, port: {a.amqp_port}, protocol: amqp" in text
    assert f"Node: {b.name}, status: not under maintenance" in text
    ctl(a, "set_cluster_name", "burrow")
    wait_until(lambda: "Cluster name: burrow" in ctl(b, "cluster_status"))


def test_await_online_nodes_waits_for_so_many(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    ctl(a, "await_online_nodes", "2")
    code, error = refused(a, "-t", "0.2", "await_online_nodes", "3")
    assert code == 70 and "operation timed out" in error
    b.kill()
    cluster.wait_until_linked("a")
    b.launch()
    ctl(a, "await_online_nodes", "2")
    b.wait_until_ready()
    cluster.wait_until_linked("a", "b")


def test_an_app_that_is_stopped_can_be_asked_and_started_again(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    connection = b.connect()
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"kept"])
    assert f"Stopping rabbit application on node {b.name}" in ctl(b, "stop_app")
    assert b.is_up
    with pytest.raises(AMQPConnectionError):
        b.connect()
    cluster.wait_until_linked("a")
    said = json.loads(ctl(a, "cluster_status", "--formatter", "json"))
    assert (said["running_nodes"], said["disk_nodes"]) == ([a.name], [a.name, b.name])
    assert [row["running"] for row in a.asks("nodes")] == [True, False]
    (row,) = a.asks("queues")
    assert (row["node"], row["state"], row.get("messages")) == (b.name, "down", None)
    assert row["waits_for"] == f"its leader {b.name}"
    assert ctl(a, "list_queues", "--quiet", "waits_for").splitlines()[-1] == row["waits_for"]
    assert "Ping succeeded" in ctl(b, "ping")
    assert f"Node name: {b.name}" in ctl(b, "status")
    assert "is not running" in ctl(b, "is_running")
    assert refused(b, "check_running")[0] == 69
    code, error = refused(b, "list_queues")
    assert code == 69 and "start_app" in error
    assert refused(b, "-t", "0.2", "await_startup")[0] == 70
    assert ctl(b, "-q", "stop_app") == ""
    ctl(b, "start_app")
    cluster.wait_until_linked("a", "b")
    ctl(b, "await_startup")
    again = b.connect().channel()
    assert take(again, "q", 1) == [b"kept"]
    again.queue_delete("q")


def test_an_app_that_cannot_start_says_why_and_stays_stopped(cluster: RunningCluster) -> None:
    b = cluster["b"]
    ctl(b, "stop_app")
    cluster["a"].stop()
    cluster.etcd.kill()
    code, error = refused(b, "start_app")
    assert code == 69 and "cannot use the etcd of its cluster" in error
    assert "etcd" in refused(b, "reset")[1]
    cluster.etcd.start()
    cluster["a"].start()
    ctl(b, "start_app")
    cluster.wait_until_linked("a", "b")


def test_a_stopped_app_ends_with_its_process(cluster: RunningCluster) -> None:
    b = cluster["b"]
    ctl(b, "stop_app")
    b.stop()
    assert not (b.data_directory / "control.sock").exists()
    b.start()
    ctl(b, "stop_app")
    ctl(b, "stop")
    b.ended()
    b.start()
    cluster.wait_until_linked("a", "b")


def test_a_node_that_was_reset_joins_as_another(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = b.connect().channel()
    channel.queue_declare("of-b", durable=True)
    publish(channel, "of-b", [b"lost with it"])
    for command in (("reset",), ("force_reset",), ("join_cluster", a.name)):
        code, error = refused(b, *command)
        assert code == 70 and "is still running" in error, command
    ctl(b, "stop_app")
    identity = (b.data_directory / "identity.json").read_text()
    assert "already a member" in ctl(b, "join_cluster", a.name)
    assert f"Resetting node {b.name}" in ctl(b, "reset")
    assert (b.data_directory / "identity.json").read_text() != identity
    left = {path.name for path in b.data_directory.iterdir()}
    assert left == {"identity.json", "lock", "control.sock"}
    said = json.loads(ctl(a, "cluster_status", "--formatter", "json"))
    assert said["disk_nodes"] == [a.name]
    assert a.asks("queues") == []
    code, error = refused(b, "join_cluster", "nobody@127.0.0.1")
    assert code == 70 and f"its members: {a.name}" in error
    ctl(b, "join_cluster", a.name)
    ctl(b, "start_app")
    cluster.wait_until_linked("a", "b")
    assert json.loads(ctl(b, "cluster_status", "--formatter", "json"))["disk_nodes"] == [
        a.name,
        b.name,
    ]


def test_a_node_that_was_reset_is_no_member_of_queues(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = b.connect().channel()
    for kind in ("quorum", "stream"):
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
        publish(channel, kind, [b"kept"])
        a.until_queue(kind, lambda row: len(row.get("online", ())) == 2)
    ctl(b, "stop_app")
    ctl(b, "reset")
    for kind in ("quorum", "stream"):
        a.until_queue(kind, lambda row: row.get("members") == [a.name] and row["messages"] == 1)
    ctl(b, "start_app")
    cluster.wait_until_linked("a", "b")
    ctl(a, "add_replica", "stream", b.name)
    b.until_queue("stream", lambda row: set(row.get("online", ())) == {a.name, b.name})
    for kind in ("quorum", "stream"):
        a.does("DELETE", "queues", "/", kind)


def test_a_node_that_has_died_is_forgotten_as_soon_as_it_counts_as_down(
    cluster: RunningCluster,
) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = a.connect().channel()
    types = {"q1": "quorum", "q2": "quorum", "s": "stream"}
    for queue, kind in types.items():
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        wait_until(lambda: len(a.asks("queues", "/", queue)["members"]) == 2)  # noqa: B023
    b.kill()
    cluster.wait_until_linked("a")
    # Its presence lasts for a while: the command waits for the end of it.
    assert f"Removing node {b.name} from the cluster" in ctl(a, "forget_cluster_node", b.name)
    assert [row["name"] for row in a.asks("nodes")] == [a.name]
    assert [row["members"] for row in a.asks("queues")] == [[a.name]] * 3
    for queue in types:
        channel.queue_delete(queue)
    b.data_directory.rename(b.data_directory.with_name("b-died"))
    b.start()
    cluster.wait_until_linked("a", "b")


def test_a_queue_whose_leader_is_forgotten_tells_what_it_waits_for_and_can_be_deleted(
    cluster: RunningCluster,
) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = b.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("later", durable=True)
    publish(channel, "later", [b"older than its mirror"])
    definition = {"ha-mode": "all", "ha-promote-on-failure": "when-synced"}
    a.changes("policies", "/", "later", body={"pattern": "later", "definition": definition})
    a.until_queue("later", lambda row: row.get("slave_nodes"))
    b.kill()
    cluster.wait_until_linked("a")
    ctl(a, "forget_cluster_node", b.name)
    assert "its deletion, or a policy with ha-promote" in ctl(a, "list_queues", "waits_for")
    assert "deleted with 0 ready messages" in ctl(a, "delete_queue", "later")
    assert a.asks("queues") == []
    a.does("DELETE", "policies", "/", "later")
    b.data_directory.rename(b.data_directory.with_name("b-had-all"))
    b.start()
    cluster.wait_until_linked("a", "b")


def test_a_node_that_is_forgotten_may_not_come_back_as_it_was(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = b.connect().channel()
    channel.queue_declare("of-b", durable=True)
    code, error = refused(a, "forget_cluster_node", b.name)
    assert code == 69 and f"RabbitMQ on node {b.name} must be stopped" in error
    code, error = refused(a, "forget_cluster_node", "nobody@127.0.0.1")
    assert code == 69 and "The node selected is not in the cluster." in error
    b.stop()
    cluster.wait_until_linked("a")
    assert f"Removing node {b.name} from the cluster" in ctl(a, "forget_cluster_node", b.name)
    assert a.asks("queues") == []
    assert [row["name"] for row in a.asks("nodes")] == [a.name]
    assert "has forgotten node" in b.fails()
    # What is not needed is refused with the reason.
    for command in (("change_cluster_node_type", "disc"), ("update_cluster_nodes", b.name)):
        code, error = refused(a, *command)
        assert code == 69 and "is not needed here" in error
    b.data_directory.rename(b.data_directory.with_name("b-before"))
    b.start()
    cluster.wait_until_linked("a", "b")


def test_forgetting_is_repeated_when_the_node_that_did_it_was_killed_in_between(
    cluster: RunningCluster,
) -> None:
    a, b = cluster["a"], cluster["b"]
    channel = b.connect().channel()
    channel.queue_declare("of-b", durable=True)
    channel.queue_declare("shared", durable=True, arguments={"x-queue-type": "quorum"})
    wait_until(lambda: len(a.asks("queues", "/", "shared")["members"]) == 2)
    b.stop()
    cluster.wait_until_linked("a")
    # The first step alone: b is no member any more.
    key = member_key(ClusterConfig((), b"").etcd_prefix, b.name)
    body = json.dumps({"key": b64encode(key).decode()}).encode()
    with urlopen(Request(f"{cluster.etcd.url}/v3/kv/deleterange", body)) as answer:
        assert json.load(answer)["deleted"] == "1"
    assert f"Removing node {b.name} from the cluster" in ctl(a, "forget_cluster_node", b.name)
    assert [(row["name"], row["members"]) for row in a.asks("queues")] == [("shared", [a.name])]
    assert refused(a, "forget_cluster_node", b.name)[0] == 69
    a.does("DELETE", "queues", "/", "shared")
    b.data_directory.rename(b.data_directory.with_name("b-interrupted"))
    b.start()
    cluster.wait_until_linked("a", "b")
