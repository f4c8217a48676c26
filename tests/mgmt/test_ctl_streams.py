"""`warren ctl`: the commands of `rabbitmq-streams`, on one node."""

from __future__ import annotations

from typing import Any

import pytest
from ctl_node import CtlNode

MISSING = "Error:\nnot_found\n"
COLUMNS = ("role", "node", "offset", "committed_offset", "first_offset", "readers", "segments")


def declare(node: CtlNode, name: str, kind: str, *bodies: bytes) -> None:
    """A queue of this type with messages in it."""
    with node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", name, body)


@pytest.fixture
def others(ctl_node: CtlNode) -> list[str]:
    """Types of queues that are no streams; there is a queue of each, with that name."""
    for kind in ("classic", "quorum"):
        declare(ctl_node, kind, kind)
    return ["classic", "quorum"]


def failure(node: CtlNode, *command: str) -> str:
    result = node(*command)
    assert result.code == 69, result
    return result.err


def status(node: CtlNode, stream: str) -> Any:
    (row,) = node("stream_status", stream, "--formatter", "json").json
    return row


def test_status_has_the_one_replica(ctl_node: CtlNode, others: list[str]) -> None:
    declare(ctl_node, "status", "stream")
    figures = {"offset": -1, "committed_offset": -1, "first_offset": 0, "readers": 0}
    assert status(ctl_node, "status") == {
        "role": "writer",
        "node": ctl_node.name,
        **figures,
        "segments": "",
    }
    assert tuple(status(ctl_node, "status")) == COLUMNS
    declare(ctl_node, "status", "stream", b"0", b"1")
    with ctl_node.connected() as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("status", lambda *_: None)
        row = status(ctl_node, "status")
    assert (row["offset"], row["committed_offset"], row["first_offset"]) == (1, 1, 0)
    assert row["readers"] == 1
    assert failure(ctl_node, "stream_status", "nope") == MISSING
    for kind in others:
        said = f"Error:\nCannot get stream status of a {kind} queue\n"
        assert failure(ctl_node, "stream_status", kind) == said


def test_replicas_of_one_node(ctl_node: CtlNode, others: list[str]) -> None:
    declare(ctl_node, "replicas", "stream")
    name = ctl_node.name
    assert ctl_node("add_replica", "replicas", name).code == 0
    for command in ("add_replica", "delete_replica"):
        assert failure(ctl_node, command, "replicas", "zz@x") == "Error:\nnode_not_running\n"
        assert failure(ctl_node, command, "nope", name) == MISSING
    for kind in others:
        said = f"Error:\nCannot add replicas to a {kind} queue\n"
        assert failure(ctl_node, "add_replica", kind, name) == said
        said = f"Error:\nCannot delete replicas from a {kind} queue\n"
        assert failure(ctl_node, "delete_replica", kind, name) == said
    said = "Error:\nCannot delete the last member of a stream\n"
    assert failure(ctl_node, "delete_replica", "replicas", name) == said


def test_a_stream_is_found_in_its_virtual_host(ctl_node: CtlNode) -> None:
    declare(ctl_node, "found", "stream")
    ctl_node("add_vhost", "other")
    for command in ("stream_status", "add_replica", "delete_replica"):
        node = [] if command == "stream_status" else [ctl_node.name]
        assert failure(ctl_node, command, "found", *node, "--vhost", "other") == MISSING


def test_commands_of_quorum_queues_are_not_for_streams(ctl_node: CtlNode) -> None:
    declare(ctl_node, "no-quorum", "stream", b"0")
    name = ctl_node.name
    said = "Error:\nCannot get quorum status of a stream queue\n"
    assert failure(ctl_node, "quorum_status", "no-quorum") == said
    for command in ("add_member", "delete_member"):
        said = "Error:\nCannot add members to a stream queue\n"
        assert failure(ctl_node, command, "no-quorum", name) == said
    assert (
        failure(ctl_node, "peek", "no-quorum", "1") == "Error:\nCannot peek into a stream queue\n"
    )
    assert "no-quorum" not in [row[1] for row in ctl_node.rows("shrink", name) if len(row) > 1]


def test_lists_tell_the_members(ctl_node: CtlNode) -> None:
    declare(ctl_node, "listed", "stream", b"0")
    name = ctl_node.name
    rows = ctl_node.rows("list_queues", "name", "type", "leader", "members", "online", "messages")
    assert ["listed", "stream", "", f"[{name}]", f"[{name}]", "1"] in rows
