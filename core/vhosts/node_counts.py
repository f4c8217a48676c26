"""How often things came and went on a node since it started.

RabbitMQ calls these churn (management_api.md sections 3 and 5). Each count is raised by the code
that opens, declares or refuses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from warren.core.messages.message_stats import NOTHING, MessageStats
from warren.core.queues.queue_type import QueueType

AMQP = "amqp091"
HTTP = "http"
"""Protocols that log in, as RabbitMQ names them where it counts logins."""


class Death(NamedTuple):
    """Why a message died, and what becomes of it: in RabbitMQ's words, `disabled` where its queue
    has no dead letter exchange."""

    queue_type: QueueType
    strategy: str
    reason: str


@dataclass(slots=True)
class LoginCounts:
    """The logins of one protocol.

    `throttled` counts the failed logins whose address has failed too often and has to wait.
    """

    succeeded: int = 0
    failed: int = 0
    throttled: int = 0


@dataclass(slots=True)
class NodeCounts:
    """`queues_declared` counts every declaration, `queues_created` those that made a queue.

    `logins` are by protocol, and only of protocols that were used.
    """

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    logins: dict[str, LoginCounts] = field(default_factory=dict)
    dead: Counter[Death] = field(default_factory=Counter)
    """Messages that died."""

    dead_confirmed: int = 0
    """Dead letters that had to arrive and have arrived."""

    past_of_type: dict[QueueType, MessageStats] = field(default_factory=dict)
    """Messages that passed through queues that are gone, by type; none are counted for classic
    ones."""

    past_channels: MessageStats = NOTHING
    past_received: int = 0
    past_sent: int = 0
    """Messages of channels, and octets of connections, in virtual hosts that are gone."""

    @property
    def logins_succeeded(self) -> int:
        return sum([counts.succeeded for counts in self.logins.values()])

    @property
    def logins_failed(self) -> int:
        return sum([counts.failed for counts in self.logins.values()])

    @property
    def logins_throttled(self) -> int:
        return sum([counts.throttled for counts in self.logins.values()])
