"""Publishes are confirmed when mirrors and store have them, together with those of their batch."""

from __future__ import annotations

from warren.core.messages.settlement import PublishConfirms
from warren.mirror.replication.leading.awaited_confirms import AwaitedConfirms


class Publisher(PublishConfirms):
    def __init__(self) -> None:
        self.settled: list[int] = []
        self.refused: list[int] = []

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        self.refused.append(publish_seq)


def test_a_group_waits_for_its_mirrors_and_for_all_of_the_store() -> None:
    awaited, publisher = AwaitedConfirms(), Publisher()
    whom, first = awaited.add(publisher, 11, 3, True, batch=1)
    assert whom is awaited
    awaited.settle(first + 1)
    awaited.mirrors_have(1, 1)
    awaited.settle(first)
    assert publisher.settled == []
    awaited.settle(first + 2)
    assert publisher.settled == [11, 12, 13]


def test_what_the_store_has_waits_for_the_mirrors() -> None:
    awaited, publisher = AwaitedConfirms(), Publisher()
    _, first = awaited.add(publisher, 1, 2, True, batch=1)
    _, second = awaited.add(publisher, 3, 2, True, batch=2)
    assert second == first + 2
    awaited.settle_many(first, 4)
    assert publisher.settled == []
    awaited.mirrors_have(1, 1)
    assert publisher.settled == [1, 2]
    awaited.mirrors_have(2, 2)
    assert publisher.settled == [1, 2, 3, 4]


def test_what_the_store_does_not_keep_waits_for_mirrors_alone() -> None:
    awaited, publisher = AwaitedConfirms(), Publisher()
    assert awaited.add(publisher, 1, 4, False, batch=5) == (None, 0)
    awaited.mirrors_have(4, 4)
    assert publisher.settled == []
    awaited.mirrors_have(5, 5)
    assert publisher.settled == [1, 2, 3, 4]


def test_one_that_the_store_refuses_is_refused_and_the_others_are_settled() -> None:
    awaited, publisher = AwaitedConfirms(), Publisher()
    _, first = awaited.add(publisher, 1, 3, True, batch=1)
    awaited.mirrors_have(1, 1)
    awaited.settle(first)
    awaited.refuse(first + 1)
    awaited.settle(first + 2)
    assert (publisher.settled, publisher.refused) == ([1, 3], [2])


def test_at_the_end_everything_left_is_answered_once() -> None:
    for refuse in (False, True):
        awaited, publisher = AwaitedConfirms(), Publisher()
        _, first = awaited.add(publisher, 1, 2, True, batch=1)
        awaited.add(publisher, 3, 1, False, batch=1)
        awaited.mirrors_have(1, 1)
        awaited.add(publisher, 4, 1, True, batch=2)
        awaited.settle(first)
        awaited.end(refuse=refuse)
        # The store may still answer.
        awaited.settle(first + 1)
        assert sorted(publisher.settled) == ([3] if refuse else [1, 2, 3, 4])
        assert sorted(publisher.refused) == ([1, 2, 4] if refuse else [])


def test_a_barrier_is_told_once_what_happened() -> None:
    told: list[bool] = []
    awaited = AwaitedConfirms()
    awaited.add_barrier(told.append, 3, everywhere=False)
    awaited.add_barrier(told.append, 3, everywhere=True)
    awaited.mirrors_have(3, 2)
    assert told == [True]
    awaited.end(refuse=True)
    assert told == [True, False]
