"""Messages whose queue has lost its definition are kept until an operator moves or drops them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from api_client import ApiClient
from ctl_node import CtlNode
from scrape_broker import scrape
from unclaimed_node import change_definitions, drained, flipped, publish, stop, without_queue

from warren import Broker
from warren.config import Listener

BODIES = [b"message %05d" % number for number in range(300)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], CtlNode]]:
    """Starts a node in the same directory, again and again."""
    nodes: list[CtlNode] = []

    def start() -> CtlNode:
        nodes.append(CtlNode(tmp_path))
        return nodes[-1]

    yield start
    for node in nodes:
        node.end()


def unclaimed(node: CtlNode) -> list[list[str]]:
    """Without what was retained after its acknowledgement."""
    return [row[:3] for row in node.rows("list_unclaimed_messages")]


@pytest.fixture
def robbed(start: Callable[[], CtlNode]) -> CtlNode:
    """A node whose queue `q`, with 300 messages, has lost its definition."""
    node = start()
    publish(node, "q", BODIES)
    stop(node)
    change_definitions(node.data_directory, without_queue(b"q"))
    return start()


def test_they_are_kept_over_restarts_shown_and_moved_into_a_queue(
    robbed: CtlNode, start: Callable[[], CtlNode]
) -> None:
    node = robbed
    ((queue_id, messages, octets),) = unclaimed(node)
    assert (messages, octets) == ("300", "3900")
    assert node.server.log.count("messages_unclaimed") == 1
    assert f"queue={queue_id} messages=300 bytes=3900" in node.server.log
    assert f"recover_messages {queue_id} QUEUE" in node.server.log
    assert "Unclaimed messages: 300" in node("status").out
    node.server.kill()
    node = start()
    assert unclaimed(node) == [[queue_id, "300", "3900"]]
    stop(node)
    node = start()
    publish(node, "rescued", [b"before"])
    result = node("recover_messages", queue_id, "rescued")
    assert (result.code, result.lines[-1]) == (0, "300 messages were moved")
    assert unclaimed(node) == []
    node.server.kill()
    node = start()
    assert unclaimed(node) == []
    assert drained(node, "rescued") == [b"before", *BODIES]


def test_they_are_dropped_for_good_by_command(
    robbed: CtlNode, start: Callable[[], CtlNode]
) -> None:
    ((queue_id, _, _),) = unclaimed(robbed)
    result = robbed("forget_messages", queue_id)
    assert (result.code, result.lines[-1]) == (0, "300 messages were dropped")
    assert unclaimed(robbed) == []
    robbed.server.kill()
    node = start()
    assert unclaimed(node) == []
    assert "messages_unclaimed" not in node.server.log


def test_what_was_acknowledged_and_retained_is_moved_where_that_is_asked_for(
    start: Callable[[], CtlNode],
) -> None:
    node = start()
    retention = '{"retention": {"max-age": "1h"}}'
    assert node("set_policy", "keep", "^lost$", retention, "--apply-to", "queues").code == 0
    publish(node, "lost", BODIES[:5])
    with node.connected() as connection:
        channel = connection.channel()
        for _ in range(2):
            channel.basic_ack(channel.basic_get("lost")[0].delivery_tag)
    stop(node)
    change_definitions(node.data_directory, without_queue(b"lost"))
    node = start()
    ((queue_id, messages, _, retained),) = node.rows("list_unclaimed_messages")
    assert (messages, retained) == ("3", "2")
    publish(node, "rescued", [])
    assert node("recover_messages", queue_id, "rescued").lines[-1] == "3 messages were moved"
    assert node.rows("list_unclaimed_messages") == [[queue_id, "0", "0", "2"]]
    assert drained(node, "rescued") == BODIES[2:5]
    command = ("recover_messages", queue_id, "rescued", "--retained")
    assert node(*command).lines[-1] == "2 messages were moved"
    assert node.rows("list_unclaimed_messages") == []
    assert drained(node, "rescued") == BODIES[:2]


def test_where_they_cannot_go_they_stay(robbed: CtlNode) -> None:
    node = robbed
    ((queue_id, _, _),) = unclaimed(node)
    with node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare("brief")
        limits = {"x-max-length": 120, "x-overflow": "reject-publish"}
        channel.queue_declare("full", durable=True, arguments=limits)
        for command in (
            ("recover_messages", queue_id, "nowhere"),
            ("recover_messages", queue_id, "brief"),
            ("recover_messages", "123", "full"),
            ("forget_messages", "no number"),
        ):
            assert node(*command).code != 0
            assert unclaimed(node) == [[queue_id, "300", "3900"]]
        refused = node("recover_messages", queue_id, "full")
    assert refused.code != 0 and "takes no more messages" in refused.err
    assert unclaimed(node) == [[queue_id, "180", "2340"]]
    assert drained(node, "full") == BODIES[:120]


def test_a_kill_while_they_are_moved_loses_none(start: Callable[[], CtlNode]) -> None:
    bodies = [b"message %05d" % number for number in range(10_000)]
    node = start()
    publish(node, "q", bodies)
    stop(node)
    change_definitions(node.data_directory, without_queue(b"q"))
    node = start()
    ((queue_id, _, _),) = unclaimed(node)
    with node.connected() as connection:
        connection.channel().queue_declare("rescued", durable=True)
    command = ["ctl", "--data-dir", str(node.data_directory), "recover_messages"]
    mover = subprocess.Popen([sys.executable, "-P", "-m", "warren", *command, queue_id, "rescued"])
    while int(node.rows("list_queues", "messages")[0][0]) < 200:
        assert mover.poll() is None
    node.server.kill()
    assert mover.wait() != 0
    node = start()
    assert node("recover_messages", queue_id, "rescued").code == 0
    found = drained(node, "rescued")
    assert sorted(set(found)) == bodies
    # At most what was under way is there twice.
    assert len(found) <= len(bodies) + 100


def test_a_flipped_id_of_a_queue_costs_no_message(start: Callable[[], CtlNode]) -> None:
    node = start()
    publish(node, "q", BODIES)
    stop(node)
    # A long id is MessagePack's CF and 8 octets.
    change = flipped(b"queue", b"q", b"queue_id\xcf")
    change_definitions(node.data_directory, change)
    node = start()
    assert "definition_unreadable key=queue///q" in node.server.log
    ((key, reason),) = node.rows("list_unreadable_definitions")
    assert key == "queue///q" and "checksum" in reason
    assert node.rows("list_queues") == []
    assert "Unreadable definitions: 1" in node("status").out
    ((queue_id, messages, _),) = unclaimed(node)
    assert messages == "300"
    # It is left until somebody declares the queue anew.
    stop(node)
    node = start()
    assert len(node.rows("list_unreadable_definitions")) == 1
    publish(node, "q", [b"new"])
    assert node.rows("list_unreadable_definitions") == []
    assert node("recover_messages", queue_id, "q").code == 0
    node.server.kill()
    node = start()
    assert drained(node, "q") == [b"new", *BODIES]
    assert node.rows("list_unreadable_definitions") == []


def test_queues_of_a_virtual_host_with_a_damaged_record_come_back_with_it(
    start: Callable[[], CtlNode],
) -> None:
    node = start()
    publish(node, "q", BODIES)
    stop(node)
    change_definitions(node.data_directory, flipped(b"vhost", b"/", b"Default"))
    node = start()
    assert node.rows("list_unreadable_definitions")[0][0] == "vhost//"
    assert "messages_unreachable" in node.server.log and unclaimed(node) == []
    assert node("add_vhost", "/").code == 0
    assert drained(node, "q") == BODIES


def test_they_are_counted_where_a_node_is_watched(tmp_path: Path) -> None:
    def broker() -> Broker:
        listeners = (Listener("127.0.0.1", 0),)
        return Broker(http_port=0, metrics_listeners=listeners, data_dir=tmp_path)

    with broker() as running:
        connection = pika.BlockingConnection(pika.URLParameters(running.url))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"body", pika.BasicProperties(delivery_mode=2))
        connection.close()
        nothing = {"queues": 0, "messages": 0}
        assert ApiClient(running).get("/nodes")[1][0]["unclaimed_messages"] == nothing
    change_definitions(tmp_path, without_queue(b"q"))
    with broker() as running:
        client = ApiClient(running)
        (row,) = client.get("/unclaimed-messages")[1]
        assert (row["messages"], row["message_bytes"]) == (1, 4)
        assert client.get("/nodes")[1][0]["unclaimed_messages"] == {"queues": 1, "messages": 1}
        metrics = scrape(running)
        (name,) = (name for name in metrics if "storage_messages_unclaimed" in name)
        assert metrics[name] == 1
        # Only the command line of the machine drops them.
        assert client.delete(f"/control/unclaimed-messages/{row['id']}")[0] == 401
