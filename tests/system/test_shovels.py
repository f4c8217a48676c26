"""Shovels between nodes that are processes of their own, and within a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until
from server_process import ServerProcess

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget

LEASES_END = True
"""Tests wait until the lease of a node ends."""

MESSAGES = 2000


def test_killed_destination_gets_every_message(
    start_server: Callable[..., ServerProcess],
    tmp_path: Path,
    until: Callable[[Callable[[], object]], None],
) -> None:
    source = start_server(data_dir=tmp_path / "source")
    destination = start_server(data_dir=tmp_path / "destination")
    client = ControlClient(LocalTarget(tmp_path / "source"), 30)
    value = {
        "src-uri": "amqp://",
        "src-queue": "q",
        "src-prefetch-count": 50,
        "src-delete-after": "queue-length",
        "dest-uri": destination.url,
        "dest-queue": "q",
        "reconnect-delay": 0.05,
    }
    bodies = [str(number).encode() for number in range(MESSAGES)]
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        persistent = pika.BasicProperties(delivery_mode=2)
        for body in bodies:
            channel.basic_publish("", "q", body, persistent)
        # This answer comes when all of them are in the queue.
        assert channel.queue_declare("q", passive=True).method.message_count == MESSAGES

    # The destination takes a quarter and no more, so that it dies before it has everything.
    quarter = {"pattern": "^q$", "definition": {"max-length": 500, "overflow": "reject-publish"}}
    with_control(tmp_path / "destination", "PUT", "policies", "/", "quarter", body=quarter)
    client.put("parameters", "shovel", "/", "s", body={"value": value})
    until(lambda: any(row.get("waiting_for") for row in client.get("shovels")))
    destination.kill()
    destination = start_server(
        data_dir=tmp_path / "destination", amqp=f"127.0.0.1:{destination.port}"
    )
    with_control(tmp_path / "destination", "DELETE", "policies", "/", "quarter")
    until(lambda: client.get("shovels") == [])
    client.close()
    arrived: Counter[bytes] = Counter()
    with pika.BlockingConnection(pika.URLParameters(destination.url)) as connection:
        channel = connection.channel()
        count = channel.queue_declare("q", passive=True).method.message_count
        arrived.update(take(channel, "q", count))
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        assert connection.channel().queue_declare("q", passive=True).method.message_count == 0
    assert set(arrived) == set(bodies)
    # What was on its way when the destination died may have arrived and not been confirmed.
    assert sum(arrived.values()) - MESSAGES <= 50


def with_control(data_dir: Path, method: str, *path: str, body: Any = None) -> None:
    client = ControlClient(LocalTarget(data_dir), 30)
    client.request(method, *path, body=body)
    client.close()


def shown(node: ClusterProcess) -> Any:
    """Node and state of the shovel s, as the node tells."""
    return next(((row["node"], row["state"]) for row in node.asks("shovels")), None)


def test_survivor_takes_over_and_every_node_controls_the_shovel(
    running_cluster: RunningCluster,
) -> None:
    cluster = running_cluster
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    channel = cluster["b"].connect().channel()
    channel.confirm_delivery()
    for queue in ("from", "to"):
        # At b, which stays.
        channel.queue_declare(queue, durable=True)
    cluster["a"].changes("parameters", "shovel", "/", "s", body={"value": value})
    for node in cluster.nodes.values():
        wait_until(lambda: shown(node) == ("a@127.0.0.1", "running"))  # noqa: B023
    cluster["b"].does("DELETE", "shovels", "vhost", "/", "s", "restart")
    wait_until(lambda: shown(cluster["c"]) == ("a@127.0.0.1", "running"))
    cluster["a"].kill()
    wait_until(
        lambda: (row := shown(cluster["b"])) and row[0] != "a@127.0.0.1" and row[1] == "running"
    )
    assert shown(cluster["c"]) == shown(cluster["b"])
    logs = [cluster[name].log for name in "bc"]
    assert sum("shovel_running" in log for log in logs) == 1
    cluster["a"].start()
    cluster.wait_until_linked(*cluster.nodes)
    taken_over = shown(cluster["b"])
    wait_until(lambda: shown(cluster["a"]) == taken_over)
    publish(channel, "from", [b"x"])
    wait_until(lambda: cluster["b"].queue("to").get("messages") == 1)
    cluster["a"].does("DELETE", "shovels", "vhost", "/", "s")
    for node in cluster.nodes.values():
        wait_until(lambda: shown(node) is None)  # noqa: B023
