"""Where queues are: the questions of a virtual host about the nodes of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Commit
from warren.core.queues.moving import Moving
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner


class Placement(Protocol):
    def leader_of_new(self, vhost: str, settings: QueueSettings, exclusive: bool) -> str:
        """The node that gets a queue which a client of this node declares."""
        ...

    def members_of_new(
        self, described: str, settings: QueueSettings, leader: str, *, may_wait: bool = False
    ) -> Sequence[str]:
        """The nodes that are to have a new quorum queue or stream; none where there is only one.

        Raises `InternalFault` when too few of them are up, unless the queue `may_wait` for them;
        `described` is the queue in its text.
        """
        ...

    def declaring(self, leader: str, commit: Commit) -> None:
        """Count a new queue as one of its leader's from now on, not only when `commit` is done."""
        ...

    def is_here(self, record: QueueRecord) -> bool:
        """Whether this node has the queue."""
        ...

    def storage_id(self, record: QueueRecord) -> int:
        """The id by which the storage of this node knows the queue."""
        ...

    def remote_queue(
        self,
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> Queue:
        """The object that stands for a queue that another node has."""
        ...

    def move_in(self, queue: Queue, moving: Moving) -> None:
        """A queue has another leader; this object takes the place of the one before."""
        ...

    async def placed(self, queue: Queue) -> None:
        """Wait until a new queue has the mirrors that its policy demands, or for long enough."""
        ...


class OneNode:
    """The placement of a node by itself, which has every queue."""

    def leader_of_new(self, vhost: str, settings: QueueSettings, exclusive: bool) -> str:
        return ""

    def members_of_new(
        self, described: str, settings: QueueSettings, leader: str, *, may_wait: bool = False
    ) -> Sequence[str]:
        return ()

    def declaring(self, leader: str, commit: Commit) -> None:
        """Does nothing: the count could change no choice."""

    def is_here(self, record: QueueRecord) -> bool:
        return True

    def storage_id(self, record: QueueRecord) -> int:
        return record.queue_id

    def remote_queue(
        self,
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> Queue:
        raise AssertionError(f"queue {declared.name!r} is nowhere else")

    def move_in(self, queue: Queue, moving: Moving) -> None:
        raise AssertionError(f"queue {queue.name!r} was nowhere else")

    async def placed(self, queue: Queue) -> None:
        """Return at once: no other node gets a copy."""
