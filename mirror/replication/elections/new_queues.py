"""New quorum queues whose leader is gone before any other member has had a copy.

Nothing was confirmed of such a queue: its leader needs a majority for that, and counts only mirrors
that the definition names; it has named none so far. So another member may lead with nothing. It
writes itself into the definition, on the condition that this is still as it was at the beginning.
If the former leader lives after all, it can name no mirrors from then on, and confirms nothing.
"""

from __future__ import annotations

import logging

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.core.ports import Clock, Key
from warren.core.queues.queue_type import majority_of
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.promotion import leader_down
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions

log = logging.getLogger("warren.queue")


class NewQueues:
    """The new queues of which this node is a member and not the leader."""

    def __init__(self, nodes: Nodes, clock: Clock, definitions: QueueDefinitions) -> None:
        self._nodes = nodes
        self._clock = clock
        self._definitions = definitions
        self._queues: dict[Key, int] = {}

    def changed(self, key: Key, record: object | None) -> None:
        """Note the present definition of a queue; None if it was deleted."""
        if isinstance(record, QueueRecord) and self._is_new_elsewhere(record):
            self._queues[key] = record.queue_id
        else:
            self._queues.pop(key, None)

    def _is_new_elsewhere(self, record: QueueRecord) -> bool:
        own = self._nodes.name
        return is_new(record) and own in record.members and record.leader != own

    def look(self) -> None:
        """Take the lead of queues whose leader is gone, if this node is the next one to lead."""
        for key, queue_id in list(self._queues.items()):
            record = self._definitions.record_of(key, queue_id)
            if record is not None and self._next_leader(record) == self._nodes.name:
                self._lead(key, queue_id)

    def _next_leader(self, record: QueueRecord) -> str | None:
        """Return the first member that is up and may lead; None while the leader is up, or no
        majority is."""
        present = self._nodes.present()
        up = [member for member in record.members if member in present]
        if record.leader in present or len(up) < majority_of(record.members):
            return None
        return next((member for member in up if self._nodes.may_lead(member)), None)

    def _lead(self, key: Key, queue_id: int) -> None:
        def lead(record: QueueRecord) -> QueueRecord | None:
            if not self._is_new_elsewhere(record):
                return None
            return msgspec.structs.replace(
                record,
                leader=self._nodes.name,
                epoch=record.epoch + 1,
                promoted=leader_down(record.leader, in_sync=True),
                promoted_at=self._clock.wall_time(),
            )

        def written() -> None:
            _, vhost, name = key
            log_event(log, logging.WARNING, "new_queue_led", queue=name, vhost=vhost)

        self._definitions.write_record(key, queue_id, lead, written)


def is_new(record: QueueRecord) -> bool:
    """Whether nothing can have been confirmed: a majority of several members is needed, and the
    definition has never named a mirror or had another leader."""
    never_named = not record.epoch and not record.ballot and not record.mirrors
    return never_named and record.acks > 1 and bool(record.members)
