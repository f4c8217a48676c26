"""Queues with a delivery limit in histories of clusters.

A message that was returned more often than the limit allows is dead: it need not be in its queue
any more. Before that it must not die of the limit, whoever led when it was returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warren.core.field import Field
from warren.core.messages.message import Message
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_owner import DeathReason
from warren.core.queues.quorum_queue import QuorumQueue

if TYPE_CHECKING:
    from cluster_history import History


Bury = Callable[[Any, list[Message], DeathReason], None]


class DeliveryLimits:
    """Of one history: which queues have a limit, and how often each message was returned."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._limits: dict[str, int] = {}
        self._returns: Counter[int] = Counter()

    def choose(self, queue: str, arguments: dict[str, Any]) -> None:
        """Some queues get a limit of a few returns."""
        if self._history.random.random() < 0.6:
            self._limits[queue] = self._history.random.choice((0, 1, 3))
            arguments["x-delivery-limit"] = Field("I", self._limits[queue])

    def returned(self, messages: Sequence[Message]) -> None:
        self._returns.update([int(message.body) for message in messages])

    def died(self, queue: LocalQueue, messages: Sequence[Message]) -> None:
        limit = self._limits[queue.name]
        for message in messages:
            number = int(message.body)
            publish = self._history.publishes[number]
            # What a quorum queue counts is what was taken, too.
            if not isinstance(queue, QuorumQueue):
                returns = self._returns[number]
                assert returns > limit, f"E13: {publish} died after {returns} returns"
            self._history.seen["died of the delivery limit"] += 1
            publish.excused = publish.excused or "it was returned too often"


@contextmanager
def watching_limits(limits: DeliveryLimits | None) -> Iterator[None]:
    """Have `limits` hear of what happens at every node."""
    if limits is None:
        yield
        return
    requeue = ClassicQueue.requeue
    buries: dict[type[ClassicQueue], Bury] = {
        ClassicQueue: ClassicQueue._bury,
        QuorumQueue: QuorumQueue._bury,
    }

    def watched_requeue(
        queue: ClassicQueue, messages: list[Message], *, delivered: bool = True
    ) -> None:
        if delivered and not queue.deleted:
            limits.returned(messages)
        requeue(queue, messages, delivered=delivered)

    def watched(bury: Bury) -> Bury:
        def watched_bury(queue: Any, dead: list[Message], reason: DeathReason) -> None:
            if reason is DeathReason.DELIVERY_LIMIT:
                limits.died(queue, dead)
            bury(queue, dead, reason)

        return watched_bury

    ClassicQueue.requeue = watched_requeue  # type: ignore[method-assign]
    for kind, bury in buries.items():
        kind._bury = watched(bury)  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClassicQueue.requeue = requeue  # type: ignore[method-assign]
        for kind, bury in buries.items():
            kind._bury = bury  # type: ignore[method-assign]
