"""How many clients the other processes of a broker have, for limits that hold for all together.

A node by itself has none of it, and keeps nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

Place = tuple[str, str]
"""The virtual host and the user of a connection."""

Tell = Callable[[str, str, int], None]
"""Told a virtual host, a user, and how many more connections they have here: 1, or -1."""


class ClientsElsewhere:
    """`tell` has the others know what changes here; without one there are no others."""

    def __init__(self) -> None:
        self.tell: Tell | None = None
        self._here: dict[object, Place] = {}
        self._there: dict[str, Counter[Place]] = {}

    # Here

    def opened(self, client: object, vhost: str, user: str) -> None:
        if self.tell is not None:
            self._here[client] = (vhost, user)
            self.tell(vhost, user, 1)

    def closed(self, client: object) -> None:
        place = self._here.pop(client, None)
        if place is not None and self.tell is not None:
            self.tell(*place, -1)

    def here(self) -> Counter[Place]:
        """For a process that has not heard of us yet."""
        return Counter(self._here.values())

    # There

    def told(self, node: str, place: Place, more: int) -> None:
        self._there.setdefault(node, Counter())[place] += more

    def begins(self, node: str, counts: Mapping[Place, int]) -> None:
        """All that a process has now."""
        self._there[node] = Counter(counts)

    def ended(self, node: str) -> None:
        self._there.pop(node, None)

    def in_vhost(self, vhost: str) -> int:
        return self._sum(lambda place: place[0] == vhost)

    def of_user(self, user: str) -> int:
        return self._sum(lambda place: place[1] == user)

    def _sum(self, which: Callable[[Place], bool]) -> int:
        return sum(
            [count for one in self._there.values() for place, count in one.items() if which(place)]
        )
