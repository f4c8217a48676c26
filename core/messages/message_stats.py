"""How many messages passed, under the names RabbitMQ gives these counts in `message_stats`.

Counting is in plain integers where messages pass in batches; what can be worked out from numbers
that are kept anyway (delivery tags, positions) is not counted at all. This is where the results
meet: of a channel, a queue, a virtual host or the node (management_api.md section 3).
"""

from __future__ import annotations

from operator import add
from typing import NamedTuple


class MessageStats(NamedTuple):
    """Totals since an object began, or differences of totals."""

    publish: int = 0
    publish_in: int = 0
    publish_out: int = 0
    confirm: int = 0
    return_unroutable: int = 0
    drop_unroutable: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    redeliver: int = 0
    ack: int = 0
    disk_reads: int = 0
    disk_writes: int = 0

    def plus(self, other: MessageStats) -> MessageStats:
        return MessageStats(*map(add, self, other))

    @property
    def deliver_get(self) -> int:
        """Everything that was handed to anyone."""
        return self.get + self.get_no_ack + self.deliver + self.deliver_no_ack


NOTHING = MessageStats()
