"""The messages of a queue that came back: ready again, and before all that was never delivered.

They keep their objects. When memory is short they lose their bodies, which the store has, and get
them back when they are fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from warren.core.backing.disk_range import Lose
from warren.core.backing.queue_store import QueueStore
from warren.core.backing.taking import parted, take_from_heap
from warren.core.messages.message import PAGED_OUT, Message

LOOKS_PER_PAGE = 16
"""As many messages can be looked at in the time in which one is paged out."""


class Chosen(NamedTuple):
    """Messages to be paged out, and what that and looking for them costs."""

    messages: list[Message]
    spent: int


class ReturnedMessages:
    """Returned messages: `heap` has them by position, `whole` of them have their bodies in
    memory."""

    __slots__ = ("_cursor", "heap", "whole")

    def __init__(self) -> None:
        self.heap: list[tuple[int, Message]] = []
        self.whole = 0
        # Where the last look for whole messages ended.
        self._cursor = 0

    def add(self, messages: Collection[Message]) -> None:
        entries = [(message.position, message) for message in messages]
        self.whole += sum([message.body is not PAGED_OUT for message in messages])
        heap = self.heap
        if len(entries) > len(heap):
            heap += entries
            heapify(heap)
        else:
            for entry in entries:
                heappush(heap, entry)

    def bring_head(self, store: QueueStore, lose: Lose) -> Message | None:
        """The first message, with its body; None when there is none.

        Messages whose bodies are lost are dropped, and their number and octets told to `lose`.
        """
        heap = self.heap
        while heap:
            message = heap[0][1]
            if message.body is not PAGED_OUT:
                return message
            body = store.read_body(message)
            if body is not None:
                message.body = body
                self.whole += 1
                return message
            heappop(heap)
            lose(1, message.body_bytes)
        return None

    def take_head(self) -> Message:
        """Remove and return the message that `bring_head` has returned."""
        self.whole -= 1
        return heappop(self.heap)[1]

    def take_heads(self, count: int, store: QueueStore, lose: Lose) -> list[Message]:
        """Remove the first messages, with their bodies, as many as there are up to `count`."""
        heap = self.heap
        messages: list[Message] = []
        while heap and len(messages) < count:
            if heap[0][1].body is PAGED_OUT and self.bring_head(store, lose) is None:
                break
            messages.append(heappop(heap)[1])
        self.whole -= len(messages)
        return messages

    def take(self, positions: Sequence[int]) -> list[Message]:
        """Remove the messages with these positions, which may be without their bodies."""
        taken = take_from_heap(self.heap, positions)
        self.whole -= sum([message.body is not PAGED_OUT for message in taken])
        return taken

    def choose(self, count_max: int, budget: int, price: Callable[[Message], int]) -> Chosen:
        """Choose whole messages that are to lose their bodies, until they and the search cost the
        budget.

        One round of the heap finds all whole messages, and none twice. The cursor stays where it is
        between calls, as it costs time to look for a few whole messages among many that are not.
        The chosen ones do not count as whole any more.
        """
        heap = self.heap
        messages: list[Message] = []
        wanted = min(count_max, self.whole)
        looked_at = spent = 0
        while len(messages) < wanted and spent + looked_at // LOOKS_PER_PAGE < budget:
            looked_at += 1
            self._cursor -= 1
            if not 0 <= self._cursor < len(heap):
                self._cursor = len(heap) - 1
            message = heap[self._cursor][1]
            if message.body is not PAGED_OUT:
                messages.append(message)
                spent += price(message)
        self.whole -= len(messages)
        return Chosen(messages, spent + looked_at // LOOKS_PER_PAGE)

    def part_from_holders(self) -> None:
        """Put a copy in the place of each message that a channel still has."""
        self.heap = parted(self.heap)

    def take_all(self) -> list[tuple[int, Message]]:
        """Remove and return all messages."""
        heap, self.heap = self.heap, []
        self.whole = 0
        return heap

    def check(self) -> None:
        """Assert the invariants that hold between two calls of the queue."""
        assert self.whole == sum(message.body is not PAGED_OUT for _, message in self.heap)
        assert all(position == message.position for position, message in self.heap)
