"""A virtual host's queues in the order of their names, without sorting them for every list."""

from __future__ import annotations

from operator import attrgetter
from weakref import WeakKeyDictionary

from warren.core.queues.queue import Queue
from warren.core.vhosts.vhost import VirtualHost


class SortedQueues:
    """Sorts again only when queues came or went; that is quick, as most are in order already."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[VirtualHost, tuple[int, list[Queue]]] = WeakKeyDictionary()

    def of(self, vhost: VirtualHost) -> list[Queue]:
        """The queues; not to be changed. The list stays as it is when queues come or go."""
        generation = vhost.topology.generation
        then, queues = self._kept.get(vhost, (-1, []))
        if then != generation:
            queues = [queue for queue in queues if not queue.deleted]
            known = set(queues)
            queues += [queue for queue in vhost.queues.values() if queue not in known]
            queues.sort(key=attrgetter("name"))
            self._kept[vhost] = (generation, queues)
        return queues
