"""What the message storage promises, claim by claim, through its public parts.

The disk is simulated, jobs run when a test says so (as those of threads would), and time passes
when it says so. Crashes at every step are `tests/simulation`'s business.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from disk import SimulatedDisk
from stored_queues import OTHER, QUEUE, STORE, Node, bodies, numbered

from warren.core.backing.variable_queue import LAZY_MODE
from warren.core.messages.message import PAGED_OUT, Envelope, Message
from warren.persist.disk.group_commit import PendingCommit
from warren.persist.index.index_entries import IndexEntries
from warren.persist.layout.format import SEGMENT_ENTRIES
from warren.persist.log import journal
from warren.persist.log.journal import MARK_BYTES_MIN
from warren.persist.log.log_reader import ROOM_BYTES
from warren.persist.log.log_writer import SMALL_IN_A_ROW, file_name
from warren.persist.recovery.recovery import CHECKPOINT_FILE, CLEAN_FILE
from warren.persist.storage.checkpoint import ENTRIES_A_SLICE, SEGMENTS_A_SLICE
from warren.persist.storage.deletion import QUEUES_AT_ONCE
from warren.persist.storage.storage import START_SHIFT

SMALL, LARGE = 100, 10_000


# Confirms


def test_what_is_acknowledged_before_it_is_written_never_is_and_is_confirmed(node: Node) -> None:
    before = node.written()
    node.publish(b"gone")
    message = node.queues[QUEUE].fetch()
    assert message is not None
    node.queues[QUEUE].ack([message])
    assert node.publisher.settled == []
    node.turn()
    assert node.publisher.settled == [1]
    node.rest()
    assert node.written() == before


def test_what_is_written_costs_no_second_record_to_be_forgotten(node: Node) -> None:
    """The counterpart: without the rule above, this is what is written."""
    before = node.written()
    node.publish(b"stays")
    node.rest()
    assert node.written() > before


def test_a_confirm_comes_after_the_sync_only(node: Node) -> None:
    node.publish(b"x")
    node.turn()
    assert node.jobs.waiting("journal") == 1
    node.clock.advance(60)
    assert node.publisher.settled == []
    node.jobs.step_lane("journal")
    assert node.publisher.settled == []
    node.turn()
    assert node.publisher.settled == [1]
    node.disk.crash()
    assert bodies(Node(node.disk).queues[QUEUE]) == [b"x"]


def test_who_asks_is_told_when_all_removals_so_far_are_on_disk(node: Node) -> None:
    node.publish(b"x")
    node.rest()
    message = node.queues[QUEUE].fetch()
    assert message is not None
    node.publish(b"under way")
    node.turn()
    node.queues[QUEUE].ack([message])
    written = node.storage.journal.removals_written()
    node.jobs.step_lane("journal")
    assert not written.happened
    node.turn()
    node.jobs.step_lane("journal")
    assert not written.happened
    node.turn()
    assert written.happened
    node.disk.crash()
    assert bodies(Node(node.disk).queues[QUEUE]) == [b"under way"]


def test_who_asks_for_removals_is_told_at_once_when_there_are_none(node: Node) -> None:
    node.rest()
    written = node.storage.journal.removals_written()
    node.turn()
    assert written.happened


def test_messages_that_come_while_one_sync_lasts_share_the_next(node: Node) -> None:
    node.publish(b"0")
    node.turn()
    for number in range(1, 100):
        node.publish(b"%d" % number)
        node.turn()
    assert node.jobs.waiting("journal") == 1
    node.jobs.step_lane("journal")
    node.turn()
    assert node.jobs.waiting("journal") == 1
    node.jobs.step_lane("journal")
    node.turn()
    assert node.jobs.waiting("journal") == 0
    assert node.publisher.settled == list(range(1, 101))


def test_small_batches_that_come_one_by_one_find_room_and_do_not_make_the_file_longer(
    node: Node,
) -> None:
    def size() -> int:
        (path,) = (path for path in node.disk.files() if path.parent == STORE / "log")
        return node.disk.open(path).size()

    for _ in range(SMALL_IN_A_ROW):
        node.publish(b"x")
        node.rest()
    assert size() > ROOM_BYTES
    before = size()
    for _ in range(20):
        node.publish(b"x")
        node.rest()
    assert size() == before
    node.stop()
    assert size() < ROOM_BYTES
    assert bodies(Node(node.disk).queues[QUEUE]) == [b"x"] * (SMALL_IN_A_ROW + 20)


def test_a_node_that_was_killed_takes_the_room_back(node: Node) -> None:
    for _ in range(2 * SMALL_IN_A_ROW):
        node.publish(b"x")
        node.rest()
    node.disk.crash()
    back = Node(node.disk)
    sizes = [back.disk.open(path).size() for path in back.disk.files() if path.suffix == ".rdq"]
    assert max(sizes) < ROOM_BYTES
    assert bodies(back.queues[QUEUE]) == [b"x"] * (2 * SMALL_IN_A_ROW)


def test_a_disk_without_space_for_room_takes_messages() -> None:
    node = Node(SimulatedDisk(Random(1), capacity=ROOM_BYTES // 2))
    count = 3 * SMALL_IN_A_ROW
    for _ in range(count):
        node.publish(b"x")
        node.rest()
    assert node.publisher.settled == list(range(1, count + 1))


def test_after_a_failed_sync_nothing_is_confirmed_before_it_is_written_elsewhere(
    node: Node,
) -> None:
    node.publish(b"before")
    node.rest()
    node.disk.fail_sync(1)
    node.publish(b"during")
    node.turn()
    node.jobs.step_lane("journal")
    node.turn()
    node.publish(b"after")
    node.turn()
    assert node.publisher.settled == [1]
    assert node.flow == [True]
    node.rest(10)
    assert node.publisher.settled == [1, 2, 3]
    assert node.flow == [True, False]
    names = {path.name for path in node.disk.files() if path.parent == STORE / "log"}
    assert names == {file_name(1, 1)}
    node.disk.crash()
    assert bodies(Node(node.disk).queues[QUEUE]) == [b"before", b"during", b"after"]


def test_a_full_disk_confirms_nothing_until_there_is_room(node: Node) -> None:
    node.disk.full_after(50)
    node.publish(numbered(1, LARGE))
    node.rest(20)
    assert node.publisher.settled == []
    node.disk.heal()
    node.rest(20)
    assert node.publisher.settled == [1]


def test_a_node_stops_though_the_disk_is_full(node: Node) -> None:
    node.publish(b"safe")
    node.rest()
    node.disk.full_after(0)
    node.publish(b"not")
    node.stop()
    assert node.publisher.settled == [1]
    node.disk.heal()
    node.disk.crash()
    assert bodies(Node(node.disk).queues[QUEUE]) == [b"safe"]


NEW = 0x300


def test_a_confirm_waits_for_the_definition_of_its_queue_and_for_no_other(node: Node) -> None:
    commit = node.definitions = PendingCommit()
    node.open(NEW)
    node.definitions = PendingCommit()
    node.publish(b"for the new queue", NEW)
    node.publish(b"for an old one", QUEUE)
    node.publish(b"for both", QUEUE, NEW)
    node.rest()
    node.publish(b"for the new queue again", NEW)
    node.publish(b"for another old one", OTHER)
    node.rest()
    assert node.publisher.settled == [2, 3, 5]
    commit.complete()
    assert sorted(node.publisher.settled) == [1, 2, 3, 3, 4, 5]
    node.publish(b"later", NEW)
    node.rest()
    assert node.publisher.settled[-1] == 6


def test_a_confirm_waits_for_its_message_when_the_definition_is_faster(node: Node) -> None:
    commit = node.definitions = PendingCommit()
    node.open(NEW)
    node.publish(b"x", NEW)
    node.turn()
    commit.complete()
    assert node.publisher.settled == []
    node.rest()
    assert node.publisher.settled == [1]


def test_a_deleted_queue_stays_on_disk_until_its_deletion_is_durable(node: Node) -> None:
    node.publish(b"kept")
    node.rest()
    node.checkpoint()
    commit = node.definitions = PendingCommit()
    node.queues[QUEUE].delete()
    node.rest()
    node.checkpoint()
    node.disk.crash()
    back = Node(node.disk)
    assert bodies(back.queues[QUEUE]) == [b"kept"]
    commit = back.definitions = PendingCommit()
    back.queues[QUEUE].delete()
    back.rest()
    assert back.disk.names(STORE / "queues") != []
    commit.complete()
    back.rest()
    assert back.disk.names(STORE / "queues") == []


def test_many_queues_deleted_at_once_give_their_places_back_in_turns(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a virtual host to go must not hold up all others."""
    queues = [node.open(0x1000 + 0x100 * number) for number in range(3 * QUEUES_AT_ONCE)]
    commit = node.definitions = PendingCommit()
    for queue in queues:
        queue.delete()
    node.rest()
    released = 0
    release = IndexEntries.release

    def counted(entries: IndexEntries) -> Iterator[None]:
        nonlocal released
        released += 1
        return release(entries)

    monkeypatch.setattr(IndexEntries, "release", counted)
    commit.complete()
    assert 0 < released <= QUEUES_AT_ONCE
    node.rest()
    assert released == len(queues)
    node.noted.clear()
    node.checkpoint()
    assert sum(map(len, node.noted)) == len(queues)
    assert max(map(len, node.noted)) <= QUEUES_AT_ONCE


def test_a_queue_that_is_deleted_confirms_what_was_on_its_way(node: Node) -> None:
    node.publish(b"written")
    node.turn()
    node.publish(b"noted")
    node.queues[QUEUE].delete()
    node.rest()
    assert sorted(node.publisher.settled) == [1, 2]


# Batches


def test_a_batch_is_no_larger_than_need_be(node: Node) -> None:
    count = 3 * journal.BATCH_BYTES_MAX // LARGE
    for number in range(count):
        node.publish(numbered(number, LARGE))
    batches = 0
    while node.publisher.settled[-1:] != [count]:
        before = node.storage.journal.written_bytes
        node.turn()
        node.jobs.step_lane("journal")
        batches += 1
        written = node.storage.journal.written_bytes - before
        assert written < 1.05 * journal.BATCH_BYTES_MAX
        assert batches < 50
    assert node.storage.journal.unwritten_bytes == 0


def test_a_batch_of_small_messages_is_short(node: Node) -> None:
    """Encoding a record takes its time whatever its size."""
    count = 3 * journal.BATCH_BYTES_MAX // MARK_BYTES_MIN
    for number in range(count):
        node.publish(numbered(number, SMALL))
    confirmed = []
    while node.publisher.settled[-1:] != [count]:
        node.turn()
        node.jobs.step_lane("journal")
        node.turn()
        confirmed.append(len(node.publisher.settled))
        assert len(confirmed) < 50
    assert max(b - a for a, b in pairwise(confirmed)) <= journal.BATCH_BYTES_MAX // MARK_BYTES_MIN


# Memory


def messages_in_memory() -> int:
    gc.collect()
    return sum(isinstance(held, Message) for held in gc.get_objects())


def test_a_lazy_queue_keeps_no_messages_in_memory(node: Node) -> None:
    before = messages_in_memory()
    node.queues[QUEUE].set_mode(LAZY_MODE)
    for number in range(1000):
        node.publish(numbered(number, SMALL))
        if not number % 10:
            node.rest(0.01)
        assert node.queues[QUEUE].in_memory <= 64
    node.rest()
    node.pager.check(node.clock.now())
    node.rest()
    queue = node.queues[QUEUE]
    assert queue.length == 1000
    assert queue.in_memory == 0
    assert messages_in_memory() == before
    assert bodies(queue) == [numbered(number, SMALL) for number in range(1000)]


def test_the_middle_of_a_long_index_leaves_memory(node: Node) -> None:
    node.queues[QUEUE].set_mode(LAZY_MODE)
    for number in range(4 * SEGMENT_ENTRIES):
        node.publish(b"%d" % number)
        if not number % 1000:
            node.rest(0.01)
    node.checkpoint()
    in_memory = [s.columns is not None for s in node.stores[QUEUE].entries.segments.values()]
    assert in_memory.count(True) <= 2
    assert bodies(node.queues[QUEUE])[-1] == b"%d" % (4 * SEGMENT_ENTRIES - 1)


def test_a_message_nobody_settles_does_not_keep_its_part_of_the_index_in_memory(
    node: Node,
) -> None:
    queue = node.queues[QUEUE]
    queue.set_mode(LAZY_MODE)
    unsettled = []
    for number in range(6 * SEGMENT_ENTRIES):
        node.publish(b"%d" % number)
        if not (number + 1) % SEGMENT_ENTRIES:
            node.rest()
            messages = queue.fetch_many(queue.length)
            unsettled.append(messages.pop(100))
            queue.ack(messages)
    node.checkpoint()
    in_memory = [s.columns is not None for s in node.stores[QUEUE].entries.segments.values()]
    assert len(in_memory) == 6
    assert in_memory.count(True) <= 3
    queue.ack(unsettled)
    node.checkpoint()
    assert node.storage.persistent.live_bytes == 0


def test_messages_keep_their_places_when_they_are_paged_out_and_requeued(node: Node) -> None:
    queue = node.queues[QUEUE]
    for number in range(1000):
        node.publish(numbered(number, SMALL))
    node.rest()
    pending = queue.fetch_many(400)
    node.memory_ratio = 2.0
    node.pager.check(node.clock.now())
    node.rest()
    node.pager.check(node.clock.now())
    node.rest()
    queue.set_mode(LAZY_MODE)
    node.rest()
    assert queue.in_memory == 0
    assert all(message.body is PAGED_OUT for message in pending)
    Random(1).shuffle(pending)
    queue.requeue(pending[:200])
    queue.requeue(pending[200:])
    assert bodies(queue) == [numbered(number, SMALL) for number in range(1000)]


# Flow


@pytest.mark.parametrize("confirming", [True, False])
def test_publishers_wait_when_the_disk_is_slow_and_go_on_when_it_has_caught_up(
    node: Node, confirming: bool
) -> None:
    envelope = Envelope("", "key", b"header", True, 0, None)
    confirms = node.publisher if confirming else None

    def publish() -> None:
        node.queues[QUEUE].publish(envelope, bytes(LARGE), None, confirms, 1)

    publish()
    node.turn()
    node.clock.advance(0.1)
    assert node.jobs.waiting("journal") == 1
    count = 0
    while not node.flow:
        publish()
        node.turn()
        count += 1
        assert count * LARGE < journal.CONGESTED_BYTES + 2 * LARGE
    assert count * LARGE > 0.95 * journal.CONGESTED_BYTES
    assert node.flow == [True]
    owed = [node.storage.journal.unwritten_bytes]
    while node.flow == [True]:
        node.jobs.step_lane("journal")
        node.turn()
        owed.append(node.storage.journal.unwritten_bytes)
    assert node.flow == [True, False]
    assert 0 < owed[-1] <= journal.RELIEVED_BYTES
    node.rest()
    assert node.storage.journal.unwritten_bytes == 0
    assert not node.storage.journal.congested


def test_a_batch_is_closed_at_once_when_there_is_much(node: Node) -> None:
    """Nobody waits for these; they would stay for 25 ms otherwise."""
    envelope = Envelope("", "key", b"header", True, 0, None)
    node.queues[QUEUE].publish(envelope, b"x", None, None, 0)
    node.turn()
    assert node.jobs.waiting("journal") == 0
    for _ in range(journal.BATCH_BYTES_MAX // LARGE + 1):
        node.queues[QUEUE].publish(envelope, bytes(LARGE), None, None, 0)
    node.turn()
    assert node.jobs.waiting("journal") == 1


# What is lost


def test_what_is_lost_with_an_index_and_purged_is_not_missed_later(node: Node) -> None:
    queue = node.queues[QUEUE]
    queue.set_mode(LAZY_MODE)
    for number in range(3 * SEGMENT_ENTRIES):
        node.publish(b"%d" % number, QUEUE)
        if not number % 1000:
            node.rest(0.01)
    node.checkpoint()
    # Shared ones, so that the segment must be read to be removed.
    unloaded = [s for s in node.stores[QUEUE].entries.segments.values() if s.columns is None]
    unloaded[0].has_shared = True
    node.disk.remove(unloaded[0].path(node.stores[QUEUE].entries.directory))
    queue.purge()
    for number in range(100):
        node.publish(b"%d" % number)
    node.rest()
    assert bodies(queue) == [b"%d" % number for number in range(100)]
    queue.check()


@pytest.mark.parametrize(("queues", "messages"), [(200, 1), (1, 6 * SEGMENT_ENTRIES)])
def test_a_checkpoint_is_taken_in_short_turns(node: Node, queues: int, messages: int) -> None:
    """Counted in segments and entries, so that it holds on any machine."""
    for number in range(queues):
        queue = node.open(0x1000 + 0x100 * number, mode=LAZY_MODE)
        for _ in range(messages):
            node.publish(b"x", 0x1000 + 0x100 * number)
        assert queue.length == messages
    node.rest(1)
    dirty = node.storage.indexes.dirty
    node.storage.checkpointer.request()
    turns = 0
    while dirty:
        before = [len(segment.columns.places) for segment in dirty if segment.columns]
        node.turn()
        after = [len(segment.columns.places) for segment in dirty if segment.columns]
        assert len(before) - len(after) <= SEGMENTS_A_SLICE
        assert sum(before) - sum(after) <= ENTRIES_A_SLICE + SEGMENT_ENTRIES
        for lane in ("journal", "background"):
            node.jobs.step_lane(lane)
        turns += 1
        assert turns < 100


def test_a_checkpoint_is_taken_that_was_asked_for_while_files_were_removed(node: Node) -> None:
    queue = node.queues[QUEUE]
    node.publish(b"m")
    node.checkpoint()
    queue.ack(queue.fetch_many(1))
    node.checkpoint()
    node.stop()
    # Goes on in another segment, and so the file of the one before goes.
    again = Node(node.disk)
    again.publish(b"m")
    for _ in range(10):
        again.turn()
        if again.jobs.waiting("background"):
            break
        again.jobs.step_lane("journal")
    assert again.jobs.waiting("background")
    again.checkpoint()


def test_a_checkpoint_is_taken_that_was_asked_for_while_another_one_was(node: Node) -> None:
    node.publish(b"m")
    checkpointer = node.storage.checkpointer
    checkpointer.request()
    node.turn()
    node.jobs.step_lane("journal")
    node.turn()
    assert node.jobs.waiting("background")
    checkpointer.request()
    node.rest()
    assert checkpointer.taken == 2


def test_what_is_said_of_damage_is_one_value_of_a_line(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.publish(b"message")
    node.rest()
    node.stop()
    for name in (CHECKPOINT_FILE, CLEAN_FILE):
        file = node.disk.create(STORE / name)
        file.write(0, b"neither of the two")
        file.close()
    Node(node.disk)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["checkpoint_damaged", "clean_stop_damaged"]
    for line in lines:
        assert re.fullmatch(r'[a-z_]+( [a-z]+=([^\s"=\\]+|"([^"\\]|\\.)*"))+', line), line


# Positions


@pytest.mark.parametrize("in_order", [True, False])
def test_positions_that_were_ahead_of_the_starts_of_the_node_stay_behind_it(
    node: Node, in_order: bool
) -> None:
    """A copy's positions follow those of its leader, whose node may have started more often."""
    far = 7 << START_SHIFT
    node.publish(b"before")
    node.queues[QUEUE].skip_to(far)
    node.publish(b"ahead")
    node.rest()
    if in_order:
        node.stop()
    else:
        node.disk.crash()
    again = Node(node.disk)
    queue = again.queues[QUEUE]
    assert queue.length == 2
    assert queue.next_position > far
    again.publish(b"after")
    assert bodies(queue) == [b"before", b"ahead", b"after"]
    # Another queue of the node is not concerned.
    assert again.queues[OTHER].next_position < far


@pytest.mark.parametrize("in_order", [True, False])
def test_positions_are_not_used_again_when_their_messages_have_left_the_queue(
    node: Node, in_order: bool
) -> None:
    node.queues[QUEUE].skip_to(7 << START_SHIFT)
    node.publish(b"ahead")
    node.rest()
    queue = node.queues[QUEUE]
    used = queue.next_position
    queue.ack(queue.fetch_many(1))
    node.rest()
    for _ in range(3):
        if in_order:
            node.stop()
        else:
            node.disk.crash()
        node = Node(node.disk)
        node.checkpoint()
        assert not node.queues[QUEUE].length and node.queues[QUEUE].next_position >= used
