"""Messages on disk of queues that no definition names, and whose deletion was not written down.

A lost or damaged definition leaves them. They are kept, over restarts too, until their queue has a
definition again, or until a person has them moved into another queue or dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.persist.definitions.deleted_queues import first_level, is_retained
from warren.persist.index.queue_index import QueueIndex

log = logging.getLogger("warren.storage")

NAMED_MAX = 100
"""Queues named in the log at a start; of more only the sum is told."""


class Unclaimed(NamedTuple):
    """The messages of one queue, all its levels together; octets are those of bodies. `retained`
    counts messages that were acknowledged, and are not among the others."""

    queue_id: int
    messages: int
    octets: int
    retained: int


class UnclaimedMessages:
    """The unclaimed messages of a node, by the id that the definition of their queue had."""

    def __init__(self) -> None:
        self._indexes: dict[int, dict[int, QueueIndex]] = {}
        self._moving: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def keep(self, index: QueueIndex) -> None:
        # Indexes are closed at a clean stop for opened queues only: messages that may have been
        # delivered still may have been.
        index.close(index.redelivered_below)
        self._indexes.setdefault(first_level(index.queue_id), {})[index.queue_id] = index

    def take(self, storage_id: int) -> QueueIndex | None:
        """Remove and return the index: the caller, a queue, is answerable for it now."""
        queue_id = first_level(storage_id)
        levels = self._indexes.get(queue_id, {})
        index = levels.pop(storage_id, None)
        if not levels:
            self._indexes.pop(queue_id, None)
        return index

    def has(self, index: QueueIndex) -> bool:
        """Whether the index is still here, and no queue has taken it."""
        return self._indexes.get(first_level(index.queue_id), {}).get(index.queue_id) is index

    @contextmanager
    def moving(self, queue_id: int) -> Iterator[bool]:
        """Move the queue's messages elsewhere; yields False while another caller moves them."""
        if queue_id in self._moving:
            yield False
            return
        self._moving.add(queue_id)
        try:
            yield True
        finally:
            self._moving.discard(queue_id)

    def levels(self, queue_id: int) -> list[QueueIndex]:
        """Return the indexes of a queue, the highest level first, as in delivery; empty without
        any."""
        return [index for _, index in sorted(self._indexes.get(queue_id, {}).items(), reverse=True)]

    def rows(self) -> Iterator[Unclaimed]:
        for queue_id, levels in sorted(self._indexes.items()):
            found = {at: index.recovered() for at, index in levels.items()}
            retained = sum(one.count for at, one in found.items() if is_retained(at))
            yield Unclaimed(
                queue_id,
                sum(one.count for one in found.values()) - retained,
                sum(one.body_bytes for at, one in found.items() if not is_retained(at)),
                retained,
            )

    def totals(self) -> tuple[int, int]:
        """Queues and messages."""
        rows = list(self.rows())
        return len(rows), sum(row.messages for row in rows)

    def report(self) -> None:
        """Name in the log what was found at start, and what can be done about it."""
        rows = list(self.rows())
        if len(rows) > NAMED_MAX:
            log_event(
                log,
                logging.ERROR,
                "many_messages_unclaimed",
                queues=len(rows),
                messages=sum(row.messages for row in rows),
                action="kept; `warren ctl list_unclaimed_messages` names all",
            )
        for queue_id, messages, octets, retained in rows[:NAMED_MAX]:
            log_event(
                log,
                logging.ERROR,
                "messages_unclaimed",
                queue=f"{queue_id:016x}",
                messages=messages,
                bytes=octets,
                retained=retained or None,
                reason="no definition has a queue with this id",
                action=f"kept; `warren ctl recover_messages {queue_id:016x} QUEUE` moves them into"
                f" a queue, `warren ctl forget_messages {queue_id:016x}` drops them",
            )
