"""The queues a node has itself, by the ids they have on disk and among nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue

_Told = Callable[[LocalQueue], None]


class LocalQueues:
    """The queues this node has, in every virtual host."""

    def __init__(self) -> None:
        self._by_id: dict[int, LocalQueue] = {}
        self._watchers: list[tuple[_Told, _Told]] = []

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._by_id

    def __getitem__(self, queue_id: int) -> LocalQueue:
        return self._by_id[queue_id]

    def __iter__(self) -> Iterator[LocalQueue]:
        return iter(self._by_id.values())

    def watch(self, on_here: _Told, on_gone: _Told) -> None:
        """Report each queue that is here from now on, and each that is here no more."""
        self._watchers.append((on_here, on_gone))

    def add(self, queue: LocalQueue) -> None:
        self._by_id[queue.queue_id] = queue
        for on_here, _ in self._watchers:
            on_here(queue)

    def remove(self, queue: Queue) -> None:
        """Forget this object, if it is one of a queue that is here."""
        here = self._by_id.get(queue.queue_id)
        if here is queue:
            del self._by_id[queue.queue_id]
            for _, on_gone in self._watchers:
                on_gone(here)
