"""How often things came and went on a node since it started.

RabbitMQ calls these churn (management_api.md sections 3 and 5). Whoever opens, declares or
refuses counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class NodeCounts:
    """`queues_declared` counts every declaration, `queues_created` those that made a queue."""

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    logins_succeeded: int = 0
    logins_failed: int = 0
    dead_lettered: Counter[str] = field(default_factory=Counter)
    """Messages sent to a dead letter exchange, by the reason of their death."""
