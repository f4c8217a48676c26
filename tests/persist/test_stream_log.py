"""A stream against a plain list: offsets, limits, times, and what a restart or a crash leaves."""

from __future__ import annotations

from random import Random

import pytest
from disk import SimulatedDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from manual_clock import ManualClock
from stored_queues import QUEUE, Node, Publisher

from warren.core.backing.stream_limits import StreamLimits
from warren.core.backing.stream_log import CHUNKS_MAX, StreamLog
from warren.core.backing.stream_store import MemoryStreamStore
from warren.core.messages.message import Envelope
from warren.persist.index.index_entries import LOADED_MAX
from warren.persist.index.queue_index import QueueIndex
from warren.persist.layout.format import SEGMENT_ENTRIES

STREAM = 0x500
ENVELOPE = Envelope("", "key", b"header", False, 0, None)
SIZES = st.sampled_from((0, 10, 500, 5000, 70_000))


def open_stream(node: Node) -> StreamLog:
    return StreamLog(node.storage.open(STREAM, durable=True))


def publish(log: StreamLog, bodies: list[bytes], publisher: Publisher, first_seq: int = 0) -> None:
    log.publish_many([ENVELOPE] * len(bodies), bodies, None, publisher, first_seq)


def read_all(log: StreamLog, start: int = 0, at_once: int = 7) -> list[tuple[int, bytes]]:
    """Every committed message from an offset on."""
    found = []
    position = start
    while position < log.committed:
        messages, position = log.read(position, at_once)
        found += [(message.position, message.body) for message in messages]
    return found


def trim(log: StreamLog, limits: StreamLimits, wall_time: float) -> float | None:
    """Do all that the limits ask for."""
    while (trimmed := log.trim(limits, wall_time)).more:
        pass
    return trimmed.due_s


class StreamMachine(RuleBasedStateMachine):
    """`bodies` is what was published, by offset; below `first` nothing is left."""

    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.bodies: list[bytes] = []
        self.first = 0
        self.publisher = Publisher()
        self.restart()

    def restart(self) -> None:
        self.node = Node(self.disk)
        self.log = open_stream(self.node)
        self.node.rest()

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=30))
    def publish(self, sizes: list[int]) -> None:
        start = len(self.bodies)
        bodies = [b"%08d" % (start + n) + bytes(size) for n, size in enumerate(sizes)]
        publish(self.log, bodies, self.publisher, start)
        self.bodies += bodies

    @rule()
    def rest(self) -> None:
        self.node.rest()
        assert self.log.committed == len(self.bodies)
        assert set(self.publisher.settled) >= set(range(self.first, len(self.bodies)))

    @rule()
    def checkpoint(self) -> None:
        self.node.checkpoint()

    @rule(start=st.integers(0, 100), at_once=st.integers(1, 50))
    def read(self, start: int, at_once: int) -> None:
        first = max(start, self.first)
        wanted = list(enumerate(self.bodies))[first : self.log.committed]
        assert read_all(self.log, start, at_once) == wanted

    @rule(segment=st.integers(1, 20_000), octets=st.integers(0, 100_000))
    def keep_octets(self, segment: int, octets: int) -> None:
        """What goes are whole pieces, and no more than are too many."""
        self.node.rest()
        before = self.log.first
        trim(self.log, StreamLimits(octets_max=octets, segment_bytes=segment), 0.0)
        assert before <= self.log.first <= max(before, len(self.bodies) - 1)
        if self.log.first > before:
            # Without the last piece that went it would have been too much still.
            body_bytes = sum(map(len, self.bodies[before:]))
            assert body_bytes + 200 * (len(self.bodies) - before) > octets
        self.first = self.log.first

    @rule(end=st.sampled_from(("stop", "kill", "crash")))
    def end(self, end: str) -> None:
        committed = self.log.committed
        if end == "stop":
            self.log.stop()
            self.node.stop()
            committed = len(self.bodies)
        elif end == "kill":
            self.disk.kill()
        else:
            self.disk.crash()
        self.restart()
        assert committed <= self.log.committed <= len(self.bodies)
        del self.bodies[self.log.committed :]
        if self.bodies:
            # What was removed, and not yet on the disk, is there again.
            assert self.log.first <= self.first
            self.first = self.log.first

    @invariant()
    def its_figures_are_right(self) -> None:
        kept = self.bodies[self.first :]
        assert self.log.length == len(kept)
        assert self.log.ready_bytes == sum(map(len, kept))
        assert self.log.next_position == len(self.bodies)
        assert len(self.log._chunks) <= CHUNKS_MAX


StreamMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestStream = StreamMachine.TestCase


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def node(disk: SimulatedDisk) -> Node:
    node = Node(disk)
    node.rest()
    return node


def fill_segments(node: Node, log: StreamLog, segments: int) -> int:
    """Publish more than so many segments; returns how many messages."""
    count = segments * SEGMENT_ENTRIES + 10
    for start in range(0, count, 4096):
        size = min(4096, count - start)
        publish(log, [b"%d" % (start + n) for n in range(size)], Publisher())
        node.rest()
    return count


def test_nobody_reads_what_is_not_on_disk(node: Node) -> None:
    log = open_stream(node)
    publish(log, [b"one", b"two"], node.publisher)
    assert log.committed == 0
    assert read_all(log) == []
    node.rest()
    assert log.committed == 2
    assert node.publisher.settled == [0, 1]


def test_offset_that_a_crash_took_with_its_message_is_given_again(
    node: Node, disk: SimulatedDisk
) -> None:
    log = open_stream(node)
    publish(log, [b"safe"], node.publisher)
    node.rest()
    publish(log, [b"lost"], node.publisher)
    disk.crash()
    again = Node(disk)
    log = open_stream(again)
    publish(log, [b"new"], again.publisher)
    again.rest()
    assert read_all(log) == [(0, b"safe"), (1, b"new")]


def test_bodies_and_most_of_the_index_leave_memory(node: Node) -> None:
    log = open_stream(node)
    count = fill_segments(node, log, 5)
    node.checkpoint()
    index = log._store
    assert isinstance(index, QueueIndex)
    in_memory = [
        number for number, one in index.entries.segments.items() if one.columns is not None
    ]
    # The last one, and what is near the beginning, where the first reader is expected.
    assert in_memory == [0, 1, 5]
    assert not index._unwritten
    assert len(read_all(log, at_once=64)) == count
    assert len(index.entries._loaded) <= LOADED_MAX


def test_readers_all_over_a_stream_keep_few_segments(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.persist.index.index_entries.LOADED_MAX", 2)
    log = open_stream(node)
    count = fill_segments(node, log, 5)
    node.checkpoint()
    for start in range(0, count, SEGMENT_ENTRIES // 2):
        assert log.read(start, 1)[0][0].body == b"%d" % start
    index = log._store
    assert isinstance(index, QueueIndex)
    in_memory = [
        number for number, one in index.entries.segments.items() if one.columns is not None
    ]
    assert len(in_memory) <= 3, in_memory


def test_whole_segments_are_walked_by_their_totals(node: Node) -> None:
    log = open_stream(node)
    count = fill_segments(node, log, 2)
    node.checkpoint()
    index = log._store
    assert isinstance(index, QueueIndex)
    whole = index.walk(0, count, 1 << 60)
    assert (whole.position, whole.messages) == (SEGMENT_ENTRIES, SEGMENT_ENTRIES)
    by_half = [index.walk(0, 5000, 1 << 60), index.walk(5000, count, 1 << 60)]
    assert sum(one.octets for one in by_half) == whole.octets
    assert sum(one.body_bytes for one in by_half) == whole.body_bytes
    some = index.walk(0, count, 1000)
    assert some.octets >= 1000 > index.walk(0, some.position - 1, 1 << 60).octets


def test_pieces_go_when_their_last_message_is_too_old(node: Node) -> None:
    log = open_stream(node)
    began = node.clock.wall_time()
    for _ in range(3):
        publish(log, [bytes(1000)] * 10, node.publisher)
        node.rest()
        node.clock.advance(100)
    limits = StreamLimits(age_max_s=150, segment_bytes=5000)
    first_at, last_at = log.arrived_at(9), log.arrived_at(20)
    assert first_at is not None and last_at is not None
    due_s = trim(log, limits, first_at + 149)
    assert log.first == 0
    assert due_s == pytest.approx(1, abs=0.01)
    due_s = trim(log, limits, first_at + 151)
    # A piece is of five messages and goes as a whole; the one at 10 has what came later.
    assert log.first == 10
    assert due_s is not None
    assert trim(log, limits, last_at + 1000) is None
    # The last piece stays, whatever its age: it has nothing behind it.
    assert log.first == 25
    assert began <= first_at


def test_pieces_from_before_the_clock_was_set_back_go_when_they_are_too_old(node: Node) -> None:
    log = open_stream(node)
    limits = StreamLimits(age_max_s=150, segment_bytes=5000)
    publish(log, [bytes(1000)] * 20, node.publisher)
    node.rest()
    arrived_at = log.arrived_at(19)
    assert arrived_at is not None
    back = arrived_at - 500_000_000
    assert trim(log, limits, back) == pytest.approx(150)
    assert trim(log, limits, back + 149) == pytest.approx(1)
    # It is set back once more.
    back -= 1000
    assert trim(log, limits, back) == pytest.approx(150)
    publish(log, [bytes(1000)] * 10, node.publisher)
    node.rest()
    assert log.first == 0
    trim(log, limits, back + 151)
    # What arrived since counts by itself.
    assert log.first == 20
    assert trim(log, limits, back + 151) == pytest.approx(150)


def test_newest_piece_stays_however_large_it_is(node: Node) -> None:
    log = open_stream(node)
    publish(log, [bytes(1000)] * 100, node.publisher)
    node.rest()
    trim(log, StreamLimits(octets_max=1000), 0.0)
    assert log.first == 0
    trim(log, StreamLimits(octets_max=1000, segment_bytes=1), 0.0)
    assert log.first == 99


def test_removed_pieces_give_their_place_back(node: Node) -> None:
    log = open_stream(node)
    publish(log, [b"%d" % n + bytes(10_000) for n in range(300)], node.publisher)
    node.rest()
    node.checkpoint()
    before = node.written()
    trim(log, StreamLimits(octets_max=0, segment_bytes=1), 0.0)
    node.rest()
    node.checkpoint()
    node.rest(10)
    assert node.written() < before / 2


def test_large_message_for_several_queues_is_on_disk_once(node: Node) -> None:
    log = open_stream(node)
    body = bytes(100_000)
    envelope = Envelope("", "key", b"header", True, 0, None)
    node.queues[QUEUE].publish(envelope, body, None, node.publisher, 1)
    log.publish(envelope, body, None, node.publisher, 2)
    node.rest()
    assert node.written() < 1.5 * len(body)
    assert read_all(log) == [(0, body)]
    trim(log, StreamLimits(octets_max=0, segment_bytes=1), 0.0)
    assert node.queues[QUEUE].fetch_many(1)[0].body == body


def test_what_comes_from_another_node_arrived_there(node: Node) -> None:
    """Small bodies and large ones, which stand in the log in another way; also after a restart."""
    log = open_stream(node)
    publisher = Publisher()
    bodies = [b"small", bytes(70_000), b"small again"]
    for first, arrived_at in ((0, 1_000.5), (3, 2_000.25)):
        # What is published once is on disk once, and has arrived once.
        others = [bytes(bytearray(body)) for body in bodies]
        log.append([ENVELOPE] * 3, others, publisher, first, arrived_at=arrived_at)
    publish(log, bodies, publisher, 6)
    node.rest()
    now = node.clock.wall_time()
    for again in (False, True):
        if again:
            node.stop()
            node = Node(node.disk)
            log = open_stream(node)
            node.rest()
        assert [log.arrived_at(at) for at in range(6)] == [1_000.5] * 3 + [2_000.25] * 3
        for at in range(6, 9):
            arrived_at = log.arrived_at(at)
            assert arrived_at is not None and abs(arrived_at - now) < 60
        assert [body for _, body in read_all(log)] == bodies * 3


def test_without_a_disk_it_is_the_same() -> None:
    clock = ManualClock()
    log = StreamLog(MemoryStreamStore(clock.call_soon, clock.wall_time))
    publisher = Publisher()
    publish(log, [b"%d" % n for n in range(10)], publisher)
    assert log.committed == 0
    clock.settle()
    assert publisher.settled == list(range(10))
    assert read_all(log, at_once=3) == [(n, b"%d" % n) for n in range(10)]
    trim(log, StreamLimits(octets_max=0, segment_bytes=1), 0.0)
    assert read_all(log) == [(9, b"9")]
    assert (log.first, log.length) == (9, 1)
