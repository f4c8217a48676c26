"""`warren ctl`: the commands of `rabbitmq-queues` for quorum queues, on one node."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from ctl_node import CtlNode

MISSING = "Error:\nnot_found\n"


def declare(node: CtlNode, name: str, *bodies: bytes, **properties: Any) -> None:
    """A quorum queue with messages in it."""
    with node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", name, body, pika.BasicProperties(**properties))


@pytest.fixture
def classic(ctl_node: CtlNode) -> str:
    with ctl_node.connected() as connection:
        connection.channel().queue_declare("a-classic-one")
    return "a-classic-one"


def failure(node: CtlNode, *command: str) -> str:
    result = node(*command)
    assert result.code == 69, result
    return result.err


def test_status_has_the_one_member(ctl_node: CtlNode, classic: str) -> None:
    declare(ctl_node, "status", b"a", b"b")
    (row,) = ctl_node("quorum_status", "status", "--formatter", "json").json
    assert list(row) == [
        "Node Name",
        "Raft State",
        "Log Index",
        "Commit Index",
        "Snapshot Index",
        "Term",
        "Machine Version",
    ]
    assert (row["Node Name"], row["Raft State"]) == (ctl_node.name, "leader")
    assert (row["Log Index"], row["Commit Index"]) == (2, 2)
    assert (row["Snapshot Index"], row["Term"], row["Machine Version"]) == ("undefined", 1, 2)
    assert failure(ctl_node, "quorum_status", "nope") == MISSING
    said = "Error:\nCannot get quorum status of a classic queue\n"
    assert failure(ctl_node, "quorum_status", classic) == said


def test_members_of_one_node(ctl_node: CtlNode, classic: str) -> None:
    declare(ctl_node, "members")
    name = ctl_node.name
    assert ctl_node("add_member", "members", name).code == 0
    assert failure(ctl_node, "add_member", "members", "zz@x") == "Error:\nnode_not_running\n"
    assert failure(ctl_node, "delete_member", "members", name) == "Error:\nlast_node\n"
    assert ctl_node("delete_member", "members", "zz@x").code == 0
    for command in ("add_member", "delete_member"):
        assert failure(ctl_node, command, "nope", name) == MISSING
        said = "Error:\nCannot add members to a classic queue\n"
        assert failure(ctl_node, command, classic, name) == said


def test_growing_and_shrinking(ctl_node: CtlNode) -> None:
    declare(ctl_node, "grown")
    name = ctl_node.name
    for node, strategy in ((name, "all"), ("zz@x", "all"), (name, "even")):
        grown = ctl_node("-s", "grow", node, strategy)
        assert (grown.code, grown.out.strip()) == (0, "")
    odd = ctl_node("grow", name, "odd")
    assert odd.code == 64 and "strategy 'odd' is not recognised." in odd.err
    assert ctl_node("grow", name, "all", "--queue-pattern", "(").code == 69
    shrunk = ctl_node.rows("shrink", name)
    assert ["/", "grown", "1", "error: the last node cannot be removed"] in shrunk
    assert ctl_node("-s", "shrink", "zz@x").out.strip() == ""


def test_rebalancing_counts_quorum_queues(ctl_node: CtlNode) -> None:
    declare(ctl_node, "balanced")
    for kind in ("all", "quorum"):
        (row,) = ctl_node(
            "rebalance", kind, "--queue-pattern", "^balanced$", "--formatter", "json"
        ).json
        assert row == {
            "Node name": ctl_node.name,
            "Number of quorum queues": 1,
            "Number of replicated classic queues": 0,
        }
    assert ctl_node("rebalance", "classic", "--formatter", "json").json == [{"Output": []}]


def test_a_single_node_is_not_critical(ctl_node: CtlNode) -> None:
    declare(ctl_node, "critical")
    checked = ctl_node("check_if_node_is_quorum_critical")
    assert checked.code == 0 and "the check does not apply" in checked.out


def test_peek_shows_a_message_that_stays(ctl_node: CtlNode, classic: str) -> None:
    headers = {"a": 1, "t": "text"}
    declare(ctl_node, "looked-at", b"x" * 70, b"second", headers=headers, delivery_mode=2)
    shown = ctl_node("peek", "looked-at", "1", "--formatter", "json").json
    assert shown["result"] == "ok"
    assert shown["message"] == {
        "delivery_mode": 2,
        "routing_keys": ["looked-at"],
        "exchange": "",
        "payload (max 64 bytes)": "x" * 64,
        "header.a": 1,
        "header.t": "text",
    }
    with ctl_node.connected() as connection:
        channel = connection.channel()
        method, _, _ = channel.basic_get("looked-at")
        channel.basic_nack(method.delivery_tag)
        while channel.queue_declare("looked-at", passive=True).method.message_count < 2:
            pass
    rows = ctl_node.rows("peek", "looked-at", "2")
    assert ["routing_keys", "looked-at"] in rows
    assert ["header.x-delivery-count", "1"] in rows
    assert (
        ctl_node("peek", "looked-at", "1", "--formatter", "json").json["message"][
            "payload (max 64 bytes)"
        ]
        == "second"
    )
    said = "Error:\nTarget queue does not have a message at that position\n"
    assert failure(ctl_node, "peek", "looked-at", "3") == said
    said = "Error:\nTarget queue was not found in virtual host '/'\n"
    assert failure(ctl_node, "peek", "nope", "1") == said
    said = "Error:\nCannot peek into a classic queue\n"
    assert failure(ctl_node, "peek", classic, "1") == said
    for position in ("0", "-1", "x"):
        wrong = ctl_node("peek", "looked-at", "--", position)
        assert wrong.code == 64 and "position value must be a positive integer" in wrong.err


def test_lists_tell_the_type_and_the_members(ctl_node: CtlNode, classic: str) -> None:
    declare(ctl_node, "listed", b"m")
    name = ctl_node.name
    rows = ctl_node.rows("list_queues", "name", "type", "leader", "members", "online", "messages")
    assert ["listed", "quorum", name, f"[{name}]", f"[{name}]", "1"] in rows
    assert [classic, "classic", "", "", "", "0"] in rows
    assert ctl_node("list_queues", "messages_dlx").code == 64


def test_a_quorum_queue_is_not_deleted_on_a_condition(ctl_node: CtlNode) -> None:
    declare(ctl_node, "conditional")
    for flag, condition in (("--if-empty", "if-empty"), ("--if-unused", "if-unused")):
        refused = ctl_node("delete_queue", "conditional", flag)
        assert refused.code == 64
        assert f"{condition} flag set are not supported by quorum queues" in refused.err
    assert ctl_node("delete_queue", "conditional").code == 0


def test_default_type_of_a_virtual_host(ctl_node: CtlNode) -> None:
    assert ctl_node("add_vhost", "typed", "--default-queue-type", "quorum").code == 0
    assert ["typed", "quorum"] in ctl_node.rows("list_vhosts", "name", "default_queue_type")
    bad = ctl_node("add_vhost", "bad", "--default-queue-type", "zz")
    assert (bad.code, bad.err) == (69, "Error:\ninvalid_queue_type\n")
    ctl_node("set_permissions", "-p", "typed", "guest", ".*", ".*", ".*")
    parameters = pika.URLParameters(ctl_node.server.url)
    parameters.virtual_host = "typed"
    connection = pika.BlockingConnection(parameters)
    connection.channel().queue_declare("q", durable=True)
    connection.close()
    assert ctl_node.rows("list_queues", "-p", "typed", "name", "type") == [["q", "quorum"]]
    exported = ctl_node("export_definitions", "-", "--formatter", "json")
    assert '"default_queue_type":"quorum"' in exported.out.replace(" ", "")
    assert '"type":"quorum"' in exported.out.replace(" ", "")
