"""The recorded lives of messages: the life of one, and counts of all records."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command
from warren.mgmt.ctl.errors import CtlError, Exit, WrongUsage
from warren.mgmt.ctl.formats import Answer, Document, Table

COUNTS = ("recorded", "followed", "passed_over", "nameless", "lost", "too_slow", "file_bytes")


@command("trace", "Show the life of a message, as far as it was recorded.", argument("message_id"))
def trace(call: CommandCall, message_id: str) -> Answer:
    if not message_id:
        raise WrongUsage("message ID cannot be empty string.")
    call.announce(f"The life of message {message_id} in vhost {call.vhost} ...")
    life = call.client.get("trace", call.vhost, message_id)
    if not life["records"]:
        status = call.client.get("trace", call.vhost)
        raise CtlError(_why_nothing(call, message_id, status), Exit.UNAVAILABLE)
    lines = [
        "\t".join([one["time"], one["node"], one["event"], _told(one)]) for one in life["records"]
    ]
    lines += [f"In queue {queue}: {state}" for queue, state in life["queues"].items()]
    if not life["is_whole"]:
        lines.append("There is more, which is older")
    if life["missing_nodes"]:
        lines.append(f"Nodes that could not be asked: {', '.join(life['missing_nodes'])}")
    return Document("\n".join(lines), life)


def _why_nothing(call: CommandCall, message_id: str, status: dict[str, Any]) -> str:
    if not status["rules"]:
        return (
            f"nothing is recorded in vhost '{call.vhost}', because it has no rule; this one selects"
            " every message: warren ctl set_parameter trace all '{}'"
        )
    nodes = status["nodes"].values()
    not_recorded = sum(one["passed_over"] + one["nameless"] + one["lost"] for one in nodes)
    return (
        f"nothing is known of message '{message_id}': no rule has selected it, it is too long ago,"
        f" or it is one of {not_recorded} that could not be recorded (see trace_status)"
    )


def _told(record: dict[str, Any]) -> str:
    """The contents of a record, in words."""
    parts = []
    if record.get("queue"):
        parts.append(f"queue {record['queue']}")
    if record["event"] == "published":
        parts.append(f"exchange '{record.get('exchange', '')}'")
        parts.append(f"routing key '{record.get('routing_key', '')}'")
    if record.get("queues"):
        parts.append(f"to {', '.join(record['queues'])}")
    if record.get("connection"):
        parts.append(
            f"user {record['user']} at {record['connection']}, channel {record['channel']}"
        )
    if record.get("from_node"):
        parts.append(f"from {record['from_node']}")
    parts += [
        text
        for flag, text in (("redelivered", "redelivered"), ("no_ack", "needs no acknowledgement"))
        if record.get(flag)
    ]
    return ", ".join(parts)


@command("trace_status", "Show how much is recorded of lives of messages, and what is not.")
def trace_status(call: CommandCall) -> Answer:
    call.announce(f"Lives of messages in vhost {call.vhost} ...")
    status = call.client.get("trace", call.vhost)
    rows = [[node, *[counts[name] for name in COUNTS]] for node, counts in status["nodes"].items()]
    return Table(("node", *COUNTS), rows, json=status)
