"""`rabbitmq-streams`' commands."""

from __future__ import annotations

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command
from warren.mgmt.ctl.formats import Answer, Table
from warren.mgmt.ctl.member_requests import asked

STATUS = (
    "role",
    "node",
    "offset",
    "committed_offset",
    "first_offset",
    "readers",
    "segments",
)

STREAMS = "streams"


@command("stream_status", "Show the replicas of a stream.", argument("stream"))
def stream_status(call: CommandCall, stream: str) -> Answer:
    call.announce(f"Status of stream {stream} on node {call.node} ...")
    rows = asked(call, "GET", STREAMS, stream, "status")
    return Table(STATUS, [[row[name] for name in STATUS] for row in rows])


@command(
    "add_replica",
    "Give a stream a replica on a node.",
    argument("stream"),
    argument("replica_node"),
)
def add_replica(call: CommandCall, stream: str, replica_node: str) -> Answer:
    call.announce(f"Adding a replica for queue {stream} on node {replica_node}...")
    asked(call, "PUT", STREAMS, stream, "members", replica_node)
    return None


@command(
    "delete_replica",
    "Take a replica of a stream away.",
    argument("stream"),
    argument("replica_node"),
)
def delete_replica(call: CommandCall, stream: str, replica_node: str) -> Answer:
    call.announce(f"Removing a replica of queue {stream} on node {replica_node}...")
    asked(call, "DELETE", STREAMS, stream, "members", replica_node)
    return None
