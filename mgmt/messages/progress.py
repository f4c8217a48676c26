"""How far a job is: what the cluster keeps of it, so that it can go on after an interruption."""

from __future__ import annotations

from typing import Final

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.node import Node
from warren.core.queues.queue import Queue


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a job was.

    `done` messages count as done; a job with a limit has done that many at most. A job that copies
    goes on at the place `next`, a level and a position; None means its first place. `ends` has the
    position for each level at which the job ends.

    Positions are those of the queue with this id, under the leader of this epoch: under another
    leader they may name other messages.
    """

    done: int = 0
    queue_id: int = 0
    epoch: int = 0
    next: tuple[int, int] | None = None
    ends: list[int] = []


AT_THE_BEGINNING: Final = Progress()


def epoch_of(node: Node, queue: Queue) -> int:
    """How often the queue was given another leader. Each new leader may give other positions to its
    messages."""
    stored = node.metadata.get(queue.key)
    return stored.record.epoch if stored and isinstance(stored.record, QueueRecord) else 0
