"""`warren ctl`: commands for queues, connections and listeners."""

from __future__ import annotations

import pika
import pytest
from ctl_node import CtlNode

from warren.compat_tests.broker import parse_url
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import SocketClosed


def declare(node: CtlNode, name: str, messages: int = 0) -> None:
    with node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        channel.confirm_delivery()
        for _ in range(messages):
            channel.basic_publish("", name, b"m")


def close_reason(connection: pika.BlockingConnection) -> str:
    """What the broker closes the connection with."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=30)
    return str(closed.value.reply_text)


def pid_of(node: CtlNode, name: str) -> str:
    rows = node.rows("list_connections", "pid", "client_properties")
    return next(pid for pid, properties in rows if f'"{name}"' in properties)


def test_deleted_queue_tells_how_many_messages_went(ctl_node: CtlNode) -> None:
    declare(ctl_node, "goes", 3)
    deleted = ctl_node("delete_queue", "goes")
    assert (deleted.code, deleted.lines) == (
        0,
        [
            "Deleting queue 'goes' on vhost '/' ...",
            "Queue was successfully deleted with 3 ready messages",
        ],
    )
    gone = ctl_node("delete_queue", "goes")
    assert (gone.code, gone.err) == (64, "Error:\nQueue not found\n")


def test_queue_is_kept_unless_empty_and_unused(ctl_node: CtlNode) -> None:
    declare(ctl_node, "kept", 1)
    full = ctl_node("delete_queue", "kept", "--if-empty")
    assert (full.code, full.err) == (64, "Error:\nQueue is not empty\n")
    with ctl_node.connected() as connection:
        connection.channel().basic_consume("kept", lambda *_: None)
        used = ctl_node("delete_queue", "kept", "--if-unused")
        assert (used.code, used.err) == (64, "Error:\nQueue is in use\n")
    assert ctl_node("purge_queue", "kept").code == 0
    assert ctl_node("delete_queue", "kept", "--if-empty", "--if-unused").code == 0


def test_purged_queue_is_empty(ctl_node: CtlNode) -> None:
    declare(ctl_node, "full", 2)
    purged = ctl_node("purge_queue", "full")
    assert (purged.code, purged.out) == (0, "Purging queue 'full' in vhost '/' ...\n")
    assert ["full", "0"] in ctl_node.rows("list_queues")
    assert ctl_node("purge_queue", "none").err == "Error:\nnot_found\n"


def test_queue_without_mirrors_cannot_be_synchronised(ctl_node: CtlNode) -> None:
    declare(ctl_node, "alone")
    for command in ("sync_queue", "cancel_sync_queue"):
        refused = ctl_node(command, "alone")
        assert (refused.code, refused.err) == (69, "Error:\nnot_mirrored\n")
        missing = ctl_node(command, "none")
        assert (missing.code, missing.err) == (69, "Error:\nnot_found\n")


def test_rebalancing_one_node_moves_nothing(ctl_node: CtlNode) -> None:
    assert ctl_node("rebalance", "all", "--formatter", "json").json == [{"Output": []}]
    refused = ctl_node("rebalance", "some")
    said = "type some is not supported. Try one of all, classic, quorum."
    assert (refused.code, refused.err) == (69, f"Error:\n{said}\n")
    assert "invalid_regexp" in ctl_node("rebalance", "classic", "--queue-pattern", "(").err


def test_connection_is_closed_by_its_pid_with_the_reason(ctl_node: CtlNode) -> None:
    with ctl_node.connected("doomed") as connection:
        pid = pid_of(ctl_node, "doomed")
        closed = ctl_node("close_connection", pid, "go away, plëase")
        assert (closed.code, closed.out) == (
            0,
            f"Closing connection {pid}, reason: go away, plëase...\n",
        )
        assert close_reason(connection) == "CONNECTION_FORCED - go away, plëase"
    assert ctl_node("close_connection", pid, "again").code == 0
    assert ctl_node("close_connection", "<foo>", "x").code == 69


def test_all_connections_of_a_virtual_host_are_closed(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as one, ctl_node.connected() as other:
        assert ctl_node("close_all_connections", "-p", "nowhere", "x").lines[-1] == (
            "Closed 0 connections"
        )
        assert ctl_node("close_all_connections", "--limit", "1", "x").lines[-1] == (
            "Closed 1 connections"
        )
        assert ctl_node("close_all_connections", "--global", "x").lines[-1] == (
            "Closed 1 connections"
        )
        assert close_reason(one) == close_reason(other) == "CONNECTION_FORCED - x"


def test_all_connections_of_a_user_are_closed(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        assert ctl_node("close_all_user_connections", "nobody", "x").code == 0
        assert connection.is_open
        assert ctl_node("close_all_user_connections", "guest", "bye").code == 0
        assert close_reason(connection) == "CONNECTION_FORCED - bye"


def test_suspended_listeners_let_nobody_in(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        assert ctl_node("suspend_listeners").code == 0
        assert ctl_node("status", "--formatter", "json").json["is_under_maintenance"] is True
        with pytest.raises(pika.exceptions.AMQPConnectionError), ctl_node.connected():
            pass
        connection.channel()
        assert ctl_node("resume_listeners").code == 0
    with ctl_node.connected():
        pass
    assert ctl_node("status", "--formatter", "json").json["is_under_maintenance"] is False


def test_suspended_listeners_end_handshakes(ctl_node: CtlNode) -> None:
    """Somebody who has connected, and not logged in, is as new as others."""
    begun = RawClient(parse_url(ctl_node.server.url))
    try:
        assert ctl_node("suspend_listeners").code == 0
        with pytest.raises((SocketClosed, ConnectionError)):
            begun.open()
    finally:
        begun.abandon()
        assert ctl_node("resume_listeners").code == 0


def test_drained_node_has_no_clients_until_it_is_revived(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        assert ctl_node("drain").code == 0
        assert "maintenance" in close_reason(connection)
        assert ctl_node.rows("list_connections") == []
    assert ctl_node("revive").code == 0
    with ctl_node.connected():
        pass
