"""Commands that change queues, connections and listeners."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, option
from warren.mgmt.ctl.errors import CtlError, Exit, RequestRefused
from warren.mgmt.ctl.formats import Answer, Table

PID = re.compile(r"<[^<>\s]+\.\d+\.\d+\.\d+>")

REBALANCED = ("all", "classic", "quorum")

NOT_FOUND = "not_found"
NOT_MIRRORED = "not_mirrored"


# Queues


@command(
    "delete_queue",
    "Delete a queue.",
    argument("queue"),
    flag("-e", "--if-empty", help="Only if it has no messages."),
    flag("-u", "--if-unused", help="Only if it has no consumers."),
)
def delete_queue(call: CommandCall, queue: str, if_empty: bool, if_unused: bool) -> Answer:
    conditions = [name for name, on in (("empty", if_empty), ("unused", if_unused)) if on]
    said = f"if queue is {' and if queue is '.join(conditions)} " if conditions else ""
    call.announce(f"Deleting queue '{queue}' on vhost '{call.vhost}' {said}...")
    there = call.client.find("queues", call.vhost, queue)
    if there is None:
        raise CtlError("Queue not found", Exit.USAGE)
    query = {f"if-{name}": "true" for name in conditions}
    try:
        call.client.delete("queues", call.vhost, queue, query=query)
    except RequestRefused as refused:
        raise CtlError(_why_not_deleted(refused, there, conditions), Exit.USAGE) from refused
    # What the nodes that are down had ready is not known.
    count = there.get("messages_ready", 0)
    return f"Queue was successfully deleted with {count} ready messages"


def _why_not_deleted(refused: RequestRefused, queue: dict[str, Any], conditions: list[str]) -> str:
    if "unused" in conditions and queue.get("consumers"):
        return "Queue is in use"
    if "empty" in conditions and queue.get("messages"):
        return "Queue is not empty"
    return refused.reason


@command("purge_queue", "Remove all ready messages of a queue.", argument("queue"))
def purge_queue(call: CommandCall, queue: str) -> Answer:
    call.announce(f"Purging queue '{queue}' in vhost '{call.vhost}' ...")
    call.client.delete("queues", call.vhost, queue, "contents")
    return None


def _synchronise(call: CommandCall, queue: str, action: str) -> Answer:
    """Ask for synchronisation, or to stop it. Refusals have RabbitMQ's words."""
    try:
        call.client.post("queues", call.vhost, queue, "actions", body={"action": action})
    except RequestRefused as refused:
        raise CtlError(NOT_MIRRORED if refused.status == 400 else NOT_FOUND) from refused
    return None


@command("sync_queue", "Bring the mirrors of a queue up to date.", argument("queue"))
def sync_queue(call: CommandCall, queue: str) -> Answer:
    call.announce(f"Synchronising queue '{queue}' in vhost '{call.vhost}' ...")
    return _synchronise(call, queue, "sync")


@command("cancel_sync_queue", "Stop bringing mirrors up to date.", argument("queue"))
def cancel_sync_queue(call: CommandCall, queue: str) -> Answer:
    call.announce(f"Stopping synchronising queue '{queue}' in vhost '{call.vhost}' ...")
    return _synchronise(call, queue, "cancel_sync")


@command(
    "rebalance",
    "Spread queues over the nodes.",
    argument("type"),
    option("--vhost-pattern", default=".*", metavar="REGEX"),
    option("--queue-pattern", default=".*", metavar="REGEX"),
)
def rebalance(call: CommandCall, type: str, vhost_pattern: str, queue_pattern: str) -> Answer:
    if type not in REBALANCED:
        raise CtlError(f"type {type} is not supported. Try one of {', '.join(REBALANCED)}.")
    call.announce(f"Re-balancing leaders of {type} queues...")
    chosen = {"type": type, "vhost_pattern": vhost_pattern, "queue_pattern": queue_pattern}
    leads = call.client.post("rebalance", "queues", body=chosen)
    if not leads:
        return Table(("Output",), [[[]]])
    columns = ("Node name", "Number of quorum queues", "Number of replicated classic queues")
    return Table(columns, [[row["node"], row["quorum"], row["classic"]] for row in leads])


# Messages without a queue


@command(
    "list_unclaimed_messages",
    "List messages on disk of queues that no definition names.",
)
def list_unclaimed_messages(call: CommandCall) -> Answer:
    call.announce(f"Listing unclaimed messages on node {call.node} ...")
    columns = ("id", "messages", "message_bytes", "retained")
    rows = call.client.get("unclaimed-messages")
    return Table(columns, [[row[name] for name in columns] for row in rows])


@command(
    "recover_messages",
    "Move unclaimed messages into a durable queue.",
    argument("id"),
    argument("queue"),
    flag("--retained", help="Those that were acknowledged and retained, not the others."),
)
def recover_messages(call: CommandCall, id: str, queue: str, retained: bool) -> Answer:
    """In parts: each is on disk in the queue before it leaves its old place."""
    call.announce(
        f"Moving unclaimed messages {id} into queue '{queue}' on vhost '{call.vhost}' ..."
    )
    moved = 0
    left = 1
    while left:
        answer = call.client.post(
            "control",
            "unclaimed-messages",
            id,
            "recover",
            body={"vhost": call.vhost, "queue": queue, "retained": retained},
        )
        moved, left = moved + answer["moved"], answer["left"]
    return f"{moved} messages were moved"


@command("forget_messages", "Drop unclaimed messages for good.", argument("id"))
def forget_messages(call: CommandCall, id: str) -> Answer:
    call.announce(f"Dropping unclaimed messages {id} on node {call.node} ...")
    answer = call.client.request("DELETE", "control", "unclaimed-messages", id)
    return f"{answer['dropped']} messages were dropped"


# Connections


@command("close_connection", "Close a connection.", argument("pid"), argument("reason"))
def close_connection(call: CommandCall, pid: str, reason: str) -> Answer:
    """The pid is what `list_connections pid` shows; one that has gone is closed already."""
    call.announce(f"Closing connection {pid}, reason: {reason}...")
    if PID.fullmatch(pid) is None:
        raise CtlError(f'"{pid}" is no pid: `list_connections pid name` shows them')
    _close(call, pid, reason)
    return None


def _close(call: CommandCall, name: str, reason: str) -> bool:
    """Close a connection; returns whether it existed."""
    try:
        call.client.delete("connections", name, reason=" ".join(reason.split()))
    except RequestRefused as refused:
        if refused.status == 404:
            return False
        raise
    return True


@command(
    "close_all_connections",
    "Close connections to a virtual host, or all.",
    argument("reason"),
    flag("--global", help="Of all virtual hosts."),
    option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="So many at most."),
    option("--per-connection-delay", type=click.IntRange(min=0), default=0, metavar="MILLISECONDS"),
)
def close_all_connections(
    call: CommandCall, reason: str, limit: int, per_connection_delay: int, **flags: bool
) -> Answer:
    everywhere = flags["global"] and call.options.vhost is None
    if everywhere:
        which = f"to node {call.node} (across all vhosts)"
    else:
        which = f"in vhost {call.vhost}"
    at_most = f"{limit} " if limit else "all "
    call.announce(f"Closing {at_most}connections {which}, reason: {reason}...")
    pids = [
        row["pid"]
        for row in call.client.get("connections", columns="pid,vhost")
        if everywhere or row.get("vhost") == call.vhost
    ]
    closed = 0
    for pid in pids[:limit] if limit else pids:
        closed += _close(call, pid, reason)
        time.sleep(per_connection_delay / 1000)
    return f"Closed {closed} connections"


@command(
    "close_all_user_connections",
    "Close the connections of a user.",
    argument("user"),
    argument("reason"),
)
def close_all_user_connections(call: CommandCall, user: str, reason: str) -> Answer:
    call.announce(f"Closing connections of user {user}, reason: {reason}...")
    call.client.delete("connections", "username", user, reason=" ".join(reason.split()))
    return None


# Listeners


def suspend(call: CommandCall, suspended: bool) -> None:
    call.client.post("control", "listeners", "suspend" if suspended else "resume")


@command("suspend_listeners", "Let no new clients in.")
def suspend_listeners(call: CommandCall) -> Answer:
    call.announce(
        f"Will suspend client connection listeners on node {call.node}."
        " The node will no longer accept client connections!"
    )
    suspend(call, True)
    return None


@command("resume_listeners", "Let new clients in again.")
def resume_listeners(call: CommandCall) -> Answer:
    call.announce(
        f"Will resume client connection listeners on node {call.node}."
        " The node will now accept client connections"
    )
    suspend(call, False)
    return None


@command("drain", "Send clients away and hand queues over to mirrors, before maintenance.")
def drain(call: CommandCall) -> Answer:
    call.announce(
        f"Will put node {call.node} into maintenance mode."
        " The node will no longer serve any client traffic!"
    )
    left = call.client.post("control", "drain")["queues_left"]
    return f"{left} queues stay here: no other node can lead them" if left else None


@command("revive", "End maintenance: let clients in again.")
def revive(call: CommandCall) -> Answer:
    call.announce(
        f"Will put node {call.node} back into regular operating mode."
        " The node will again serve client traffic."
    )
    call.client.post("control", "revive")
    return None
