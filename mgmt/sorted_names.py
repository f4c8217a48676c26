"""The names of a virtual host's queues in order, without sorting them for every list."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from warren.core.vhost import VirtualHost


class SortedNames:
    """Sorts again only when queues came or went since, which is quick where few did."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[VirtualHost, tuple[int, list[str]]] = WeakKeyDictionary()

    def queues(self, vhost: VirtualHost) -> list[str]:
        """Not to be changed."""
        generation = vhost.topology.generation
        then, names = self._kept.get(vhost, (-1, []))
        if then != generation:
            known = set(names)
            there = vhost.queues
            names = [name for name in names if name in there]
            names += [name for name in there if name not in known]
            names.sort()
            self._kept[vhost] = (generation, names)
        return names
