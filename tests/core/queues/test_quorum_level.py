"""The level of a quorum queue against plain lists: order, counts, lengths, restarts.

Two levels get the same calls, one over a disk that pages everything out, one over memory: as a
leader and its copy would. Both must do what the lists say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.paging import Pager
from warren.core.backing.ready_messages import BatchSizes
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Envelope, Message
from warren.core.queues.quorum_level import LastingEnvelopes, QuorumLevel, quorum_level

SMALL = BatchSizes(read_count=3, read_bytes=600, lazy_read_count=2, lazy_read_bytes=300)
PERSISTENT = Envelope("", "q", b"p", True, 0, None)
TRANSIENT = Envelope("", "q", b"t", False, 0, None)


@dataclass(eq=False)
class Entry:
    """A message in the model."""

    number: int
    size: int
    expires_at: float | None
    count: int = 0

    @property
    def body(self) -> bytes:
        return b"%05d" % self.number + bytes(self.size)


def all_ready(level: QuorumLevel) -> list[Message]:
    found: list[Message] = []
    start = 0
    while start < level.next_position:
        peeked = level.peek(start, 1000, 1 << 20)
        found += peeked.messages
        start = peeked.next_position
    return found


class QuorumLevelMachine(RuleBasedStateMachine):
    """Does the same to two levels and to lists: `first` is read before `main`."""

    @initialize(worth_paging=st.sampled_from((1, 4, 1000)), lazy=st.booleans())
    def start(self, worth_paging: int, lazy: bool) -> None:
        self.clock = ManualClock(start=0.0)
        self.memory_ratio = 0.1
        self.pager = Pager(self.clock, lambda: self.memory_ratio, worth_paging=worth_paging)
        self.store = FakeQueueStore(True)
        self.mode = "lazy" if lazy else "default"
        self.on_disk = self.new_level()
        self.in_memory = QuorumLevel(MemoryQueue(), LastingEnvelopes())
        self.first: list[Entry] = []
        self.main: list[Entry] = []
        self.pending: list[tuple[Entry, Message, Message]] = []
        self.published = 0

    def new_level(self) -> QuorumLevel:
        queue = VariableQueue(self.store, self.pager, mode=self.mode, sizes=SMALL)
        return QuorumLevel(queue, LastingEnvelopes())

    @property
    def levels(self) -> tuple[QuorumLevel, QuorumLevel]:
        return self.on_disk, self.in_memory

    @property
    def ready(self) -> list[Entry]:
        return self.first + self.main

    # Publishing

    def new_entry(self, size: int, ttl_s: float | None = None) -> Entry:
        expires_at = None if ttl_s is None else self.clock.now() + ttl_s
        self.published += 1
        return Entry(self.published, size, expires_at)

    @rule(
        count=st.sampled_from((1, 1, 2, 5, 9)),
        size=st.sampled_from((0, 1, 100, 5000)),
        envelope=st.sampled_from((PERSISTENT, TRANSIENT)),
        ttl_s=st.sampled_from((None, None, None, 0.001, 1.0)),
    )
    def publish(self, count: int, size: int, envelope: Envelope, ttl_s: float | None) -> None:
        for _ in range(count):
            entry = self.new_entry(size, ttl_s)
            for level in self.levels:
                level.publish(envelope, entry.body, entry.expires_at, None, 0)
            self.main.append(entry)

    @rule(count=st.integers(1, 6), size=st.sampled_from((0, 50)))
    def publish_many(self, count: int, size: int) -> None:
        entries = [self.new_entry(size) for _ in range(count)]
        envelopes = [TRANSIENT if entry.number % 2 else PERSISTENT for entry in entries]
        for level in self.levels:
            level.publish_many(envelopes, [entry.body for entry in entries], None, None, 0)
        self.main += entries

    @precondition(lambda self: not self.ready)
    @rule(size=st.sampled_from((0, 100)))
    def publish_delivered(self, size: int) -> None:
        entry = self.new_entry(size)
        messages = [
            level.publish_delivered(TRANSIENT, entry.body, None, None, 0) for level in self.levels
        ]
        self.out([entry], *[[message] for message in messages])

    # Fetching

    def out(self, entries: list[Entry], *both: list[Message]) -> None:
        """These were handed out, by both levels."""
        for messages, level in zip(both, self.levels, strict=True):
            loaded = level.load(messages)
            assert [message.body for message in loaded] == [entry.body for entry in entries]
            assert all(message.envelope.persistent for message in messages)
            counts = [level.counts.get(message.position, 0) for message in messages]
            assert counts == [entry.count for entry in entries]
        self.pending += zip(entries, *both, strict=True)

    @rule(limit=st.integers(1, 12))
    def fetch_many(self, limit: int) -> None:
        taken = self.ready[:limit]
        self.first, self.main = self.first[limit:], self.main[max(0, limit - len(self.first)) :]
        self.out(taken, *[level.fetch_many(limit) for level in self.levels])

    @rule()
    def fetch(self) -> None:
        fetched = [level.fetch() for level in self.levels]
        if not self.ready:
            assert fetched == [None, None]
            return
        taken = self.first.pop(0) if self.first else self.main.pop(0)
        self.out([taken], *[[message] for message in fetched if message is not None])

    @rule(wait_s=st.sampled_from((0.0, 0.01, 2.0)), limit=st.integers(1, 4))
    def fetch_expired(self, wait_s: float, limit: int) -> None:
        self.clock.advance(wait_s)
        now = self.clock.now()
        expired: list[Entry] = []
        while len(expired) < limit:
            head = self.ready[0] if self.ready else None
            if head is None or head.expires_at is None or head.expires_at > now:
                break
            expired.append(self.first.pop(0) if self.first else self.main.pop(0))
        self.out(expired, *[level.fetch_expired(now, limit) for level in self.levels])

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), put_back=st.booleans())
    def take(self, data: Any, put_back: bool) -> None:
        """Some leave from wherever they are, or return to where they were."""
        chosen = data.draw(st.sets(st.integers(0, len(self.ready) - 1), max_size=4))
        entries = [self.ready[at] for at in sorted(chosen)]
        bodies = {entry.body for entry in entries}
        places = [
            [message.position for message in all_ready(level) if message.body in bodies]
            for level in self.levels
        ]
        # What had been fetched before, or stands where that ends, comes first when it is put back,
        # as whatever did not arrive.
        put_back = put_back and all(
            [
                position > level.undelivered_from
                for level, positions in zip(self.levels, places, strict=True)
                for position in positions
            ]
        )
        for level, positions in zip(self.levels, places, strict=True):
            taken = level.take(positions)
            assert [message.position for message in taken] == sorted(positions)
            assert {message.body for message in taken} == bodies
            if put_back:
                level.requeue(taken)
            else:
                level.ack(taken)
        if not put_back:
            self.first = [entry for entry in self.first if entry not in entries]
            self.main = [entry for entry in self.main if entry not in entries]

    # Settling

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), verdict=st.sampled_from(("ack", "first", "last", "undelivered")))
    def settle(self, data: Any, verdict: str) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(range(len(self.pending))), min_size=1, unique=True)
        )
        settled = [self.pending[at] for at in chosen]
        self.pending = [entry for entry in self.pending if entry not in settled]
        for level, at in zip(self.levels, (1, 2), strict=True):
            messages = [entry[at] for entry in settled]
            if verdict == "ack":
                level.ack(messages)
            elif verdict == "undelivered":
                level.requeue(messages)
            else:
                level.give_back(messages, last=verdict == "last")
        entries = [entry[0] for entry in settled]
        if verdict in ("first", "last"):
            for entry in entries:
                entry.count += 1
        if verdict == "first":
            self.first += entries
        elif verdict == "last":
            self.main += entries
        elif verdict == "undelivered":
            self.first = entries + self.first

    @rule()
    def purge(self) -> None:
        counts = [level.purge() for level in self.levels]
        assert counts == [len(self.ready)] * 2
        self.first, self.main = [], []

    # The disk

    @rule(ratio=st.sampled_from((0.1, 0.6, 1.2)))
    def memory_is_used(self, ratio: float) -> None:
        self.memory_ratio = ratio
        self.clock.advance(3.0)

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        """Everything is ready again, where it was published, and knows how often it came back."""
        if orderly:
            self.on_disk.stop()
        self.store = self.store.restarted()
        self.on_disk = self.new_level()
        # A level in memory has no such thing; what is left is published to a new one.
        entries = self.ready + [entry for entry, _, _ in self.pending]
        self.main = sorted(entries, key=lambda entry: entry.number)
        self.first, self.pending = [], []
        self.in_memory = QuorumLevel(MemoryQueue(), LastingEnvelopes())
        for position, entry in enumerate(self.main):
            self.in_memory.publish(PERSISTENT, entry.body, entry.expires_at, None, 0)
            if entry.count:
                self.in_memory.counts[position] = entry.count

    # What holds all the time

    @invariant()
    def figures_are_right(self) -> None:
        if not hasattr(self, "main"):
            return
        for level in self.levels:
            assert level.length == len(self.ready)
            assert level.ready_bytes == sum(len(entry.body) for entry in self.ready)
            assert level.status(self.clock.now()).len == len(self.ready)
            head = self.ready[0].expires_at if self.ready else None
            assert level.next_expiry() == pytest.approx(head)
            counted = [entry for entry in self.ready if entry.count]
            counted += [entry for entry, _, _ in self.pending if entry.count]
            assert sorted(level.counts.values()) == sorted(entry.count for entry in counted)

    @rule()
    def every_message_can_be_looked_at(self) -> None:
        for level in self.levels:
            for place, entry in enumerate(self.ready):
                message = level.look(place)
                assert message is not None and message.body == entry.body
            assert level.look(len(self.ready)) is None

    @rule(count_max=st.integers(1, 4))
    def copies_find_everything_by_position(self, count_max: int) -> None:
        wanted = sorted(entry.body for entry in self.ready)
        for level in self.levels:
            bodies: list[bytes] = []
            positions: list[int] = []
            start = 0
            while start < level.next_position:
                peeked = level.peek(start, count_max, 10_000)
                bodies += [message.body for message in peeked.messages]
                start = peeked.next_position
            start = 0
            while start < level.next_position:
                listed = level.list_positions(start, level.next_position, count_max)
                positions += listed.positions
                start = listed.next_position
            assert bodies == wanted
            assert positions == sorted(set(positions)) and len(positions) == len(wanted)


QuorumLevelMachine.TestCase.settings = settings(
    max_examples=75, stateful_step_count=40, deadline=None
)
TestQuorumLevel = QuorumLevelMachine.TestCase


def test_copies_of_a_message_share_the_envelope_that_lasts() -> None:
    lasting = LastingEnvelopes()
    made = lasting.of(TRANSIENT)
    assert made.persistent and made.header == TRANSIENT.header
    assert lasting.of(TRANSIENT) is made
    assert lasting.of(PERSISTENT) is PERSISTENT
    other = Envelope("", "q", b"o", False, 0, None)
    assert lasting.of(other).header == b"o"


def test_a_level_is_not_wrapped_twice() -> None:
    level = quorum_level(MemoryQueue(), LastingEnvelopes())
    assert quorum_level(level, LastingEnvelopes()) is level


def test_a_message_that_never_came_back_has_no_count() -> None:
    level = QuorumLevel(MemoryQueue(), LastingEnvelopes())
    level.publish(TRANSIENT, b"m", None, None, 0)
    message = level.fetch()
    assert message is not None
    level.requeue([message])
    assert level.counts == {}
    assert level.fetch() is message
    level.give_back([message], last=True)
    assert level.counts == {message.position: 1}
    assert level.fetch() is message
    level.ack([message])
    assert level.counts == {}


def test_a_returned_message_whose_body_is_lost_is_passed_over() -> None:
    clock = ManualClock(start=0.0)
    pager = Pager(clock, lambda: 1.5, worth_paging=1)
    store = FakeQueueStore(True)
    level = QuorumLevel(VariableQueue(store, pager), LastingEnvelopes())
    for number in range(3):
        level.publish(PERSISTENT, b"%d" % number * 10, None, None, 0)
    messages = level.fetch_many(2)
    level.give_back(messages, last=False)
    clock.advance(5.0)
    for message in messages:
        message.page_out()
    store.lose(messages[0].position)
    assert [message.body[:1] for message in level.fetch_many(3)] == [b"1", b"2"]
    assert (level.length, level.ready_bytes) == (0, 0)
    assert level.counts == {messages[1].position: 1}
