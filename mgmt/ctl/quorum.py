"""`rabbitmq-queues`' commands for quorum queues."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, option
from warren.mgmt.ctl.errors import WrongUsage
from warren.mgmt.ctl.formats import Answer, Table, cell
from warren.mgmt.ctl.member_requests import asked

STATUS = (
    "Node Name",
    "Raft State",
    "Log Index",
    "Commit Index",
    "Snapshot Index",
    "Term",
    "Machine Version",
)
RESULTS = ("vhost", "name", "size", "result")
STRATEGIES = ("all", "even")

QUEUES = "quorum-queues"
MEMBERS = ("control", "quorum-members")


@command("quorum_status", "Show the members of a quorum queue.", argument("queue"))
def quorum_status(call: CommandCall, queue: str) -> Answer:
    call.announce(f"Status of quorum queue {queue} on node {call.node} ...")
    rows = asked(call, "GET", QUEUES, queue, "status")
    return Table(STATUS, [[row[name] for name in STATUS] for row in rows])


@command(
    "add_member",
    "Give a quorum queue a member on a node.",
    argument("queue"),
    argument("member_node"),
)
def add_member(call: CommandCall, queue: str, member_node: str) -> Answer:
    call.announce(f"Adding a replica for queue {queue} on node {member_node}...")
    asked(call, "PUT", QUEUES, queue, "members", member_node)
    return None


@command(
    "delete_member",
    "Take a member of a quorum queue away.",
    argument("queue"),
    argument("member_node"),
)
def delete_member(call: CommandCall, queue: str, member_node: str) -> Answer:
    call.announce(f"Removing a replica of queue {queue} on node {member_node}...")
    asked(call, "DELETE", QUEUES, queue, "members", member_node)
    return None


@command(
    "grow",
    "Give quorum queues a member on a node: all, or those with an even number of members.",
    argument("member_node"),
    argument("strategy"),
    option("--vhost-pattern", default=".*", metavar="REGEX"),
    option("--queue-pattern", default=".*", metavar="REGEX"),
    flag("--errors-only", help="Show only those that failed."),
)
def grow(
    call: CommandCall,
    member_node: str,
    strategy: str,
    vhost_pattern: str,
    queue_pattern: str,
    errors_only: bool,
) -> Answer:
    if strategy not in STRATEGIES:
        raise WrongUsage(f"strategy '{strategy}' is not recognised.")
    call.announce(f"Growing {strategy} quorum queues on {member_node}...")
    body = {
        "strategy": strategy,
        "vhost_pattern": vhost_pattern,
        "queue_pattern": queue_pattern,
    }
    return _results(call.client.post(*MEMBERS, member_node, body=body), errors_only)


@command(
    "shrink",
    "Take the members of quorum queues on a node away.",
    argument("member_node"),
    flag("--errors-only", help="Show only those that failed."),
)
def shrink(call: CommandCall, member_node: str, errors_only: bool) -> Answer:
    call.announce(f"Shrinking quorum queues on {member_node}...")
    return _results(call.client.request("DELETE", *MEMBERS, member_node), errors_only)


def _results(rows: list[dict[str, Any]], errors_only: bool) -> Answer:
    shown = [row for row in rows if not errors_only or row["result"] != "ok"]
    if not shown:
        return ""
    return Table(RESULTS, [[row[name] for name in RESULTS] for row in shown])


@command(
    "peek",
    "Show a message of a quorum queue, which stays where it is.",
    argument("queue"),
    argument("position"),
)
def peek(call: CommandCall, queue: str, position: str) -> Answer:
    if not position.isdecimal() or not int(position):
        raise WrongUsage("position value must be a positive integer")
    call.announce(f"Peeking at quorum queue {queue} at position {position} on node {call.node} ...")
    missing = f"Target queue was not found in virtual host '{call.vhost}'"
    message = asked(call, "GET", QUEUES, queue, "messages", position, missing=missing)
    return Table(
        ("keys", "values"),
        [[name, _plain(value)] for name, value in message.items()],
        json={"result": "ok", "message": message},
    )


def _plain(value: Any) -> Any:
    """The value to print: a list, which has routing keys, becomes one text without brackets."""
    return ", ".join(map(cell, value)) if isinstance(value, list) else value
