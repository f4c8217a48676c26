"""Which queues make their publishers wait while a resource runs a little short."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from manual_clock import ManualClock

from warren.core.messages.stock import Stock
from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.growth import ALWAYS, Growth


@dataclass(eq=False)
class Held:
    """A queue as growth sees it."""

    messages: int = 0
    octets: int = 0
    is_here: bool = True
    queue_id: int = 1
    deleted: bool = False

    def stock(self) -> Stock:
        return Stock(self.messages, self.octets)


class Shortage:
    """A node that runs a little short of memory, and how often it was told of changed queues."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.alarms = Alarms("a@host")
        self.growth = Growth(self.alarms, self.clock)
        self.changes = 0
        self.growth.watch(self._changed)
        self.alarms.report(Resource.MEMORY, True, growing_only=True)

    def _changed(self) -> None:
        self.changes += 1

    def grown(self) -> Held:
        """A queue that has grown."""
        queue = Held()
        assert not self.growth.holds_back(queue)
        queue.messages = ALWAYS.messages + 1
        assert self.growth.holds_back(queue)
        return queue


def test_what_any_queue_may_hold_is_never_too_much() -> None:
    growth, queue = Shortage().growth, Held()
    for stock in (Stock(0, 0), ALWAYS):
        queue.messages, queue.octets = stock
        assert not growth.holds_back(queue)
    for stock in (Stock(ALWAYS.messages + 1, 0), Stock(0, ALWAYS.octets + 1)):
        queue.messages, queue.octets = stock
        assert growth.holds_back(queue)


def test_a_queue_may_hold_what_it_held_at_first() -> None:
    growth, queue = Shortage().growth, Held(messages=5000)
    for messages, holds_back in ((5000, False), (5001, True), (4000, False), (5000, False)):
        queue.messages = messages
        assert growth.holds_back(queue) is holds_back


def test_watchers_hear_when_a_queue_has_grown_and_when_it_is_shorter() -> None:
    shortage = Shortage()
    queue = shortage.grown()
    assert (shortage.changes, shortage.growth.grown_here()) == (1, [1])
    assert shortage.growth.holds_back(queue) and shortage.changes == 1
    queue.messages = 3
    shortage.clock.advance(1)
    assert (shortage.changes, shortage.growth.grown_here()) == (2, [])


@pytest.mark.parametrize("unacked", [0, ALWAYS.messages + 1])
def test_a_queue_that_is_gone_holds_nobody_back(unacked: int) -> None:
    """One that has moved to another leader still counts what was out then."""
    shortage = Shortage()
    queue = shortage.grown()
    queue.messages, queue.deleted = unacked, True
    shortage.clock.advance(1)
    assert not shortage.growth.holds_back(queue)
    assert shortage.growth.grown_here() == []


def test_the_next_shortage_begins_anew() -> None:
    shortage = Shortage()
    queue = shortage.grown()
    shortage.alarms.report(Resource.MEMORY, False)
    assert shortage.growth.grown_here() == []
    shortage.alarms.report(Resource.MEMORY, True, growing_only=True)
    assert not shortage.growth.holds_back(queue)


def test_queues_of_other_nodes_are_judged_there() -> None:
    shortage, there = Shortage(), Held(messages=10_000, is_here=False, queue_id=7)
    assert not shortage.growth.holds_back(there)
    shortage.growth.told("b@host", [7, 8])
    assert shortage.growth.holds_back(there) and shortage.changes == 1
    shortage.growth.told("b@host", [8, 7])
    assert shortage.changes == 1
    shortage.growth.node_down("b@host")
    assert not shortage.growth.holds_back(there) and shortage.changes == 2
