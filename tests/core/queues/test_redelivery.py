"""Returns of a classic queue against a plain list: counts, the limit, waits, restarts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from fake_queue_store import FakeQueueStore
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.paging import Pager
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.variable_queue import VariableQueue
from warren.core.field import long
from warren.core.messages.message import Envelope, Message
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.redelivery import Redelivery, delay_of

CODEC = AmqpContentCodec()
HEADER = CODEC.content_header(1, {})
LEVELS = 2


@dataclass(eq=False)
class Entry:
    """A message in the model."""

    number: int
    priority: int
    count: int = 0
    waits_until: float = 0.0


class ReturnsMachine(RuleBasedStateMachine):
    @initialize(
        limit=st.sampled_from((None, 0, 1, 3)),
        delays=st.sampled_from((None, (1000,), (0, 2000), (500, 0, 1000))),
        priorities=st.booleans(),
    )
    def start(self, limit: int | None, delays: tuple[int, ...] | None, priorities: bool) -> None:
        self.settings = QueueSettings(delivery_limit=limit, redelivery_delay_ms=delays)
        self.clock = ManualClock(start=0.0)
        self.stores = [FakeQueueStore() for _ in range(LEVELS if priorities else 1)]
        self.begin()
        self.entries: dict[int, Entry] = {}
        self.out: dict[int, Message] = {}
        self.published = 0

    def begin(self) -> None:
        pager = Pager(self.clock, lambda: 0.1)
        levels = [VariableQueue(store, pager) for store in self.stores]
        one = len(levels) == 1
        self.queue = levels[0] if one else PriorityQueue(1, lambda level: levels[level])
        self.redelivery = Redelivery(CODEC, self.clock, self.take_due)

    @rule(priority=st.integers(0, 1))
    def publish(self, priority: int) -> None:
        envelope = Envelope("", "q", HEADER, True, priority, None)
        self.queue.publish(envelope, b"%d" % self.published, None, None, 0)
        self.entries[self.published] = Entry(self.published, priority)
        self.published += 1

    @rule(limit=st.integers(1, 4))
    def fetch(self, limit: int) -> None:
        for message in self.queue.fetch_many(limit):
            number = int(message.body)
            entry = self.entries[number]
            assert number not in self.out and entry.waits_until <= self.clock.now()
            shown = CODEC.headers(self.redelivery.shown(self.queue, message).header)
            assert shown == {"x-delivery-count": long(entry.count)}
            assert message.envelope.header == HEADER
            self.out[number] = message

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.out)), min_size=1, unique=True))
        messages = [self.out.pop(number) for number in chosen]
        now = self.clock.now()
        ready, dead = self.redelivery.take_back(self.queue, messages, self.settings)
        limit = self.settings.delivery_limit
        for number in chosen:
            entry = self.entries[number]
            entry.count += 1
            if limit is not None and entry.count > limit:
                del self.entries[number]
                assert number in {int(message.body) for message in dead}
                continue
            wait_ms = delay_of(self.settings.redelivery_delay_ms, entry.count)
            entry.waits_until = now + wait_ms / 1000
            assert (not wait_ms) == (number in {int(message.body) for message in ready})
        self.queue.requeue(ready)
        self.queue.ack(dead)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.out)), min_size=1, unique=True))
        self.queue.ack([self.out.pop(number) for number in chosen])
        for number in chosen:
            del self.entries[number]

    @rule(step=st.sampled_from((0.25, 1.0)))
    def time_passes(self, step: float) -> None:
        self.clock.advance(step)

    def take_due(self) -> None:
        back = self.redelivery.due(100)
        due = [self.entries[int(message.body)].waits_until for message in back]
        assert due == sorted(due)
        self.queue.requeue(back)

    @rule()
    def restart(self) -> None:
        """Nothing waits any more, and every count is what it was."""
        self.stores = [store.restarted() for store in self.stores]
        self.redelivery.stop()
        self.begin()
        self.out.clear()
        for entry in self.entries.values():
            entry.waits_until = 0.0

    @invariant()
    def all_are_somewhere(self) -> None:
        now = self.clock.now()
        waiting = [n for n, entry in self.entries.items() if entry.waits_until > now]
        assert sorted(int(m.body) for m in self.redelivery.waiting()) == sorted(waiting)
        assert self.redelivery.waiting_bytes == sum(len(b"%d" % number) for number in waiting)
        assert self.queue.length == len(self.entries) - len(self.out) - len(waiting)

    @invariant()
    def counts_are_those_of_messages_there(self) -> None:
        counts = sorted(count for store in self.stores for count in store.delivery_counts.values())
        assert counts == sorted(entry.count for entry in self.entries.values() if entry.count)


TestReturns = ReturnsMachine.TestCase
TestReturns.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("delays", "waits"),
    [(None, [0, 0, 0]), ((5,), [5, 5, 5]), ((0, 7), [0, 7, 7]), ((1, 2, 3), [1, 2, 3])],
)
def test_the_last_delay_is_for_all_further_returns(
    delays: tuple[int, ...] | None, waits: list[int]
) -> None:
    assert [delay_of(delays, times) for times in (1, 2, 3)] == waits


@pytest.mark.parametrize("purged", [False, True])
def test_a_purge_forgets_the_counts_of_what_it_drops(purged: bool) -> None:
    store = FakeQueueStore()
    clock = ManualClock()
    queue = VariableQueue(store, Pager(clock, lambda: 0.1))
    for body in (b"1", b"2"):
        queue.publish(Envelope("", "q", HEADER, True, 0, None), body, None, None, 0)
    redelivery = Redelivery(CODEC, clock, lambda: None)
    messages = queue.fetch_many(2)
    redelivery.take_back(queue, messages, QueueSettings(delivery_limit=5))
    queue.requeue(messages[:1])
    if purged:
        queue.purge()
    assert list(store.delivery_counts) == ([1] if purged else [0, 1])
