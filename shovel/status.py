"""The status of a shovel, without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from warren.shovel.definition import PROTOCOL, Definition


class ShovelState(Enum):
    """STARTING: the shovel connects. RUNNING: it moves messages as they come. TERMINATED: it
    failed, and waits before it tries again, if its reconnect delay allows that."""

    STARTING = "starting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass
class ShovelStatus:
    """The present state of one shovel. `since` is in seconds since 1970.

    `reason` is the last failure, and empty while the shovel runs. `waiting_for` is why a running
    shovel moves nothing: an alarm of the destination, or messages that it refuses. `left` messages
    stay at the source, the last one for the reason `left_because`.
    """

    state: ShovelState
    since: float
    reason: str = ""
    source_uri: str = ""
    dest_uri: str = ""
    moved: int = 0
    pending: int = 0
    waiting_for: str = ""
    left: int = 0
    left_because: str = ""

    def become(self, state: ShovelState, now: float, reason: str = "") -> None:
        if state is not self.state:
            self.since = now
        self.state = state
        self.reason = reason


def row(
    name: str, vhost: str, node: str, status: ShovelStatus, definition: Definition | None
) -> dict[str, Any]:
    """A shovel as the HTTP API shows it; `definition` is None unless this node runs the shovel."""
    shown: dict[str, Any] = {
        "node": node,
        "timestamp": datetime.fromtimestamp(status.since, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "name": name,
        "vhost": vhost,
        "type": "dynamic",
        "state": status.state.value,
        "messages_moved": status.moved,
        "messages_pending": status.pending,
    }
    if status.reason:
        shown["reason"] = status.reason
    if status.left:
        shown |= {"messages_left": status.left, "left_because": status.left_because}
    if status.waiting_for:
        shown["waiting_for"] = status.waiting_for
    if definition is not None:
        shown |= _ends(definition)
    if status.state is ShovelState.RUNNING:
        shown |= {
            "src_uri": status.source_uri,
            "src_protocol": PROTOCOL,
            "dest_uri": status.dest_uri,
            "dest_protocol": PROTOCOL,
        }
    return shown


def _ends(definition: Definition) -> dict[str, str]:
    """The queues and exchanges between which messages are moved."""
    source, destination = definition.source, definition.destination
    ends = {
        "src_queue": source.queue,
        "src_exchange": source.exchange,
        "src_exchange_key": None if source.exchange is None else source.exchange_key,
        "dest_queue": destination.queue,
        "dest_exchange": destination.exchange,
        "dest_exchange_key": destination.exchange_key,
    }
    return {key: value for key, value in ends.items() if value is not None}
