"""A variable queue against a plain list, over a disk that loses messages and forgets on restart.

The model knows order, lengths, expiry and what survives (invariants_and_test_ideas.md section 7);
it does not know where a message is. `check` holds after every step.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, cast

from fake_queue_store import FakeQueueStore
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from manual_clock import ManualClock

from warren.core.backing.paging import Pager
from warren.core.backing.peeking import FAR
from warren.core.backing.queue_store import Batch
from warren.core.backing.ready_messages import BatchSizes
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import NO_HOLDER, PAGED_OUT, Envelope, Message
from warren.core.messages.settlement import PublishConfirms

SMALL = BatchSizes(
    read_count=4,
    read_bytes=3000,
    lazy_read_count=2,
    lazy_read_bytes=1500,
    lazy_write_count=3,
    lazy_write_bytes=2000,
)
PERSISTENT = Envelope("", "q", b"", True, 0, None)
TRANSIENT = Envelope("", "q", b"", False, 0, None)
SIZES = (0, 5, 100, 1023, 1024, 4095, 4096, 4097)


class Confirms(PublishConfirms):
    """A channel: what it was told."""

    def __init__(self) -> None:
        self.settled: list[int] = []

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a queue of this node never takes it back")

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)


@dataclass(eq=False)
class Entry:
    """A message in the model."""

    body: bytes
    seq: int
    persistent: bool
    expires_at: float | None
    position: int
    delivered: bool = False
    redelivered: bool = False
    lost: bool = False
    message: Message | None = None
    taken: bool = False


class VariableQueueMachine(RuleBasedStateMachine):
    """Does the same to a queue and to a list."""

    durable = True

    @initialize(lazy=st.booleans(), worth_paging=st.sampled_from((1, 4, 1000)))
    def start(self, lazy: bool, worth_paging: int) -> None:
        self.clock = ManualClock(start=0.0)
        self.memory_ratio = 0.1
        self.pager = Pager(self.clock, lambda: self.memory_ratio, worth_paging=worth_paging)
        self.store = FakeQueueStore(self.durable)
        self.mode = "lazy" if lazy else "default"
        self.queue = self.new_queue()
        self.ready: list[Entry] = []
        self.pending: list[Entry] = []
        self.published = 0
        self.confirms = Confirms()
        self.unconfirmed: set[int] = set()

    def new_queue(self) -> VariableQueue:
        return VariableQueue(self.store, self.pager, mode=self.mode, sizes=SMALL)

    # Publishing

    @rule(
        count=st.sampled_from((1, 1, 2, 5, 9)),
        size=st.sampled_from(SIZES),
        persistent=st.booleans(),
        ttl_s=st.sampled_from((None, None, None, 0.0, 1.0, 5.0)),
    )
    def publish(self, count: int, size: int, persistent: bool, ttl_s: float | None) -> None:
        for _ in range(count):
            entry = self.new_entry(size, persistent, ttl_s)
            self.queue.publish(*self.arguments(entry))
            self.ready.append(entry)

    @precondition(lambda self: not self.queue.length)
    @rule(size=st.sampled_from(SIZES), persistent=st.booleans())
    def publish_delivered(self, size: int, persistent: bool) -> None:
        self.forget_reported()
        assert not self.ready
        entry = self.new_entry(size, persistent, None)
        self.deliver(entry, self.queue.publish_delivered(*self.arguments(entry)))

    @rule(
        size=st.sampled_from(SIZES),
        persistent=st.lists(st.booleans(), min_size=1, max_size=9),
        delivered=st.booleans(),
        ttl_s=st.sampled_from((None, None, 1.0, 5.0)),
    )
    def publish_many(
        self, size: int, persistent: list[bool], delivered: bool, ttl_s: float | None
    ) -> None:
        self.forget_reported()
        first = self.queue._next_position
        entries = [self.new_entry(size, each, ttl_s) for each in persistent]
        for position, entry in enumerate(entries, first):
            entry.position = position
        each = [self.arguments(entry) for entry in entries]
        envelopes, bodies = [one[0] for one in each], [one[1] for one in each]
        if delivered and not self.queue.length:
            messages = self.queue.publish_many_delivered(
                envelopes, bodies, entries[0].expires_at, self.confirms, entries[0].seq
            )
            for entry, message in zip(entries, messages, strict=True):
                self.deliver(entry, message)
        else:
            self.queue.publish_many(
                envelopes, bodies, entries[0].expires_at, self.confirms, entries[0].seq
            )
            self.ready += entries

    def new_entry(self, size: int, persistent: bool, ttl_s: float | None) -> Entry:
        seq = self.published
        self.published += 1
        body = (b"%d" % seq).ljust(size, b".") if size else b""
        expires_at = None if ttl_s is None else self.clock.now() + ttl_s
        return Entry(body, seq, persistent, expires_at, self.queue._next_position)

    def arguments(self, entry: Entry) -> tuple[Any, ...]:
        envelope = PERSISTENT if entry.persistent else TRANSIENT
        if entry.persistent and self.durable:
            self.unconfirmed.add(entry.seq)
        return envelope, entry.body, entry.expires_at, self.confirms, entry.seq

    @rule()
    def disk_catches_up(self) -> None:
        assert not self.unconfirmed & set(self.confirms.settled), "never before it is safe"
        self.store.sync()
        assert sorted(self.confirms.settled) == sorted(self.unconfirmed)
        self.confirms.settled.clear()
        self.unconfirmed.clear()

    # Fetching

    @rule()
    def fetch(self) -> None:
        message = self.queue.fetch()
        self.fetched([] if message is None else [message], 1)

    @rule(limit=st.sampled_from((0, 1, 3, 6, 100)))
    def fetch_many(self, limit: int) -> None:
        self.fetched(self.queue.fetch_many(limit), limit)

    def fetched(self, messages: list[Message], limit: int) -> None:
        self.forget_reported()
        expected = [entry for entry in self.ready if not entry.lost][:limit]
        assert len(messages) == len(expected)
        for entry, message in zip(expected, messages, strict=True):
            self.ready.remove(entry)
            self.deliver(entry, message)

    def deliver(self, entry: Entry, message: Message) -> None:
        assert (message.position, message.body) == (entry.position, entry.body)
        assert message.expires_at == entry.expires_at
        assert entry.taken or message.redelivered == entry.redelivered
        entry.delivered = True
        entry.message = message
        self.pending.append(entry)

    @rule(limit=st.sampled_from((1, 3, 100)))
    def fetch_expired(self, limit: int) -> None:
        now = self.clock.now()
        messages = self.queue.fetch_expired(now, limit)
        assert all(m.expires_at is not None and m.expires_at <= now for m in messages)
        self.fetched(messages, len(messages))
        if len(messages) < limit:
            due = self.queue.next_expiry()
            assert due is None or due > now

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), extra=st.sampled_from((0, 100)))
    def take(self, data: st.DataObject, extra: int) -> None:
        places = data.draw(st.sets(st.integers(0, len(self.ready) - 1), max_size=6))
        wanted = [self.ready[place] for place in sorted(places)]
        positions = [entry.position for entry in wanted]
        positions += [entry.position for entry in self.pending]
        messages = self.queue.take([*positions, self.queue.next_position + extra])
        self.forget_reported()
        wanted = [entry for entry in wanted if entry in self.ready and not entry.lost]
        assert [message.position for message in messages] == [entry.position for entry in wanted]
        for entry, message in zip(wanted, messages, strict=True):
            self.ready.remove(entry)
            delivered = entry.delivered
            self.deliver(entry, message)
            # No client has had it; the next start may think so, if it was the last of its queue.
            entry.delivered, entry.taken = delivered, True

    # Settling

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), verdict=st.sampled_from(("ack", "requeue", "reject")))
    def settle(self, data: st.DataObject, verdict: str) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(self.pending), unique=True, min_size=1, max_size=12)
        )
        messages = [entry.message for entry in chosen if entry.message is not None]
        for entry in chosen:
            self.pending.remove(entry)
        if verdict == "requeue":
            for entry, message in zip(chosen, messages, strict=True):
                if not entry.taken:
                    entry.redelivered = message.redelivered = True
                entry.message = None
            self.ready = sorted(self.ready + chosen, key=lambda entry: entry.position)
            self.queue.requeue(messages)
            return
        if verdict == "reject":
            loaded = [message.position for message in self.queue.load(messages)]
            assert loaded == [entry.position for entry in chosen if not entry.lost]
            bodies = {entry.position: entry.body for entry in chosen}
            assert all(m.body == bodies[m.position] for m in messages if m.position in loaded)
            self.queue.check()
        self.queue.ack(messages)

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready)
        self.ready.clear()

    # Memory

    @rule(count=st.sampled_from((0, 0, 1, 5, None)), budget=st.sampled_from((1, 3, 10, 1000)))
    def reduce(self, count: int | None, budget: int) -> None:
        self.queue._target_count = count
        target = self.queue.target_count
        for _ in range(1000):
            before = self.queue.excess
            assert before == max(0, self.queue.in_memory - target if target is not None else 0)
            spent = self.queue.reduce(budget)
            self.queue.check()
            assert self.queue.excess < before or before == spent == 0 or budget <= spent
            if not self.queue.excess:
                break
        assert not self.queue.excess

    @rule(ratio=st.sampled_from((0.1, 0.6, 0.99, 20.0)), seconds=st.sampled_from((0.5, 2.5)))
    def pager_ticks(self, ratio: float, seconds: float) -> None:
        self.memory_ratio = ratio
        self.clock.advance(seconds)
        self.pager.check(self.clock.now())
        self.clock.settle()
        if self.queue._joined:
            assert not self.queue.excess
        if self.queue.mode == "lazy":
            assert not self.queue._ready.in_memory or not self.queue._joined

    @rule(mode=st.sampled_from(("default", "lazy")), at_once=st.booleans())
    def set_mode(self, mode: str, at_once: bool) -> None:
        self.mode = mode
        self.queue.set_mode(mode)
        if at_once:
            self.clock.settle()

    @rule()
    def other_work_gets_its_turn(self) -> None:
        self.clock.settle()

    # Disks and restarts

    @precondition(lambda self: self.lossy())
    @rule(data=st.data())
    def disk_loses_a_message(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.lossy()))
        entry.lost = True
        self.store.lose(entry.position)

    def lossy(self) -> list[Entry]:
        """What is on the disk only."""
        queue = self.queue
        bodyless = {m.position for _, m in queue._ready.returned.heap if m.body is PAGED_OUT}
        return [
            entry
            for entry in self.ready + self.pending
            if not entry.lost
            and (
                entry.position in bodyless
                or (entry.message is not None and entry.message.body is PAGED_OUT)
                or (entry.message is None and queue._ready.disk.covers(entry.position))
            )
        ]

    @precondition(lambda self: self.durable)
    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.forget_reported()
        if clean:
            self.queue.stop()
        else:
            self.pager.leave(self.queue)
        self.store = self.store.restarted()
        self.confirms.settled.clear()
        self.unconfirmed.clear()
        self.ready = sorted(
            (entry for entry in self.ready + self.pending if entry.persistent),
            key=lambda entry: entry.position,
        )
        # A pending message that turned out to be lost is not in the store any more.
        self.ready = [entry for entry in self.ready if entry.position in self.store.kept]
        self.pending.clear()
        for entry in self.ready:
            entry.redelivered |= entry.delivered or not clean
            entry.message = None
        self.queue = self.new_queue()

    # Comparing

    def forget_reported(self) -> None:
        """Lost messages count until the queue finds out."""
        reported = self.store.reported_lost
        self.ready = [entry for entry in self.ready if entry.position not in reported]

    @invariant()
    def agrees(self) -> None:
        queue = self.queue
        queue.check()
        self.forget_reported()
        assert queue.length == len(self.ready)
        assert queue.ready_bytes == sum(len(entry.body) for entry in self.ready)
        assert queue.next_expiry() == (self.ready[0].expires_at if self.ready else None)
        assert queue._pending_count == len(self.pending)
        for entry in self.pending:
            assert entry.message is not None
            assert entry.message.body is PAGED_OUT or entry.message.body == entry.body
            assert entry.message.body_bytes == len(entry.body)

    @invariant()
    def positions_are_listed(self) -> None:
        listed: list[int] = []
        start, safe = 0, True
        while start < self.queue.next_position:
            some = self.queue.list_positions(start, self.queue.next_position, 3)
            assert len(some.positions) <= 3 and some.next_position > start
            listed += some.positions
            start, safe = some.next_position, safe and some.safe
        assert listed == [entry.position for entry in self.ready]
        assert not listed or not safe or self.durable
        assert not safe or all(entry.persistent for entry in self.ready)

    @invariant()
    def status_adds_up(self) -> None:
        status = self.queue.status(self.clock.now())
        parts = status.q1 + status.q2 + status.delta[1] + status.q3 + status.q4
        assert parts == status.len == self.queue.length
        assert 0 <= status.ram_msg_count <= status.len
        assert 0 <= status.ram_ack_count <= len(self.pending)
        assert status.next_seq_id == self.queue._next_position

    @invariant()
    def nothing_is_left_in_the_store(self) -> None:
        known = {entry.position for entry in self.ready + self.pending}
        assert self.store.kept.keys() <= known
        if self.durable:
            persistent = {e.position for e in self.ready + self.pending if e.persistent}
            assert persistent - self.store.reported_lost <= self.store.kept.keys()

    def teardown(self) -> None:
        """At last everything comes out in order."""
        if hasattr(self, "queue"):
            self.fetch_many(100_000)
            self.queue.ack([e.message for e in self.pending if e.message is not None])
            self.pending.clear()
            assert not self.store.kept


class TransientQueueMachine(VariableQueueMachine):
    """A queue that is not durable: nothing is written before it is paged out."""

    durable = False


bounded = settings(
    max_examples=125,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDurableQueue = VariableQueueMachine.TestCase
TestDurableQueue.settings = bounded
TestTransientQueue = TransientQueueMachine.TestCase
TestTransientQueue.settings = settings(bounded, max_examples=100)


def paged_out(bodies: list[bytes], expires_at: list[float | None]) -> tuple[Any, Any]:
    """A queue whose messages are all on the disk, and its store."""
    store = FakeQueueStore()
    queue = VariableQueue(store, Pager(ManualClock(), lambda: None))
    for body, due in zip(bodies, expires_at, strict=True):
        queue.publish(PERSISTENT, body, due, None, 0)
    queue._target_count = 0
    queue.reduce(1000)
    assert not queue.in_memory
    return queue, store


def test_a_lost_message_that_expired_does_not_take_the_next_one_with_it() -> None:
    queue, store = paged_out([b"a", b"b", b"c"], [1.0, 9.0, 1.0])
    store.lose(0)
    assert queue.fetch_expired(5.0, 10) == []
    assert (queue.length, queue.ready_bytes) == (2, 2)
    assert queue.next_expiry() == 9.0
    queue.check()


def test_a_queue_whose_messages_are_all_lost_is_empty() -> None:
    queue, store = paged_out([b"a", b"bb"], [None, None])
    store.lose(0)
    store.lose(1)
    assert queue.length == 2
    assert queue.fetch() is None
    assert queue.length == queue.ready_bytes == 0
    queue.check()


def test_an_index_lost_with_pending_messages_takes_only_ready_ones_from_the_count() -> None:
    """A store whose index is damaged cannot tell which of its messages were ready."""

    class Damaged(FakeQueueStore):
        def read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
            batch = super().read(start, end, count_max, bytes_max)
            return batch._replace(lost=batch.lost + 5, lost_bytes=batch.lost_bytes + 500)

    store = Damaged()
    queue = VariableQueue(store, Pager(ManualClock(), lambda: None))
    for _ in range(4):
        queue.publish(TRANSIENT, b"x", None, None, 0)
    queue._target_count = 0
    queue.reduce(1000)
    store.lose(2)
    assert len(queue.fetch_many(10)) == 3
    assert (queue.length, queue.ready_bytes) == (0, 0)
    queue.check()


def test_what_was_read_back_is_not_written_again() -> None:
    store = FakeQueueStore()
    queue = VariableQueue(store, Pager(ManualClock(), lambda: None))
    for _ in range(10):
        queue.publish(TRANSIENT, b"x", None, None, 0)
    queue._target_count = 0
    queue.reduce(1000)
    assert queue.fetch() is not None
    assert len(queue._ready.q4) == 9
    queue.reduce(1000)
    assert store.paged == 10 and queue._ready.disk.count == 9


def test_a_queue_that_never_wrote_asks_nothing_of_its_store() -> None:
    class Untouched(FakeQueueStore):
        def remove(self, messages: Any) -> None:
            raise AssertionError

        remove_range = remove

    queue = VariableQueue(Untouched(), Pager(ManualClock(), lambda: None))
    for _ in range(1000):
        queue.publish(TRANSIENT, b"x", None, None, 0)
    queue.ack(queue.fetch_many(500))
    assert queue.purge() == 500


def test_who_has_gone_through_a_long_queue_keeps_nothing_of_it() -> None:
    queue = VariableQueue(FakeQueueStore(), Pager(ManualClock(), lambda: None))
    body = b"of this test"
    for _ in range(3 * FAR):
        queue.publish(TRANSIENT, body, None, None, 0)
    at = 0
    while at < queue.next_position:
        at = queue.peek(at, 500, 1 << 20).next_position
    queue.ack(queue.fetch_many(3 * FAR))
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Message) and one.body is body]


def test_returned_messages_that_a_channel_still_has_are_copied_on_demand() -> None:
    """The channel got them when this node led the queue before."""
    queue = VariableQueue(FakeQueueStore(), Pager(ManualClock(), lambda: None))
    for body in (b"held", b"free"):
        queue.publish(TRANSIENT, body, None, None, 0)
    held, free = queue.fetch(), queue.fetch()
    assert held is not None and free is not None
    held.holder = cast(Any, object())
    queue.requeue([held, free])
    queue.part_from_holders()
    queue.check()
    first, second = queue.fetch(), queue.fetch()
    assert first is not None and first is not held and second is free
    assert (first.body, first.position, first.holder) == (b"held", held.position, NO_HOLDER)
