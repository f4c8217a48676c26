"""`warren ctl`: federation links."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ctl_node import CtlNode

PATIENCE_S = 30.0
UPSTREAM = {"uri": "amqp:///up", "reconnect-delay": 0.1}
POLICY = {"federation-upstream": "u"}


def until_row(node: CtlNode, is_it: Callable[[dict[str, str]], bool], *options: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = node("federation_status", "--formatter", "json", *options).json
        for row in rows:
            if is_it(row):
                return row
        assert time.monotonic() < deadline, rows


def test_links_are_shown_and_restarted(ctl_node: CtlNode) -> None:
    assert ctl_node("set_parameter", "federation-upstream", "u", json.dumps(UPSTREAM)).code == 0
    assert ctl_node("set_policy", "fed", "^amq.fanout$", json.dumps(POLICY)).code == 0
    down = until_row(ctl_node, lambda row: "vhost up not found" in row["error"], "--only-down")
    assert (down["status"], down["exchange"], down["queue"]) == ("error", "amq.fanout", "")
    assert ctl_node("add_vhost", "up").code == 0
    row = until_row(ctl_node, lambda row: row["status"] == "running")
    assert (row["upstream"], row["upstream_exchange"], row["vhost"]) == ("u", "amq.fanout", "/")
    assert (row["uri"], row["type"], row["node"]) == ("amqp:///up", "exchange", ctl_node.name)
    assert (row["error"], row["upstream_queue"], row["id"]) == ("", "", down["id"])
    assert row["local_connection"] == "Federation link (upstream: u, policy: fed)"
    assert ctl_node("federation_status", "--only-down", "--formatter", "json").json == []
    assert ctl_node("restart_federation_link", row["id"]).code == 0
    until_row(ctl_node, lambda row: row["status"] == "running")
    assert ctl_node("clear_policy", "fed").code == 0
    assert ctl_node("clear_parameter", "federation-upstream", "u").code == 0
    while ctl_node("federation_status", "--formatter", "json").json:
        pass
    assert ctl_node("delete_vhost", "up").code == 0


def test_link_that_is_not_there_is_told(ctl_node: CtlNode) -> None:
    done = ctl_node("restart_federation_link", "00000000")
    assert (done.code, done.err) == (69, "Error:\nLink with the given ID was not found\n")
