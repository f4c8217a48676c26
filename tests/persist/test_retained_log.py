"""Acknowledged messages against a plain list: each is in the queue or in its log of acknowledged
messages at any moment, whatever crash comes, and within the limits of that log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import cast

import pytest
from disk import SimulatedDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from manual_clock import ManualClock
from stored_queues import OTHER, QUEUE, Node

from warren.core.backing.backing_queue import RETAINED_LEVEL
from warren.core.backing.memory_retained_store import MemoryRetainedStore
from warren.core.backing.queue_store import NOT_HANDED
from warren.core.backing.retained_log import GENERATION_SHIFT, RetainedLog, RetainedStore
from warren.core.backing.stream_limits import KEEP_ALL, StreamLimits
from warren.core.backing.variable_queue import DEFAULT_MODE, VariableQueue
from warren.core.messages.message import Envelope, Message
from warren.core.queues.retention import SLICE, WAITING_MAX, Retention
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import run
from warren.persist.index.index_entries import SEGMENT_MASK
from warren.persist.log.journal import BATCH_BYTES_MAX
from warren.persist.log.store_context import StorageSizes

SIZES = st.sampled_from((0, 10, 500, 5000, 70_000))
ENVELOPE = Envelope("", "key", b"header", True, 0, None)
TRANSIENT = Envelope("", "key", b"header", False, 0, None)
LARGE = bytes(20_000)

SMALL_FILES = StorageSizes(file_bytes_max=200_000, checkpoint_bytes=1 << 40, combine_bytes_min=1000)


class Holder:
    """What a retention knows of its queue."""

    name = "q"
    vhost_name = "/"
    key = ("queue", "/", name)

    def __init__(self, backing: VariableQueue) -> None:
        self.backing = backing


class RetainingNode(Node):
    """`retention` is that of the queue `QUEUE`."""

    log: RetainedLog

    def open(self, queue_id: int, mode: str = DEFAULT_MODE) -> VariableQueue:
        queue = super().open(queue_id, mode)
        if queue_id == QUEUE:
            store = self.storage.open(queue_id + RETAINED_LEVEL, durable=True, retained=True)
            self.log = RetainedLog(cast(RetainedStore, store))
            self.retention = Retention(Holder(queue), self.log, self.clock, Turns(self.clock))
            self.retention.keep_within(KEEP_ALL)
        return queue

    def take(self, count: int) -> list[Message]:
        return self.queues[QUEUE].fetch_many(count)

    def stop(self) -> None:
        self.retention.stop()
        super().stop()


def retained(log: RetainedLog) -> list[bytes]:
    """The bodies of all committed messages."""
    found: list[bytes] = []
    position = log.first
    while position < log.committed:
        messages, position = log.read(position, 50)
        found += [message.body for message in messages]
    return found


def left(queue: VariableQueue) -> list[bytes]:
    peeked, found = 0, []
    while peeked < queue.next_position:
        messages, peeked = queue.peek(peeked, 100, 1 << 30)
        found += [message.body for message in messages]
    return found


def trim(log: RetainedLog, limits: StreamLimits, wall_time: float) -> float | None:
    """Do all that the limits ask for."""
    while (trimmed := log.trim(limits, wall_time)).more:
        pass
    return trimmed.due_s


class RetainedMachine(RuleBasedStateMachine):
    """`kept` are the bodies that are retained, in order; `ready` those in the queue."""

    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.ready: list[bytes] = []
        self.out: list[Message] = []
        self.kept: list[bytes] = []
        self.published = 0
        self.copies: list[int] = []
        self.restart()

    def restart(self) -> None:
        self.since = self.published
        self.node = RetainingNode(self.disk, SMALL_FILES)
        self.node.rest()

    def confirmed(self) -> set[int]:
        """Those that all their queues have told their publisher of."""
        told = Counter(self.node.publisher.settled)
        return {number - 1 for number, count in told.items() if count == self.copies[number - 1]}

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=20), both=st.booleans())
    def publish(self, sizes: list[int], both: bool) -> None:
        for size in sizes:
            body = b"%08d" % self.published + bytes(size)
            self.published += 1
            self.node.published = self.published - 1
            self.node.publish(body, *((QUEUE, OTHER) if both else (QUEUE,)))
            self.ready.append(body)
            self.copies.append(1 + both)

    @rule(count=st.integers(1, 20))
    def deliver(self, count: int) -> None:
        messages = self.node.take(count)
        self.out += messages
        for message in messages:
            self.ready.remove(message.body)

    @rule(count=st.integers(1, 30))
    def acknowledge(self, count: int) -> None:
        acked, self.out = self.out[:count], self.out[count:]
        if acked:
            self.kept += [message.body for message in acked]
            self.node.retention.ack(acked)

    @rule()
    def put_back(self) -> None:
        back, self.out = self.out, []
        self.node.queues[QUEUE].requeue(back)
        self.ready += [message.body for message in back]

    @rule()
    def others_consume(self) -> None:
        queue = self.node.queues[OTHER]
        queue.ack(queue.fetch_many(100))

    @rule()
    def rest(self) -> None:
        self.node.rest()
        # The disk has caught up: everything is confirmed, and all that was acknowledged is there.
        assert self.confirmed() == set(range(self.since, self.published))
        assert retained(self.node.log) == self.kept

    @rule()
    def turn(self) -> None:
        self.node.turn()

    @rule()
    def checkpoint(self) -> None:
        self.node.checkpoint()

    @rule(octets=st.integers(0, 300_000))
    def keep_octets(self, octets: int) -> None:
        self.node.rest()
        trim(self.node.log, StreamLimits(octets_max=octets), 0.0)
        assert self.node.log.octets <= octets
        found = retained(self.node.log)
        gone = len(self.kept) - len(found)
        assert found == self.kept[gone:]
        if gone:
            # Not one more than had to go.
            one_more = sum(map(len, self.kept[gone - 1 :])) + 200 * (len(found) + 1)
            assert one_more > octets
        self.kept = found

    @rule(end=st.sampled_from(("stop", "kill", "crash")))
    def end(self, end: str) -> None:
        everything = [*self.kept, *self.ready, *[message.body for message in self.out]]
        confirmed = self.confirmed()
        committed = retained(self.node.log)
        if end == "stop":
            self.node.stop()
        elif end == "kill":
            self.disk.kill()
        else:
            self.disk.crash()
        self.out = []
        self.restart()
        found, ready = retained(self.node.log), left(self.node.queues[QUEUE])
        if end == "stop":
            assert found == self.kept
        # Each is in one place. What was confirmed is in one, and what was retained stays retained,
        # but for what was removed from the front and is there again.
        assert not {*found} & {*ready}
        assert len(found) == len({*found})
        assert {*committed} <= {*found}
        there = {int(body[:8]) for body in (*found, *ready)}
        assert confirmed & {int(body[:8]) for body in everything} <= there
        self.kept, self.ready = found, ready

    @invariant()
    def its_figures_are_right(self) -> None:
        log = self.node.log
        waiting = len(self.node.retention._waiting)
        assert log.length == len(self.kept) - waiting
        self.node.queues[QUEUE].check()


RetainedMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestRetained = RetainedMachine.TestCase


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def node(disk: SimulatedDisk) -> RetainingNode:
    node = RetainingNode(disk)
    node.rest()
    return node


def acknowledge(node: RetainingNode, count: int) -> None:
    node.retention.ack(node.take(count))


def test_a_large_message_is_not_written_again(node: RetainingNode) -> None:
    node.publish(LARGE)
    node.rest()
    before = node.written()
    acknowledge(node, 1)
    node.rest()
    assert node.written() - before < 1000
    assert retained(node.log) == [LARGE]


def test_what_is_acknowledged_before_it_is_written_is_written_once(node: RetainingNode) -> None:
    for body in (b"small" * 100, LARGE):
        node.publish(body)
    before = node.written()
    acknowledge(node, 2)
    assert node.publisher.settled == []
    node.rest()
    assert node.publisher.settled == [1, 2]
    assert node.written() - before < len(LARGE) + 1500
    assert retained(node.log) == [b"small" * 100, LARGE]


def test_publisher_is_not_told_before_what_was_acknowledged_is_safe(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    """Otherwise a crash could take a message that was confirmed."""
    node.publish(b"m")
    acknowledge(node, 1)
    node.turn()
    assert node.publisher.settled == []
    disk.crash()
    assert retained(RetainingNode(disk).log) == []


def test_no_batch_removes_what_it_does_not_retain(node: RetainingNode, disk: SimulatedDisk) -> None:
    """However much the disk is behind: of other queues a batch has only so much."""
    count = 3 * BATCH_BYTES_MAX // 1024
    for number in range(count):
        node.publish(b"%d" % number)
    node.rest()
    for _ in range(count):
        node.publish(b"of another queue", OTHER)
    acknowledge(node, SLICE)
    node.turn()
    # One batch is written, and the rest of what was noted is not.
    node.jobs.step_lane("journal")
    disk.crash()
    again = RetainingNode(disk)
    found = retained(again.log)
    assert len(found) in (0, SLICE)
    assert len(found) + again.queues[QUEUE].length == count


def test_shared_record_survives_when_its_file_is_written_anew(disk: SimulatedDisk) -> None:
    node = RetainingNode(disk, SMALL_FILES)
    for number in range(30):
        node.publish(b"%02d" % number + LARGE)
        node.rest()
    messages = node.take(30)
    node.queues[QUEUE].ack([one for n, one in enumerate(messages) if n % 3])
    node.retention.ack([one for n, one in enumerate(messages) if not n % 3])
    for _ in range(5):
        node.checkpoint()
    assert sum(combiner.combined for combiner in node.storage.combiners) > 0
    assert retained(node.log) == [b"%02d" % number + LARGE for number in range(0, 30, 3)]
    disk.crash()
    again = RetainingNode(disk, SMALL_FILES)
    assert retained(again.log) == [b"%02d" % number + LARGE for number in range(0, 30, 3)]


def test_shared_records_survive_that_are_retained_across_the_end_of_a_segment(
    disk: SimulatedDisk,
) -> None:
    node = RetainingNode(disk, SMALL_FILES)
    for number in range(30):
        node.publish(b"%02d" % number + LARGE)
        node.rest()
    node.log.skip_to((node.log.next_position | SEGMENT_MASK) - 4)
    messages = node.take(30)
    node.queues[QUEUE].ack([one for n, one in enumerate(messages) if n % 3])
    node.retention.ack([one for n, one in enumerate(messages) if not n % 3])
    for _ in range(5):
        node.checkpoint()
    assert sum(combiner.combined for combiner in node.storage.combiners) > 0
    assert retained(node.log) == [b"%02d" % number + LARGE for number in range(0, 30, 3)]


@pytest.mark.parametrize("steps", range(1, 40, 3))
def test_message_that_is_retained_while_its_file_is_written_anew_is_copied(
    disk: SimulatedDisk, steps: int
) -> None:
    node = RetainingNode(disk, SMALL_FILES)
    for number in range(30):
        node.publish(b"%02d" % number + LARGE)
        node.rest()
    messages = node.take(30)
    node.queues[QUEUE].ack([one for n, one in enumerate(messages) if n % 3])
    node.rest()
    node.storage.checkpointer.request()
    for _ in range(steps):
        node.jobs.step(Random(steps))
        node.clock.settle()
    node.retention.ack([one for n, one in enumerate(messages) if not n % 3])
    for _ in range(3):
        node.checkpoint()
    assert retained(node.log) == [b"%02d" % number + LARGE for number in range(0, 30, 3)]


def test_paged_out_messages_are_retained_in_slices(node: RetainingNode) -> None:
    count = 3 * SLICE
    for number in range(count):
        node.publish(b"%d" % number)
    node.rest()
    messages = node.take(count)
    for message in messages:
        message.page_out()
    node.retention.ack(messages)
    assert node.log.length == 0
    node.rest()
    assert retained(node.log) == [b"%d" % number for number in range(count)]
    assert node.queues[QUEUE]._pending_count == 0


def test_queue_delivers_nothing_while_too_much_waits_to_be_retained(node: RetainingNode) -> None:
    full: list[bool] = []
    queue, clock = node.queues[QUEUE], node.clock
    retention = Retention(Holder(queue), node.log, clock, Turns(clock), full.append)
    retention.keep_within(KEEP_ALL)
    for _ in range(WAITING_MAX):
        node.publish(b"m")
    node.rest()
    retention.ack(node.take(WAITING_MAX))
    assert full == [True]
    node.rest()
    assert full == [True, False]
    assert node.log.committed - node.log.first == WAITING_MAX


def test_transient_messages_are_acknowledged_and_not_retained(node: RetainingNode) -> None:
    node.queues[QUEUE].publish(TRANSIENT, b"t", None, None, 0)
    node.publish(b"p")
    acknowledge(node, 2)
    node.rest()
    assert retained(node.log) == [b"p"]


def test_age_is_that_of_the_acknowledgement(node: RetainingNode, disk: SimulatedDisk) -> None:
    for body in (b"a", LARGE, b"c"):
        node.publish(body)
    node.rest(1000.0)
    acknowledge(node, 1)
    node.rest(100.0)
    acknowledge(node, 2)
    node.rest(50.0)
    limits = StreamLimits(age_max_s=100)
    now = node.clock.wall_time()
    assert trim(node.log, limits, now) == pytest.approx(50.0, abs=1.0)
    assert retained(node.log) == [LARGE, b"c"]
    assert trim(node.log, limits, now + 51) is None
    assert retained(node.log) == []
    assert node.log.octets == node.log.length == node.log.ready_bytes == 0
    node.publish(b"later")
    acknowledge(node, 1)
    node.rest()
    assert retained(node.log) == [b"later"]


def test_messages_from_before_the_clock_was_set_back_go_when_they_are_too_old(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    limits = StreamLimits(age_max_s=100)
    for body in (b"a", LARGE, b"c"):
        node.publish(body)
    acknowledge(node, 3)
    node.rest()
    back = node.clock.wall_time() - 500_000_000
    assert trim(node.log, limits, back) == pytest.approx(100.0)
    node.publish(b"later")
    acknowledge(node, 1)
    node.rest()
    assert trim(node.log, limits, back + 99) == pytest.approx(1.0)
    assert trim(node.log, limits, back + 101) == pytest.approx(100.0)
    assert retained(node.log) == [b"later"]


def test_positions_do_not_come_again_when_all_was_removed(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    node.publish(b"m")
    acknowledge(node, 1)
    node.rest()
    position = node.log.first
    trim(node.log, StreamLimits(octets_max=0), 0.0)
    node.rest()
    node.stop()
    again = RetainingNode(disk)
    assert again.log.length == 0
    assert again.log.next_position > position


def test_what_is_retained_of_a_queue_that_retains_nothing_any_more_goes_at_the_start(
    node: RetainingNode, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node.publish(b"m")
    acknowledge(node, 1)
    node.rest()
    node.stop()
    again = Node(disk, defined=(QUEUE, OTHER))
    again.rest()
    assert not again.storage.unclaimed
    assert "messages_unreachable" not in caplog.text
    again.stop()
    assert RetainingNode(disk).log.length == 0


def test_queue_that_retains_again_begins_with_nothing(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    node.publish(b"m")
    acknowledge(node, 1)
    node.rest()
    node.stop()
    again = Node(disk)
    store = again.storage.open(QUEUE + RETAINED_LEVEL, durable=True, retained=True)
    assert RetainedLog(cast(RetainedStore, store)).length == 0


def test_what_a_lost_definition_leaves_is_not_taken_for_messages_of_the_queue(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    node.publish(b"m")
    node.publish(b"left")
    acknowledge(node, 1)
    node.rest()
    node.stop()

    class Without(Node):
        def open(self, queue_id: int, mode: str = DEFAULT_MODE) -> VariableQueue:
            return super().open(queue_id + (1 << 20), mode)

    without = Without(disk)
    (row,) = without.storage.unclaimed.rows()
    assert (row.queue_id, row.messages, row.retained) == (QUEUE, 1, 1)
    without.stop()
    assert retained(RetainingNode(disk).log) == [b"m"]


def test_log_that_is_cleared_goes_on(node: RetainingNode) -> None:
    for number in range(10):
        node.publish(b"%d" % number)
    acknowledge(node, 4)
    node.rest()
    acknowledge(node, 3)
    node.retention.cease()
    assert node.log.length == 0
    node.retention.keep_within(KEEP_ALL)
    acknowledge(node, 3)
    node.rest()
    assert retained(node.log) == [b"7", b"8", b"9"]
    assert sorted(node.publisher.settled) == list(range(1, 11))


def test_log_in_memory_is_trimmed_by_age() -> None:
    clock = ManualClock()
    log = RetainedLog(MemoryRetainedStore(clock.call_soon))
    for body in (b"a", b"b"):
        log.keep([Message(ENVELOPE, body, 0)], [NOT_HANDED], clock.wall_time())
        clock.settle()
        clock.advance(10.0)
    assert retained(log) == [b"a", b"b"]
    assert trim(log, StreamLimits(age_max_s=15), clock.wall_time()) == pytest.approx(5.0)
    assert retained(log) == [b"b"]


def found_at(node: RetainingNode, since: float) -> int:
    found: list[Callable[[], int]] = []
    run(node.retention.offset_at(since), found.append)
    node.rest()
    return found[0]()


def test_times_are_found_and_limits_kept_across_a_gap_of_positions(node: RetainingNode) -> None:
    log, times = node.log, []
    for number in range(6):
        if number == 3:
            log.begin_generation(2)
        node.publish(b"%d" % number)
        acknowledge(node, 1)
        node.rest()
        times.append(node.clock.wall_time())
        node.clock.advance(100)
    positions = log.list_positions(0, log.next_position, 10).positions
    assert positions[3] - positions[2] > 1 << GENERATION_SHIFT
    assert [found_at(node, since + 50) for since in times[:5]] == positions[1:]
    assert found_at(node, times[5] + 50) == log.next_position
    trim(log, StreamLimits(age_max_s=350), node.clock.wall_time())
    assert retained(log) == [b"3", b"4", b"5"]
    trim(log, StreamLimits(octets_max=150), node.clock.wall_time())
    assert retained(log) == [b"5"]


def test_messages_that_are_filled_in_stand_in_their_places(
    node: RetainingNode, disk: SimulatedDisk
) -> None:
    log = node.log
    for number in (0, 4):
        node.publish(b"%d" % number)
        acknowledge(node, 1)
        node.rest()
        first = log.first
        log.skip_to(first + 4)
    filled: list[int] = []
    for number in (3, 1):
        message = Message(ENVELOPE, b"%d" % number, first + number)
        log.fill([message], [NOT_HANDED], [node.clock.wall_time()], lambda: filled.append(1))
    assert log.has(first + 3) and not log.has(first + 2)
    node.rest()
    node.checkpoint()
    assert len(filled) == 2
    message = Message(ENVELOPE, b"2", first + 2)
    log.fill([message], [NOT_HANDED], [node.clock.wall_time()], lambda: filled.append(1))
    node.rest()
    assert retained(log) == [b"0", b"1", b"2", b"3", b"4"]
    log.drop(first + 2, first + 4)
    assert (log.length, retained(log)) == (3, [b"0", b"1", b"4"])
    node.rest()
    disk.crash()
    again = RetainingNode(disk)
    assert retained(again.log) == [b"0", b"1", b"4"]
    again.rest()


def test_messages_that_are_filled_in_count_once_towards_the_limit(node: RetainingNode) -> None:
    log, limits = node.log, StreamLimits(octets_max=100_000)
    first = log.next_position
    for number in range(8):
        message = Message(ENVELOPE, bytes(10_000), first + number)
        log.fill([message], [NOT_HANDED], [node.clock.wall_time()], lambda: None)
        node.rest()
        trim(log, limits, node.clock.wall_time())
    assert log.length == len(retained(log)) == 8


def test_what_is_filled_in_and_not_written_yet_is_as_old_as_it_says(node: RetainingNode) -> None:
    """A mirror that is sent what it lacks would drop it, and never take it again."""
    log, limits = node.log, StreamLimits(age_max_s=100)
    first = log.next_position
    # The last one is in another segment than those before.
    for numbers in ((0, 2), (1, 3, SEGMENT_MASK + 2)):
        messages = [Message(ENVELOPE, b"%d" % number, first + number) for number in numbers]
        times = [node.clock.wall_time() - 10 * number % 40 for number in numbers]
        log.fill(messages, [NOT_HANDED] * len(numbers), times, lambda: None)
        assert trim(log, limits, node.clock.wall_time()) == pytest.approx(100.0, abs=41.0)
        if 0 in numbers:
            node.rest()
    node.rest()
    assert trim(log, limits, node.clock.wall_time()) is not None
    assert (log.length, log.trimmed_below) == (5, 0)
