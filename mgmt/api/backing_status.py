"""The columns of a queue that tell how its messages are kept."""

from __future__ import annotations

from warren.core.backing.backing_queue import BackingQueueStatus
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.stream_queue import StreamingQueue
from warren.mgmt.http.listing import Row

OF_ERLANG: Row = {
    "reductions": 0,
    "reductions_details": {"rate": 0.0},
    "garbage_collection": {},
}
"""RabbitMQ's figures of the Erlang process of a queue, which Warren's queues do not have."""


def offsets(queue: LocalQueue, node: str) -> Row:
    """Columns of a stream: its readers, all at this node, and the offsets of its first and its
    next message."""
    row: Row = {"readers": {node: queue.consumer_total}}
    if isinstance(queue, StreamingQueue):
        row["first_offset"] = queue.log.first
        row["next_offset"] = queue.log.committed
    return row


def backing_status(status: BackingQueueStatus) -> Row:
    start, count, end = status.delta
    return {
        "mode": status.mode,
        "version": 1,
        "q1": status.q1,
        "q2": status.q2,
        "delta": ["delta", start, count, 0, end],
        "q3": status.q3,
        "q4": status.q4,
        "len": status.len,
        "target_ram_count": (
            "infinity" if status.target_ram_count is None else status.target_ram_count
        ),
        "next_seq_id": status.next_seq_id,
        "avg_ingress_rate": status.avg_ingress_rate,
        "avg_egress_rate": status.avg_egress_rate,
        "avg_ack_ingress_rate": status.avg_ack_ingress_rate,
        "avg_ack_egress_rate": status.avg_ack_egress_rate,
    }


def retained(queue: LocalQueue, *, since: bool = False) -> Row:
    """A column for the acknowledged messages that the queue retains; none if it retains nothing.

    `since` adds the time at which the oldest was acknowledged; that may take a read from disk.
    """
    retention = queue.retention
    if retention is None:
        return {}
    row: Row = {"messages": retention.log.length, "octets": retention.log.octets}
    if since:
        row["oldest"] = retention.oldest
    return {"retained": row}
