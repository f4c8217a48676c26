"""`warren ctl`: shovels."""

from __future__ import annotations

import json
import time

from ctl_node import CtlNode

SHOVEL = {"src-uri": "amqp://", "src-queue": "ctl-a", "dest-uri": "amqp://", "dest-queue": "ctl-b"}
PATIENCE_S = 30.0


def until_running(node: CtlNode, name: str) -> dict[str, str]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = node("shovel_status", "--formatter", "json").json
        for row in rows:
            if row["name"] == name and row["state"] == "running":
                return dict(row)
        assert time.monotonic() < deadline, rows


def test_shovel_is_shown_restarted_and_deleted(ctl_node: CtlNode) -> None:
    assert ctl_node("set_parameter", "shovel", "s", json.dumps(SHOVEL)).code == 0
    row = until_running(ctl_node, "s")
    assert (row["source"], row["source_queue"]) == ("amqp://", "ctl-a")
    assert (row["destination"], row["destination_queue"]) == ("amqp://", "ctl-b")
    assert (row["vhost"], row["type"], row["node"]) == ("/", "dynamic", ctl_node.name)
    assert (row["source_exchange"], row["termination_reason"]) == ("", "")
    assert ctl_node("restart_shovel", "s").code == 0
    until_running(ctl_node, "s")
    assert ctl_node("delete_shovel", "s").code == 0
    assert ctl_node.rows("shovel_status") == []
    assert ctl_node.rows("list_parameters") == []


def test_shovel_that_is_not_there_is_told(ctl_node: CtlNode) -> None:
    for command in ("restart_shovel", "delete_shovel"):
        done = ctl_node(command, "-p", "/", "none")
        assert (done.code, done.err) == (
            69,
            "Error:\nShovel with the given name was not found on the target node"
            f" '{ctl_node.name}' and / or virtual host '/'\n",
        )
