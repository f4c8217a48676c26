"""The end of an object that stands for another node's queue: the queue is deleted or has moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.core.errors import BrokerError
from warren.core.queues.queue import Queue
from warren.core.scheduling.waiting import Event, Waiting, run


class QueueMoved(BrokerError):
    """The queue has another leader, and another object stands for it."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(f"queue '{queue.name}' has moved")
        self.queue = queue


class QueueEnd(Event):
    """Happens when the queue is deleted, or another object stands for it."""

    def unless_used(self, deletion: Waiting[Any]) -> Event:
        """An event that happens when the queue is gone and its leader has answered, as all nodes
        know then; or when the leader has refused to delete it."""
        over = Event()

        def finish(result: Callable[[], Any]) -> None:
            try:
                result()
            except BrokerError:
                over.happen()
            else:
                self.then(over.happen)

        run(deletion, finish)
        return over
