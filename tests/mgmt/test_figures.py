"""One number, its activity, shows whether anything has changed in a queue."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import cast

from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.statistics.figures import queue_activity


class CountedQueue:
    """The counts of a queue, and what changes them."""

    def __init__(self) -> None:
        self.published = self.acked = self.given_back = self.unacked = 0
        self.got = self.got_no_ack = self.got_nothing = 0
        self.backing = SimpleNamespace(length=0)

    def publish(self) -> None:
        self.published += 1
        self.backing.length += 1

    def deliver(self) -> None:
        if self.backing.length:
            self.backing.length -= 1
            self.unacked += 1

    def acknowledge(self) -> None:
        if self.unacked:
            self.unacked -= 1
            self.acked += 1

    def give_back(self) -> None:
        if self.unacked:
            self.unacked -= 1
            self.given_back += 1
            self.backing.length += 1

    def expire(self) -> None:
        if self.backing.length:
            self.backing.length -= 1

    def counts(self) -> tuple[int, ...]:
        return (
            self.published,
            self.acked,
            self.given_back,
            self.unacked,
            self.backing.length,
        )

    @property
    def activity(self) -> float:
        return queue_activity(cast(LocalQueue, self))


def test_whatever_moves_in_a_queue_changes_its_activity() -> None:
    for seed in range(300):
        random, queue = Random(seed), CountedQueue()
        steps = (queue.publish, queue.deliver, queue.acknowledge, queue.give_back, queue.expire)
        for _ in range(60):
            before, activity = queue.counts(), queue.activity
            for _ in range(random.choice((1, 1, 2, 5, 30))):
                random.choice(steps)()
            assert (queue.counts() == before) == (queue.activity == activity), (before, queue)


def test_a_queue_in_which_nothing_has_happened_has_no_activity() -> None:
    assert CountedQueue().activity == 0
