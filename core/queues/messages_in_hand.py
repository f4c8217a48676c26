"""Messages that an operator has taken out of the middle of a queue, to have them moved or deleted.

They are pending in the backing queue like those that clients have, though no client has them: they
stay in the store, and a requeue puts them back in their places. A node or leader that comes after
finds them as messages of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, cast

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.handing_over import Followed
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.messages.message import Message
from warren.core.scheduling.waiting import Event


class OperatedQueue(Protocol):
    """The part of a queue that is needed to take messages out of it."""

    deleted: bool
    backing: BackingQueue

    @property
    def described(self) -> str: ...

    @property
    def is_withheld(self) -> bool: ...

    def take_waiting(self, level: int, positions: Collection[int]) -> list[Message]:
        """Take out those of these messages that wait before they are ready again."""
        ...

    def ready_again(self, messages: Sequence[Message]) -> None:
        """Make these pending messages ready, in their places."""
        ...


class MessagesInHand:
    """The messages that were taken out of one queue and are neither settled nor put back.

    `on_settled` is told which messages are about to leave the queue for good.
    """

    __slots__ = ("_all_settled", "_messages", "_on_settled", "_queue")

    def __init__(
        self,
        queue: OperatedQueue,
        on_settled: Callable[[Sequence[Message]], None] | None = None,
    ) -> None:
        self._queue = queue
        self._on_settled = on_settled
        self._messages: dict[Message, None] = {}
        self._all_settled: Event | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __contains__(self, message: Message) -> bool:
        return message in self._messages

    def take(self, level: int, positions: Sequence[int]) -> list[Message]:
        """Take out the messages with these positions that are ready, or wait to be ready again.

        Nothing counts as delivered. While the queue is being handed over nothing is taken.
        """
        queue = self._queue
        if queue.deleted or queue.is_withheld:
            return []
        backing = queue.backing
        if isinstance(backing, PriorityQueue):
            messages = backing.take(level, positions)
        else:
            messages = cast("MirroredLevel", backing).take(positions)
        if waiting := queue.take_waiting(level, positions):
            messages = sorted([*messages, *waiting], key=lambda message: message.position)
        self._messages.update(dict.fromkeys(messages))
        return messages

    async def noted(self) -> bool:
        """Return when messages that were taken out count as delivered at any next leader of the
        queue: only then may they go elsewhere. False when another node leads by then."""
        backing = self._queue.backing
        level = backing.levels[0] if isinstance(backing, PriorityQueue) else backing
        return not isinstance(level, Followed) or await level.noted()

    def settle(self, messages: Sequence[Message]) -> None:
        """Remove messages from the queue: they are safe elsewhere, or not wanted any more."""
        if not self._queue.deleted:
            if self._on_settled is not None:
                self._on_settled(messages)
            self._queue.backing.ack(messages)
        self._let_go(messages)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Make messages ready again, in their places."""
        if not self._queue.deleted:
            self._queue.ready_again(messages)
        self._let_go(messages)

    def all_settled(self) -> Event:
        """Return an event: no message is in hand any more. Only for a hand that is not empty."""
        self._all_settled = self._all_settled or Event()
        return self._all_settled

    def _let_go(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._messages.pop(message, None)
        if not self._messages and self._all_settled is not None:
            all_settled, self._all_settled = self._all_settled, None
            all_settled.happen()
