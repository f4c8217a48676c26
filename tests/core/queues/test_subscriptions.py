"""Who may subscribe to a queue, and which consumer is active."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock

from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.consumers import Blocked, ConsumedQueue, Consumer
from warren.core.queues.subscriptions import QuorumSubscriptions, Subscriptions


class Subscriber(Consumer):
    """A consumer that is never handed anything. Its queue is nothing but its subscriptions."""

    def __init__(self, at: Subscriptions, *, exclusive: bool = False, priority: int = 0) -> None:
        super().__init__(at, "c", False, exclusive, priority, 0, {})  # type: ignore[arg-type]

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        raise NotImplementedError

    def take(self, message: Message) -> None:
        raise NotImplementedError

    def take_many(self, messages: list[Message]) -> None:
        raise NotImplementedError

    def capacity(self) -> int:
        raise NotImplementedError

    def traced_as(self) -> TracedClient:
        raise NotImplementedError

    def move_to(self, queue: ConsumedQueue) -> None:
        raise NotImplementedError

    def cancelled(self) -> None:
        raise NotImplementedError


def subscribed(at: Subscriptions, priority: int = 0, *, single: bool = False) -> Subscriber:
    consumer = Subscriber(at, priority=priority)
    at.add(consumer, single_active=single)
    return consumer


class TestExclusiveConsumers:
    def test_an_exclusive_consumer_needs_an_unused_queue(self) -> None:
        at = Subscriptions()
        exclusive = Subscriber(at, exclusive=True)
        assert at.admits(exclusive, single_active=False)
        subscribed(at)
        assert not at.admits(exclusive, single_active=False)

    def test_nobody_is_admitted_beside_an_exclusive_consumer(self) -> None:
        at = Subscriptions()
        at.add(Subscriber(at, exclusive=True), single_active=False)
        assert not at.admits(Subscriber(at), single_active=False)

    def test_a_single_active_consumer_cannot_be_exclusive(self) -> None:
        at = Subscriptions()
        assert not at.admits(Subscriber(at, exclusive=True), single_active=True)

    def test_streams_and_quorum_queues_do_not_heed_it(self) -> None:
        for at in (Subscriptions(heeds_exclusive=False), QuorumSubscriptions(ManualClock())):
            subscribed(at)
            assert at.admits(Subscriber(at, exclusive=True), single_active=True)


class TestSingleActiveConsumers:
    def test_the_first_is_active_and_the_others_are_blocked(self) -> None:
        at = Subscriptions()
        first, second = subscribed(at, single=True), subscribed(at, 5, single=True)
        assert at.active is first and list(at.ring.top) == [first]
        assert second.blocked == Blocked.NOT_ACTIVE

    @pytest.mark.parametrize(("quorum", "next_active"), [(False, 2), (True, 1)])
    def test_the_next_is_by_priority_or_in_a_quorum_queue_by_age(
        self, quorum: bool, next_active: int
    ) -> None:
        at = QuorumSubscriptions(ManualClock()) if quorum else Subscriptions()
        consumers = [subscribed(at, priority, single=True) for priority in (0, 1, 5, 5)]
        at.remove_all(frozenset((consumers[0],)))
        assert at.activate_next()
        assert at.active is consumers[next_active]
        assert list(at.ring.top) == [consumers[next_active]]

    def test_an_active_consumer_may_be_blocked_by_something_else(self) -> None:
        at = Subscriptions()
        first, second = subscribed(at, single=True), subscribed(at, single=True)
        second.block(Blocked.SOCKET)
        at.remove_all(frozenset((first,)))
        assert not at.activate_next() and at.active is second


class TestUnsubscribing:
    def test_who_has_left_never_comes_back_into_the_ring(self) -> None:
        at = Subscriptions()
        gone, left = subscribed(at), subscribed(at)
        gone.block(Blocked.PREFETCH)
        at.remove_all(frozenset((gone,)))
        assert not gone.unblock(Blocked.PREFETCH)
        assert list(at.ring.top) == at.consumers == [left]

    def test_a_quorum_queue_counts_them_until_nothing_of_theirs_is_unacknowledged(self) -> None:
        at = QuorumSubscriptions(clock := ManualClock())
        gone = subscribed(at)
        gone.unacked = 1
        at.remove_all(frozenset((gone,)))
        clock.settle()
        assert at.total == 1
        gone.unacked = 0
        assert at.total == 0
