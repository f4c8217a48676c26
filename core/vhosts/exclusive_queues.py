"""The owners of the exclusive queues of a virtual host.

A connection that declares an exclusive queue is known before the queue is there, and may have ended
by then: in a cluster a declaration takes time. The definition in the metadata store says that a
queue is exclusive, and not whose it is.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

Q = TypeVar("Q")

NO_OWNER: Final = object()
"""Owns an exclusive queue whose connection ended before the queue was there."""


class ExclusiveQueues(Generic[Q]):
    """The exclusive queues that are there, and the owners of those that are being declared."""

    __slots__ = ("_declaring", "_owned")

    def __init__(self) -> None:
        self._owned: dict[object, dict[str, Q]] = {}
        # By the ids of the queues.
        self._declaring: dict[int, object] = {}

    def declaring(self, queue_id: int, owner: object) -> None:
        """Note that a connection has begun to declare the queue that will have this id."""
        self._declaring[queue_id] = owner

    def decided(self, queue_id: int) -> None:
        """Forget that a queue is being declared: it was refused, or exists by now."""
        self._declaring.pop(queue_id, None)

    def owner_of_new(self, queue_id: int) -> object:
        """Return the owner of a queue that is being made: `NO_OWNER` if no connection of this run
        of the node has declared it, or that has ended."""
        return self._declaring.pop(queue_id, NO_OWNER)

    def add(self, owner: object, name: str, queue: Q) -> None:
        self._owned.setdefault(owner, {})[name] = queue

    def remove(self, owner: object, name: str) -> None:
        owned = self._owned[owner]
        del owned[name]
        if not owned:
            del self._owned[owner]

    def owner_ends(self, owner: object) -> list[Q]:
        """Return the queues of a connection that ends. Those that it is still declaring will have
        `NO_OWNER`."""
        for queue_id, declaring in self._declaring.items():
            if declaring is owner:
                self._declaring[queue_id] = NO_OWNER
        return list(self._owned.get(owner, {}).values())

    def clear(self) -> None:
        """Forget all queues: the virtual host is gone."""
        self._owned.clear()
