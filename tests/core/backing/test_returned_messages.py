"""The messages of a queue that came back, with and without their bodies."""

from __future__ import annotations

from fake_queue_store import FakeQueueStore

from warren.core.backing.returned_messages import LOOKS_PER_PAGE, ReturnedMessages
from warren.core.messages.message import PAGED_OUT, Envelope, Message

ENVELOPE = Envelope("", "q", b"", False, 0, None)


class Returns:
    """Returned messages, all of which the store has; their bodies are their positions."""

    def __init__(self, *positions: int) -> None:
        self.store = FakeQueueStore()
        self.lost = 0
        self.returned = ReturnedMessages()
        self.add(*positions)

    def add(self, *positions: int) -> None:
        messages = [Message(ENVELOPE, b"%d" % at, at, None) for at in positions]
        self.store.page(sorted(messages, key=lambda message: message.position))
        self.returned.add(messages)
        self.returned.check()

    def page_out(self, count: int, budget: int = 1000) -> int:
        """What that cost."""
        messages, spent = self.returned.choose(count, budget, lambda message: 1)
        for message in messages:
            message.page_out()
        self.returned.check()
        return spent

    def lose(self, count: int, body_bytes: int) -> None:
        self.lost += count

    def next(self) -> bytes | None:
        head = self.returned.bring_head(self.store, self.lose)
        if head is None:
            return None
        assert self.returned.take_head() is head
        self.returned.check()
        return head.body


def test_they_come_out_by_position_however_they_came_in() -> None:
    returns = Returns(5, 3)
    returns.add(4, 1, 2)
    returns.add(0)
    assert [returns.next() for _ in range(7)] == [b"0", b"1", b"2", b"3", b"4", b"5", None]


def test_a_body_that_was_paged_out_is_brought_back() -> None:
    returns = Returns(1, 2, 3)
    returns.page_out(2)
    assert returns.returned.whole == 1
    assert [returns.next() for _ in range(3)] == [b"1", b"2", b"3"]
    assert not returns.returned.whole


def test_one_whose_body_is_lost_is_dropped() -> None:
    returns = Returns(1, 2)
    returns.page_out(2)
    returns.store.lose(1)
    assert returns.next() == b"2"
    assert returns.lost == 1


def test_taking_from_the_middle_leaves_the_others_in_order() -> None:
    returns = Returns(1, 2, 3, 4)
    returns.page_out(1)
    assert [message.position for message in returns.returned.take([2, 4, 9])] == [2, 4]
    returns.returned.check()
    assert [returns.next(), returns.next()] == [b"1", b"3"]


def test_looking_for_few_whole_ones_among_many_costs_something() -> None:
    count = 10 * LOOKS_PER_PAGE
    returns = Returns(*range(count))
    assert returns.page_out(count - 1) == count - 1 + (count - 1) // LOOKS_PER_PAGE
    # The last whole one is where the look before ended: the cursor stays.
    assert returns.page_out(1) == 1
    assert all(message.body is PAGED_OUT for _, message in returns.returned.heap)
    assert returns.page_out(1) == 0


def test_a_budget_ends_the_choice() -> None:
    returns = Returns(1, 2, 3)
    assert returns.page_out(3, budget=2) == 2
    assert returns.returned.whole == 1


def test_many_are_taken_at_once_without_those_that_are_lost() -> None:
    returns = Returns(1, 2, 3, 4)
    returns.page_out(3)
    returns.store.lose(3)
    taken = returns.returned.take_heads(3, returns.store, returns.lose)
    assert [message.body for message in taken] == [b"1", b"2", b"4"]
    returns.returned.check()
    assert returns.lost == 1 and not returns.returned.heap
