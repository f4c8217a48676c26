"""Messages that operators take out of the middle of a queue, with nothing but a backing queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fake_queue_store import FakeQueueStore
from manual_clock import ManualClock

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.paging import Pager
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Envelope, Message
from warren.core.queues.messages_in_hand import MessagesInHand

BODIES = (b"0", b"1", b"2", b"3")


class Holder:
    """A queue of four messages, as far as messages are taken out of it."""

    described = "queue 'q' in vhost '/'"

    def __init__(self, priorities: Sequence[int] = (0, 0, 0, 0)) -> None:
        pager = Pager(ManualClock(), lambda: 0.1)
        levels = [VariableQueue(FakeQueueStore(), pager) for _ in range(max(priorities) + 1)]
        self.backing: BackingQueue = levels[0]
        if len(levels) > 1:
            self.backing = PriorityQueue(len(levels) - 1, lambda level: levels[level])
        self.deleted = self.is_withheld = False
        for priority, body in zip(priorities, BODIES, strict=True):
            envelope = Envelope("", "q", b"", False, priority, None)
            self.backing.publish(envelope, body, None, None, 0)

    def take_waiting(self, level: int, positions: Collection[int]) -> list[Message]:
        return []

    def ready_again(self, messages: Sequence[Message]) -> None:
        self.backing.requeue(messages)

    def ready(self) -> list[bytes]:
        return [message.body for message in self.backing.fetch_many(100)]


def test_what_is_put_back_stands_in_its_place() -> None:
    queue = Holder()
    hand = MessagesInHand(queue)
    taken = hand.take(0, [1, 2])
    assert [message.body for message in taken] == [b"1", b"2"]
    assert list(hand) == taken and taken[0] in hand and queue.backing.length == 2
    hand.settle(taken[:1])
    hand.put_back(taken[1:])
    assert len(hand) == 0
    assert queue.ready() == [b"0", b"2", b"3"]


def test_a_position_is_one_of_its_priority() -> None:
    queue = Holder(priorities=(0, 1, 0, 1))
    hand = MessagesInHand(queue)
    assert [message.body for message in hand.take(1, [1])] == [b"3"]
    assert [message.body for message in hand.take(0, [1])] == [b"2"]


def test_nothing_is_taken_while_the_queue_is_handed_over_or_when_it_is_gone() -> None:
    queue = Holder()
    hand = MessagesInHand(queue)
    queue.is_withheld = True
    assert hand.take(0, [0]) == []
    queue.is_withheld, queue.deleted = False, True
    assert hand.take(0, [0]) == []


def test_messages_of_a_deleted_queue_are_let_go() -> None:
    queue = Holder()
    settled: list[Message] = []
    hand = MessagesInHand(queue, settled.extend)
    taken = hand.take(0, [0, 1])
    queue.deleted = True
    hand.settle(taken[:1])
    hand.put_back(taken[1:])
    assert len(hand) == 0 and settled == []


def test_whoever_waits_hears_of_the_last_message() -> None:
    hand = MessagesInHand(Holder())
    taken = hand.take(0, [0, 1])
    first, second = hand.all_settled(), hand.all_settled()
    hand.settle(taken[:1])
    assert first is second and not first.happened
    hand.put_back(taken[1:])
    assert first.happened


def test_the_queue_hears_what_leaves_for_good_and_not_what_returns() -> None:
    settled: list[Message] = []
    hand = MessagesInHand(Holder(), settled.extend)
    taken = hand.take(0, [0, 1])
    hand.put_back(taken[:1])
    hand.settle(taken[1:])
    assert settled == taken[1:]
