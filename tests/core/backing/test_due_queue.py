"""A queue by due time against a plain list: order, what is taken out, restarts, losses.

One queue has a disk and one has none; both must do what the list says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

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

from warren.core.backing.due_queue import PAGE_COUNT, DueQueue, due_queue
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope, Message

PERSISTENT = Envelope("", "q", b"p", True, 0, None)
TRANSIENT = Envelope("", "q", b"t", False, 0, None)
FAR = 1 << 60


@dataclass(eq=False)
class Entry:
    """A message in the model; `position` is that in the queue on disk."""

    due: float | None
    position: int
    body: bytes
    persistent: bool

    @property
    def order(self) -> tuple[float, int]:
        return (0.0 if self.due is None else self.due, self.position)


class DueQueueMachine(RuleBasedStateMachine):
    @initialize(durable=st.booleans())
    def start(self, durable: bool) -> None:
        self.store = FakeQueueStore(durable)
        self.on_disk = DueQueue(self.store)
        self.in_memory = DueQueue()
        self.ready: list[Entry] = []
        self.pending: list[tuple[Entry, Message, Message]] = []
        self.now = 0.0

    @property
    def in_order(self) -> list[Entry]:
        return sorted(self.ready, key=lambda entry: entry.order)

    @property
    def queues(self) -> tuple[DueQueue, DueQueue]:
        return self.on_disk, self.in_memory

    @rule(
        count=st.sampled_from((1, 1, 2, 5, 70)),
        due=st.one_of(st.none(), st.integers(-3, 20)),
        size=st.sampled_from((0, 10, 3000)),
        persistent=st.booleans(),
    )
    def publish(self, count: int, due: int | None, size: int, persistent: bool) -> None:
        envelope = PERSISTENT if persistent else TRANSIENT
        for number in range(count):
            at = None if due is None else due / 4
            entry = Entry(at, self.on_disk.next_position, b"%d" % number + bytes(size), persistent)
            for queue in self.queues:
                queue.skip_to(entry.position)
                queue.publish(envelope, entry.body, at, None, 0)
            self.ready.append(entry)

    @rule(step=st.sampled_from((0.25, 1.0, 4.0)))
    def time_passes(self, step: float) -> None:
        self.now += step

    def out(self, entries: list[Entry], *both: list[Message]) -> None:
        for messages in both:
            assert [message.position for message in messages] == [e.position for e in entries]
            assert [message.body for message in messages] == [e.body for e in entries]
        self.pending += zip(entries, *both, strict=True)
        self.ready = [entry for entry in self.ready if entry not in entries]

    @rule(limit=st.sampled_from((1, 3, 200)))
    def fetch_due(self, limit: int) -> None:
        due = [entry for entry in self.in_order if entry.order[0] <= self.now][:limit]
        self.out(due, *[queue.fetch_expired(self.now, limit) for queue in self.queues])

    @rule(limit=st.sampled_from((1, 4)))
    def fetch(self, limit: int) -> None:
        self.out(self.in_order[:limit], *[queue.fetch_many(limit) for queue in self.queues])

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), count=st.sampled_from((1, 3)))
    def take(self, data: st.DataObject, count: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.ready), max_size=count, unique=True))
        elsewhere = [entry.position for entry, _, _ in self.pending] + [FAR]
        positions = [entry.position for entry in chosen]
        self.out(chosen, *[queue.take(positions + elsewhere) for queue in self.queues])

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), back=st.booleans())
    def settle(self, data: st.DataObject, back: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.pending), min_size=1, unique=True))
        for place, queue in enumerate(self.queues, 1):
            messages = [out[place] for out in chosen]
            (queue.requeue if back else queue.ack)(messages)
        if back:
            self.ready += [entry for entry, _, _ in chosen]
        self.pending = [out for out in self.pending if out not in chosen]

    @rule()
    def purge(self) -> None:
        assert [queue.purge() for queue in self.queues] == [len(self.ready)] * 2
        self.ready.clear()

    @rule(stop=st.booleans())
    def restart(self, stop: bool) -> None:
        if stop:
            self.on_disk.stop()
        there = self.ready + [entry for entry, _, _ in self.pending]
        self.ready = [entry for entry in there if entry.persistent and self.store.durable]
        self.pending.clear()
        self.store = self.store.restarted()
        self.on_disk = DueQueue(self.store)
        self.in_memory = DueQueue()
        for entry in sorted(self.ready, key=lambda entry: entry.position):
            self.in_memory.skip_to(entry.position)
            self.in_memory.publish(PERSISTENT, entry.body, entry.due, None, 0)

    @rule(start=st.integers(0, 5), count=st.integers(1, 5))
    def look(self, start: int, count: int) -> None:
        wanted = [entry.position for entry in self.in_order[start : start + count]]
        for queue in self.queues:
            assert [
                message.position
                for message in queue.look_at(islice(queue.due_order(), start, start + count))
            ] == wanted

    @rule(start=st.integers(0, 30), count=st.sampled_from((1, 3, 1000)))
    def look_by_position(self, start: int, count: int) -> None:
        wanted = sorted(entry.position for entry in self.ready if entry.position >= start)
        for queue in self.queues:
            end = queue.next_position
            found: list[int] = []
            at = start
            while at < end:
                listed = queue.list_positions(at, end, count)
                assert len(listed.positions) <= count
                found += listed.positions
                at = listed.next_position
            assert found == wanted
            peeked = queue.peek(start, count, FAR)
            assert [message.position for message in peeked.messages] == wanted[:count]

    @invariant()
    def counts_are_right(self) -> None:
        for queue in self.queues:
            assert queue.length == len(self.ready)
            assert queue.ready_bytes == sum(len(entry.body) for entry in self.ready)
            first = self.in_order[:1]
            assert queue.next_expiry() == (first[0].order[0] if first else None)


TestDueQueue = DueQueueMachine.TestCase
TestDueQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def published(
    store: FakeQueueStore | None, *due: float, envelope: Envelope = PERSISTENT
) -> DueQueue:
    queue = DueQueue(store)
    for number, at in enumerate(due):
        queue.publish(envelope, b"%d" % number, at, None, 0)
    return queue


def test_a_message_that_is_lost_is_counted_no_more_when_it_is_due() -> None:
    store = FakeQueueStore()
    queue = published(store, 1.0, 2.0, 3.0)
    store.lose(0)
    store.lose(2)
    assert [message.body for message in queue.fetch_expired(5.0, 10)] == [b"1"]
    assert (queue.length, queue.ready_bytes, queue.next_expiry()) == (0, 0, None)
    assert store.reported_lost == {0, 2}


def test_what_is_lost_is_not_shown_and_does_not_come_back() -> None:
    store = FakeQueueStore()
    queue = published(store, 1.0, 2.0)
    store.lose(0)
    assert [message.body for message in queue.look_at(islice(queue.due_order(), 5))] == [b"1"]
    assert queue.length == 1
    assert queue.next_expiry() == 2.0


@pytest.mark.parametrize("store", [FakeQueueStore, lambda: None], ids=["store", "memory"])
def test_messages_that_left_since_they_were_put_in_order_are_not_looked_at(
    store: Callable[[], FakeQueueStore | None],
) -> None:
    queue = published(store(), 4.0, 3.0, 2.0, 1.0)
    order = queue.due_order()
    queue.ack(queue.take((2,)))
    queue.take((0,))
    assert [message.body for message in queue.look_at(order)] == [b"3", b"1"]


def test_transient_messages_go_to_the_disk_in_small_batches() -> None:
    store = FakeQueueStore()
    queue = published(store, *[5.0] * (3 * PAGE_COUNT + 1), envelope=TRANSIENT)
    assert (store.paged, queue.status(0.0).ram_msg_count) == (3 * PAGE_COUNT, 1)
    assert queue.length == 3 * PAGE_COUNT + 1


def test_memory_knows_nothing_of_persistent_messages_but_one_number_each() -> None:
    queue = published(FakeQueueStore(), *[5.0] * 100)
    status = queue.status(0.0)
    assert (status.ram_msg_count, status.ram_bytes, status.persistent[0]) == (0, 0, 100)
    assert not queue._held
    assert all(type(number) is int for number in queue._due)


def test_numbers_of_messages_that_were_taken_leave_the_heap_with_the_earlier_ones() -> None:
    queue = published(FakeQueueStore(), *[float(number) for number in range(100)])
    # As a mirror does, in the order in which its leader has them due.
    for position in range(100):
        queue.ack(queue.take((position,)))
    assert not queue._due
    assert not queue._stale


@pytest.mark.parametrize("size", [400_000, 3])
def test_large_messages_are_handed_out_a_few_at_a_time(size: int) -> None:
    queue = DueQueue(FakeQueueStore())
    for _ in range(500):
        queue.publish(PERSISTENT, bytes(size), 1.0, None, 0)
    found = len(queue.fetch_expired(2.0, 400))
    assert found == (3 if size > 3 else 400)


@pytest.mark.parametrize("due", [1000.123456, 0.1 + 0.2, 1023.6280001, 7.000001])
def test_a_message_is_due_when_the_queue_has_said(due: float) -> None:
    """Otherwise a timer that is set for that moment would be set again and again."""
    queue = published(FakeQueueStore(), due)
    told = queue.next_expiry()
    assert told is not None
    assert len(queue.fetch_expired(told, 1)) == 1


def test_it_takes_the_place_of_a_new_backing_queue() -> None:
    queue = due_queue(MemoryQueue(), list.clear)
    assert due_queue(queue, list.clear) is queue


def test_what_a_long_queue_keeps_in_memory_is_let_go_by_others() -> None:
    """To free a million numbers at once takes ten milliseconds."""
    kept: list[list[int]] = []
    queue = DueQueue(FakeQueueStore(), kept.append)
    for _ in range(10):
        queue.publish(PERSISTENT, b"m", 1.0, None, 0)
    queue.delete()
    assert [len(numbers) for numbers in kept] == [10]
