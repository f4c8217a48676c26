"""How many connections and channels clients have at the other nodes of a cluster.

Limits of users and virtual hosts hold for all nodes together, and so for all processes of a
broker. A node by itself has none of it, and keeps nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Place = tuple[str, str]
"""The virtual host and the user of a connection."""


class OpenCounts(NamedTuple):
    """Counts of what is open, or by how much they change: below 0 when some were closed."""

    connections: int
    channels: int

    def plus(self, more: OpenCounts) -> OpenCounts:
        return OpenCounts(self.connections + more.connections, self.channels + more.channels)


NOTHING = OpenCounts(0, 0)

Tell = Callable[[Place, OpenCounts], None]
"""Called with a place, and how many more are open there at this node."""


class ClientsElsewhere:
    """The open connections and channels of clients, here and at other nodes. `tell` sends changes
    here to the others; a node by itself has none."""

    def __init__(self) -> None:
        self.tell: Tell | None = None
        # Whether a node is another process of this node's broker.
        self.is_beside: Callable[[str], bool] = lambda node: False
        self._here: dict[object, tuple[Place, OpenCounts]] = {}
        self._there: dict[str, dict[Place, OpenCounts]] = {}

    # Here

    def opened(self, client: object, vhost: str, user: str) -> None:
        if self.tell is not None:
            place = (vhost, user)
            self._here[client] = (place, OpenCounts(1, 0))
            self.tell(place, OpenCounts(1, 0))

    def channels(self, client: object, more: int) -> None:
        """Count a channel that a client with an open connection opens (1) or closes (-1)."""
        if (known := self._here.get(client)) is not None and self.tell is not None:
            place, opened = known
            self._here[client] = (place, opened.plus(OpenCounts(0, more)))
            self.tell(place, OpenCounts(0, more))

    def closed(self, client: object) -> None:
        known = self._here.pop(client, None)
        if known is not None and self.tell is not None:
            place, opened = known
            self.tell(place, OpenCounts(-opened.connections, -opened.channels))

    def here(self) -> dict[Place, OpenCounts]:
        """All that is open at this node, for another one that has not heard of it yet."""
        counts: dict[Place, OpenCounts] = {}
        for place, opened in self._here.values():
            _add(counts, place, opened)
        return counts

    # There

    def told(self, node: str, place: Place, more: OpenCounts) -> None:
        _add(self._there.setdefault(node, {}), place, more)

    def begins(self, node: str, opened: Mapping[Place, OpenCounts]) -> None:
        """Note all that is open at a node now."""
        self._there[node] = dict(opened)

    def ended(self, node: str) -> None:
        self._there.pop(node, None)

    def in_vhost(self, vhost: str) -> OpenCounts:
        return self._sum(lambda place: place[0] == vhost)

    def of_user(self, user: str) -> OpenCounts:
        return self._sum(lambda place: place[1] == user)

    def beside(self) -> int:
        """The connections of the other processes of this broker."""
        return sum(
            opened.connections
            for node, places in self._there.items()
            if self.is_beside(node)
            for opened in places.values()
        )

    def _sum(self, which: Callable[[Place], bool]) -> OpenCounts:
        found = NOTHING
        for opened in self._there.values():
            for place, more in opened.items():
                if which(place):
                    found = found.plus(more)
        return found


def _add(counts: dict[Place, OpenCounts], place: Place, more: OpenCounts) -> None:
    counts[place] = counts.get(place, NOTHING).plus(more)
