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

    def __init__(self) -> None:
        super().__init__()
        self._unused: dict[Event, None] = {}

    def happen(self) -> None:
        super().happen()
        unused, self._unused = self._unused, {}
        for event in unused:
            event.happen()

    def unless_used(self, deletion: Waiting[Any]) -> Event:
        """An event that happens when the queue is gone, or its leader has refused to delete it."""
        over = Event()
        self._unused[over] = None

        def finish(result: Callable[[], Any]) -> None:
            try:
                result()
            except BrokerError:
                self._unused.pop(over, None)
                over.happen()

        run(deletion, finish)
        return over
