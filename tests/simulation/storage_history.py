"""One history of the message storage on a simulated disk, from a seed; checked against a model.

A node is the real thing from the variable queues down to the file system interface. The history
publishes, delivers, acknowledges, requeues, moves messages from queue to queue as dead letters are,
purges, pages out, switches modes, deletes and declares, while the threads' jobs run whenever the
seed says so, and the power fails at any step. After each failure the storage is recovered, and what
is found is compared with what must be, what may be, and what must not be there
(invariants_and_test_ideas.md section 6; the letters below).

    python -P tests/simulation/storage_history.py --seed 4711 --count 1000
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from disk import PowerLost, SimulatedDisk  # noqa: E402
from jobs import Jobs  # noqa: E402
from manual_clock import ManualClock  # noqa: E402

from warren.core.backing.paging import Pager  # noqa: E402
from warren.core.backing.ready_messages import BatchSizes  # noqa: E402
from warren.core.backing.variable_queue import VariableQueue  # noqa: E402
from warren.core.definitions.definition_table import CompletedCommit  # noqa: E402
from warren.core.messages.message import PAGED_OUT, Envelope, Message  # noqa: E402
from warren.core.messages.settlement import PENDING, SETTLED, PublishConfirms, Settlement  # noqa: E402
from warren.core.messages.succession import Succession  # noqa: E402
from warren.core.ports import Commit  # noqa: E402
from warren.core.scheduling.turns import Turns  # noqa: E402
from warren.persist.definitions.deleted_queues import DeletedQueues, Puts, noted_queue  # noqa: E402
from warren.persist.index.queue_index import QueueIndex  # noqa: E402
from warren.persist.layout.format import (  # noqa: E402
    FRAME_HEADER_BYTES,
    SEGMENT_ENTRIES,
    SEGMENT_HEADER_BYTES,
    SHARED,
)
from warren.persist.log import journal, log_writer  # noqa: E402
from warren.persist.log.store_context import StorageSizes, StoreContext  # noqa: E402
from warren.persist.recovery.recovery import Recovery  # noqa: E402
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient  # noqa: E402

DIRECTORY = Path("/store")
NODE_ID = b"0123456789abcdef"
LIMITS = StorageSizes(
    file_bytes_max=3000,
    embed_below=300,
    checkpoint_bytes=4000,
    combine_bytes_min=200,
    tidy_bytes=100,
)
SIZES = BatchSizes(
    read_count=5,
    read_bytes=2000,
    lazy_read_count=3,
    lazy_read_bytes=1000,
    lazy_write_count=3,
    lazy_write_bytes=600,
)
QUEUES = (0x100, 0x200, 0x300)
TRANSIENT_QUEUE = 0x900
BATCH_BYTES_MAX = 2000
"""Of the journal; so small that a batch often is not enough."""

NOT_THERE = os.strerror(errno.ENOENT)

MOVES_FROM = 7_000_000
"""Histories of lower seeds move no messages: those that once failed stay what they were."""

INDEX_BYTES_A_MESSAGE = 2 * FRAME_HEADER_BYTES + 26 + 6 + 4 + 4
"""The most that a message takes in a segment file: a frame with its entry and a frame with its
removal, each padded to a multiple of 8 octets."""

STEPS = 60
CHECK_EVERY = 5
LIVES = 4


@dataclass(eq=False)
class Sent:
    """A message that was published to one queue."""

    number: int
    queue: int
    persistent: bool
    body: bytes
    header: bytes
    wants_confirm: bool
    confirmed: bool = False
    delivered: bool = False
    removed: bool = False
    gone: bool = False
    """Its removal was on disk before a crash: it must not come back."""


class Publisher(PublishConfirms):
    """Notes which publishes are safe; each must be settled once."""

    def __init__(self) -> None:
        self.waiting: dict[int, Sent] = {}
        self.inside = False

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a queue of this node never takes it back")

    def settle(self, publish_seq: int) -> None:
        assert not self.inside, "settled from within the call that published"
        sent = self.waiting.pop(publish_seq)
        sent.confirmed = True


class Target:
    """A queue that messages are moved to (`succession.Successor`)."""

    refuses_when_full = False
    deleted = False

    def __init__(self, queue_id: int, queue: VariableQueue) -> None:
        self.name = f"{queue_id:x}"
        self.published = 0
        self._queue = queue

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        queue = self._queue
        queue.publish(envelope, body, None, confirms, publish_seq)
        return PENDING if queue.defers_confirms and envelope.persistent else SETTLED

    publish_again = publish


@dataclass(eq=False)
class Node:
    """A life of the node."""

    storage: Storage
    clock: ManualClock
    jobs: Jobs
    pager: Pager
    queues: dict[int, VariableQueue] = field(default_factory=dict)
    indexes: list[QueueIndex] = field(default_factory=list)
    """Those of deleted queues included."""
    pending: dict[int, list[Message]] = field(default_factory=dict)
    publisher: Publisher = field(default_factory=Publisher)

    def __post_init__(self) -> None:
        self.succession = Succession(self.clock, Turns(self.clock), self.target)

    def target(self, name: str) -> Target | None:
        queue_id = int(name, 16)
        queue = self.queues.get(queue_id)
        return None if queue is None else Target(queue_id, queue)


Action: TypeAlias = tuple[Callable[[Node], None], int]
"""What happens to a node, and how often compared with others."""


class History:
    """One seed, one history. `seen` counts what happened, to show that rare things do."""

    more = 0
    """How many `open_more` opens."""

    left_bytes_max = 2000
    """What an emptied storage keeps beside the segments its queues are at."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = SimulatedDisk(Random(seed + 1))
        self.seen = seen
        self.numbers = 0
        self.defined: dict[int, dict[int, Sent]] = {queue: {} for queue in QUEUES}
        self.noted: set[int] = set()
        """Queues of which it is written down that they were deleted."""
        self.next_queue = 0x1000
        self.sync_failed = False
        """Whether a sync may have failed: until the power fails, what the cache holds is a lie."""
        self.clean = True
        """Whether the node has stopped cleanly and not been up since."""
        self.interrupted = False
        """Whether a start failed since."""

    # Lives

    def run(self) -> None:
        for life in range(LIVES):
            crash_at = self.random.choice((None, None, self.random.randrange(1, 150)))
            try:
                node = self.start(life, crash_at)
                self.live(node)
                if self.random.random() < 0.25:
                    self.quiesce(node)
                if self.random.random() < 0.2:
                    self.stop(node)
                    continue
            except PowerLost:
                self.seen["power lost in a step"] += 1
            self.die()
        self.disk.heal()
        node = self.start(LIVES, None)
        self.drain(node)

    def die(self) -> None:
        """The power fails, or only the process ends."""
        self.disk.heal()
        if self.random.random() < 0.3 and not self.sync_failed:
            self.seen["killed"] += 1
            self.disk.kill()
        else:
            self.seen["power lost"] += 1
            self.disk.crash()
        self.sync_failed = False
        self.interrupted = True
        if not self.clean:
            for messages in self.defined.values():
                for sent in messages.values():
                    sent.delivered = True

    def start(self, life: int, crash_at: int | None) -> Node:
        """Recover, twice to see that it is the same, and compare with the model."""
        if life and self.random.random() < 0.3:
            self.crash_in_recovery()
        once = self.contents(self.recover(self.disk.copy()))
        if crash_at is not None:
            self.disk.crash_after(crash_at)
        recovery = self.recover(self.disk)
        clock = ManualClock(start=1000.0 + life)
        jobs = Jobs()
        context = StoreContext(
            filesystem=self.disk,
            directory=DIRECTORY,
            node_id=NODE_ID,
            clock=clock,
            run_journal=jobs.lane("journal"),
            run_transient=jobs.lane("transient"),
            run_background=jobs.lane("background"),
            call_on_loop=jobs.call_on_loop,
            limits=LIMITS,
        )
        storage = Storage.start(context, recovery, NodeCalls(), self.deleted_queues())
        pager = Pager(clock, lambda: 0.1, worth_paging=4)
        node = Node(storage, clock, jobs, pager)
        for queue_id in self.defined:
            self.open(node, queue_id, durable=True)
        self.open_more(node)
        storage.settle_unclaimed()
        # A note that goes too early would make what is left of its queue look like a loss.
        assert not storage.unclaimed, f"U1: {list(storage.unclaimed.rows())}"
        node.indexes = list(storage._open.values())
        self.open(node, TRANSIENT_QUEUE, durable=False)
        self.defined_now = {**self.defined, TRANSIENT_QUEUE: {}}
        assert not recovery.damaged, recovery.damaged
        self.compare(node, once)
        open_count = len(node.queues) + self.more
        verify_accounts(storage, node.indexes, deleted=len(node.indexes) > open_count)
        self.clean = self.interrupted = False
        return node

    def deleted_queues(self) -> DeletedQueues:
        """The notes as the next start finds them."""

        def submit(puts: Puts) -> Commit:
            for key, value in puts:
                queue_id = noted_queue(key)
                assert queue_id is not None and value is None
                self.seen["notes of deletion taken away"] += queue_id in self.noted
                self.noted.discard(queue_id)
            return CompletedCommit()

        deleted_queues = DeletedQueues(submit)
        deleted_queues.noted = set(self.noted)
        return deleted_queues

    def crash_in_recovery(self) -> None:
        """Recovery itself loses power, and is begun again."""
        self.seen["power lost in recovery"] += 1
        self.disk.crash_after(self.random.randrange(1, 30))
        try:
            self.recover(self.disk)
        except PowerLost:
            pass
        self.disk.heal()
        self.disk.crash()

    def recover(self, disk: SimulatedDisk) -> Recovery:
        empty_transient(disk, DIRECTORY)
        recovery = Recovery(disk, DIRECTORY, NODE_ID, report=lambda progress: None)
        recovery.run()
        return recovery

    def contents(self, recovery: Recovery) -> dict[int, int]:
        return {
            queue_id: sum(segment.live for segment in segments.values())
            for queue_id, segments in recovery.queues.items()
        }

    def open(self, node: Node, queue_id: int, *, durable: bool) -> None:
        store = node.storage.open(queue_id, durable=durable)
        mode = self.random.choice(("default", "default", "lazy"))
        node.queues[queue_id] = VariableQueue(store, node.pager, mode=mode, sizes=SIZES)
        node.indexes.append(store)
        node.pending[queue_id] = []

    def open_more(self, node: Node) -> None:
        """Histories of more than plain queues open theirs here."""

    def stop_more(self, node: Node) -> None:
        """And stop them here, before the storage stops."""

    def stop(self, node: Node) -> None:
        """A clean stop: everything is requeued, written, and known to be so."""
        self.seen["clean stop"] += 1
        self.disk.heal()
        for _ in range(60):
            if not len(node.succession):
                break
            node.clock.advance(1.0)
            node.jobs.run_all()
        for queue_id, queue in node.queues.items():
            queue.requeue(node.pending[queue_id])
            queue.stop()
        self.stop_more(node)
        node.storage.stop()
        node.jobs.run_all()
        node.storage.close()
        for messages in self.defined.values():
            for sent in messages.values():
                sent.confirmed |= not sent.removed and sent.persistent
                sent.gone |= sent.removed
        self.clean = True
        self.disk.kill()

    # What must, may and must not be there

    def compare(self, node: Node, counts: dict[int, int]) -> None:
        for queue_id, messages in self.defined.items():
            queue = node.queues[queue_id]
            found = self.all_of(queue)
            queue.check()
            assert len(found) == counts.get(queue_id, 0), (
                f"S3: {queue_id:x} recovered twice, {len(found)} then {counts}"
            )
            numbers = []
            for message in found:
                number = int(message.body[:8])
                assert number in messages, f"S2: {number} was never published here"
                sent = messages[number]
                assert sent.persistent, f"S14: transient {number} came back"
                assert message.body == sent.body, f"S2: body of {number}"
                assert message.envelope.header == sent.header, f"S2: header of {number}"
                assert not sent.gone, (
                    f"S6: {number} of {queue_id:x} is back, its removal was on disk"
                )
                if self.clean and self.interrupted:
                    # The note of the clean stop may have been taken away already.
                    assert message.redelivered or not sent.delivered, f"S13: {number}"
                elif self.clean:
                    assert message.redelivered == sent.delivered, (
                        f"S13: {number} {message.position:x} {sent.delivered} {queue_id:x}"
                    )
                else:
                    assert message.redelivered, f"S13: {number}"
                numbers.append(number)
            assert numbers == sorted(set(numbers)), f"S7: {numbers}"
            there = set(numbers)
            for number, sent in messages.items():
                if sent.confirmed and sent.persistent and not sent.removed:
                    assert number in there, f"S1: confirmed {number} of {queue_id:x} is lost"
            for number in [number for number in messages if number not in there]:
                del messages[number]
            for sent in messages.values():
                # It is there again, whatever was to become of it.
                sent.removed = False
                sent.confirmed = True
                sent.delivered = True

    def all_of(self, queue: VariableQueue) -> list[Message]:
        """Every message, without changing which are ready."""
        messages = queue.fetch_many(queue.length)
        flags = [message.redelivered for message in messages]
        queue.requeue(messages)
        for message, flag in zip(messages, flags, strict=True):
            message.redelivered = flag
        return messages

    # A life

    def live(self, node: Node) -> None:
        actions = self.actions()
        chosen = self.random.choices(
            [action for action, _ in actions], [weight for _, weight in actions], k=STEPS
        )
        for step, action in enumerate(chosen):
            action(node)
            if step % CHECK_EVERY == 0:
                for queue in node.queues.values():
                    queue.check()

    def actions(self) -> list[Action]:
        """What may happen, and how often."""
        actions: list[Action] = [
            (self.publish, 30),
            (self.fetch, 10),
            (self.ack, 10),
            (self.requeue, 3),
            (self.reduce, 5),
            (self.step, 40),
            (self.turn, 20),
            (self.advance, 6),
            (self.purge, 1),
            (self.switch_mode, 1),
            (self.skip_positions, 1),
            (self.delete_or_declare, 1),
            (self.fail, 1),
            (self.quiesce, 2),
            (self.checkpoint, 2),
        ]
        if self.seed >= MOVES_FROM:
            actions.append((self.move, 6))
        return actions

    def some_queue(self, node: Node) -> tuple[int, VariableQueue]:
        queue_id = self.random.choice(list(node.queues))
        return queue_id, node.queues[queue_id]

    def publish(self, node: Node) -> None:
        for _ in range(self.random.choice((1, 1, 2, 8))):
            self.publish_one(node)

    def publish_one(self, node: Node) -> None:
        """To one queue or several, sometimes straight to a consumer."""
        random = self.random
        self.numbers += 1
        number = self.numbers
        size = random.choice((8, 8, 60, 200, 291, 292, 293, 900, 4000))
        body = b"%08d" % number + bytes(size - 8)
        header = b"header-%d" % random.randrange(3)
        persistent = random.random() < 0.8
        envelope = Envelope("", f"key{number % 3}", header, persistent, 0, None)
        targets = random.sample(list(node.queues), random.choice((1, 1, 1, 2, len(node.queues))))
        wants_confirm = random.random() < 0.6
        for queue_id in targets:
            queue = node.queues[queue_id]
            sent = Sent(number, queue_id, persistent, body, header, wants_confirm)
            if queue_id in self.defined:
                self.defined[queue_id][number] = sent
            pending = wants_confirm and persistent and queue.defers_confirms
            publisher = node.publisher
            seq = number * 1000 + len(publisher.waiting)
            confirms: PublishConfirms | None = publisher if pending else None
            if pending:
                publisher.waiting[seq] = sent
            publisher.inside = True
            if not queue.length and random.random() < 0.5:
                message = queue.publish_delivered(envelope, body, None, confirms, seq)
                sent.delivered = True
                node.pending[queue_id].append(message)
            else:
                queue.publish(envelope, body, None, confirms, seq)
            publisher.inside = False

    def fetch(self, node: Node) -> None:
        queue_id, queue = self.some_queue(node)
        for message in queue.fetch_many(self.random.randrange(1, 6)):
            self.check_message(queue_id, message)
            node.pending[queue_id].append(message)

    def check_message(self, queue_id: int, message: Message) -> None:
        number = int(message.body[:8])
        if queue_id in self.defined:
            sent = self.defined[queue_id][number]
            assert message.body == sent.body and message.envelope.header == sent.header
            assert not sent.removed, f"{number} was removed"
            sent.delivered = True

    def ack(self, node: Node) -> None:
        queue_id, queue = self.some_queue(node)
        pending = node.pending[queue_id]
        count = self.random.randrange(len(pending) + 1)
        chosen = (
            pending[:count] if self.random.random() < 0.5 else self.random.sample(pending, count)
        )
        loaded = queue.load(chosen)
        assert len(loaded) == len(chosen)
        self.remove(queue_id, chosen)
        queue.ack(chosen)
        node.pending[queue_id] = [message for message in pending if message not in set(chosen)]

    def remove(self, queue_id: int, messages: list[Message]) -> None:
        if queue_id in self.defined:
            for message in messages:
                assert message.body is not PAGED_OUT
                self.defined[queue_id][int(message.body[:8])].removed = True

    def requeue(self, node: Node) -> None:
        queue_id, queue = self.some_queue(node)
        pending = node.pending[queue_id]
        chosen = set(self.random.sample(pending, self.random.randrange(len(pending) + 1)))
        for message in chosen:
            message.redelivered = True
        queue.requeue(chosen)
        node.pending[queue_id] = [message for message in pending if message not in chosen]

    def move(self, node: Node) -> None:
        """Messages die, and become others in other queues; from then on it is these that count."""
        source_id, source = self.some_queue(node)
        for message in source.fetch_many(self.random.randrange(1, 6)):
            self.check_message(source_id, message)
            self.move_one(node, source_id, source, message)

    def move_one(self, node: Node, source_id: int, source: VariableQueue, message: Message) -> None:
        self.seen["moves"] += 1
        moved = int(message.body[:8])

        def done() -> None:
            if node.queues.get(source_id) is source:
                self.seen["moves done"] += 1
                if source_id in self.defined:
                    self.defined[source_id][moved].removed = True
                source.ack([message])

        self.send_on(node, message, done)

    def send_on(self, node: Node, message: Message, done: Callable[[], None]) -> None:
        """Publish it as a new message to one queue or two; `done` is called when it is safe."""
        self.numbers += 1
        number = self.numbers
        body = b"%08d" % number + message.body[8:]
        of = message.envelope
        envelope = Envelope("", of.routing_key, of.header, of.persistent, 0, None)
        target_ids = self.random.sample(list(node.queues), self.random.choice((1, 1, 2)))
        successors = []
        for target_id in target_ids:
            sent = Sent(number, target_id, of.persistent, body, of.header, wants_confirm=True)
            if target_id in self.defined:
                self.defined[target_id][number] = sent
                successors.append(sent)

        def all_safe() -> None:
            for sent in successors:
                sent.confirmed |= sent.persistent
            done()

        targets = [Target(target_id, node.queues[target_id]) for target_id in target_ids]
        node.succession.publish(targets, envelope, body, all_safe)

    def reduce(self, node: Node) -> None:
        _, queue = self.some_queue(node)
        queue.set_duration_target(self.random.choice((0.0, 0.0, None)))
        queue.reduce(self.random.choice((1, 5, 100)))

    def purge(self, node: Node) -> None:
        queue_id, queue = self.some_queue(node)
        held = {int(message.body[:8]) for message in queue.load(node.pending[queue_id])}
        if queue_id in self.defined:
            for number, sent in self.defined[queue_id].items():
                sent.removed |= number not in held
        queue.purge()

    def switch_mode(self, node: Node) -> None:
        _, queue = self.some_queue(node)
        queue.set_mode(self.random.choice(("default", "lazy")))

    def skip_positions(self, node: Node) -> None:
        """Come near the end of a segment without publishing thousands of messages."""
        if self.random.random() < 0.7:
            # Long columns take long to look through.
            return
        _, queue = self.some_queue(node)
        position = queue._next_position
        queue._next_position = position - position % SEGMENT_ENTRIES + SEGMENT_ENTRIES - 2
        if queue._next_position < position:
            queue._next_position = position

    def delete_or_declare(self, node: Node) -> None:
        queue_id, queue = self.some_queue(node)
        if queue_id == TRANSIENT_QUEUE:
            return
        self.noted.add(queue_id)
        queue.delete()
        del node.queues[queue_id], node.pending[queue_id], self.defined[queue_id]
        for seq in [seq for seq, s in node.publisher.waiting.items() if s.queue == queue_id]:
            node.publisher.waiting[seq].queue = 0
        new = self.next_queue
        self.next_queue += 0x100
        self.defined[new] = {}
        self.open(node, new, durable=True)

    def fail(self, node: Node) -> None:
        """A disk that fails once, or is full for a while."""
        fault = self.random.choice(("sync", "write", "full", "directory"))
        self.seen[f"disk fault: {fault}"] += 1
        if fault == "sync":
            self.sync_failed = True
            self.disk.fail_sync(self.random.randrange(1, 4))
        elif fault == "write":
            self.disk.fail_write(self.random.randrange(1, 4))
        elif fault == "directory":
            self.disk.fail_sync_directory(self.random.randrange(1, 3))
        else:
            self.disk.full_after(self.random.randrange(0, 3000))

    def step(self, node: Node) -> None:
        for _ in range(self.random.choice((1, 2, 10))):
            node.jobs.step(self.random)

    def turn(self, node: Node) -> None:
        node.clock.settle()

    def advance(self, node: Node) -> None:
        node.clock.advance(self.random.choice((0.01, 0.03, 1.1, 6.0)))

    def checkpoint(self, node: Node) -> None:
        node.storage.checkpointer.request()

    def quiesce(self, node: Node) -> None:
        """Let everything come to an end: what was removed is gone, what was sent is safe."""
        self.disk.heal()
        for _ in range(60):
            node.clock.advance(1.0)
            node.jobs.run_all()
        assert not node.publisher.waiting, "never settled"
        assert not len(node.succession), "a move never came to its end"
        for messages in self.defined.values():
            for sent in messages.values():
                sent.gone |= sent.removed
                sent.confirmed |= sent.persistent
        verify_accounts(node.storage, node.indexes, deleted=False)
        self.seen["checkpoints"] += node.storage.checkpointer.taken
        self.seen["combined"] += sum(c.combined for c in node.storage.combiners)

    def drain(self, node: Node) -> None:
        """In the end all messages are taken, and hardly anything is left on the disk."""
        for queue_id, queue in node.queues.items():
            while messages := queue.fetch_many(7):
                for message in messages:
                    self.check_message(queue_id, message)
                queue.ack(messages)
            queue.ack(node.pending[queue_id])
        for _ in range(20):
            node.clock.advance(1.2)
            node.jobs.run_all()
        assert node.storage.persistent.live_bytes == 0
        files = self.disk.files()
        segments = [
            segment for index in node.indexes for segment in index.entries.segments.values()
        ]
        # The segment a queue is at keeps its file: an entry and a removal for each message, and
        # a frame in which hardly anything stands for each start.
        paths = {segment.path(segment.owner.directory): segment.written for segment in segments}
        # Segments of messages in the transient store do not say how many they had.
        paged = node.queues[TRANSIENT_QUEUE].published
        for path, written in paths.items():
            written = written or paged
            most = SEGMENT_HEADER_BYTES + (written + LIVES) * INDEX_BYTES_A_MESSAGE
            assert files.get(path, 0) <= most, f"S12: {path}, {written} messages: {files}"
        rest = sum(octets for path, octets in files.items() if path not in paths)
        assert rest <= self.left_bytes_max, f"S12: {rest} bytes left: {files}"


def verify_accounts(storage: Storage, indexes: list[QueueIndex], *, deleted: bool) -> None:
    """S4: what each log file counts as alive is what the queues refer to."""
    for store in (storage.persistent, storage.transient):
        counted: Counter[int] = Counter()
        octets: Counter[int] = Counter()
        references: Counter[int] = Counter()
        for index in indexes:
            for segment in index.entries.segments.values():
                columns = index.entries.columns(segment)
                for place, length in zip(columns.places, columns.lengths, strict=True):
                    if not place or (place >> 63) != (store is storage.transient):
                        continue
                    if place & SHARED:
                        references[place] += 1
                        if references[place] > 1:
                            continue
                    counted[place >> 32] += 1
                    octets[place >> 32] += length
        for file_id, file in store.files.items():
            assert file.live_count == counted[file_id], (file, counted[file_id])
            assert file.live_bytes == octets[file_id], (file, octets[file_id])
            for offset, count in file.references.items():
                assert references[file_id << 32 | offset | SHARED] == count
        # Only of a queue that is deleted may messages be gone already.
        assert counted.keys() <= store.files.keys() or deleted
        assert store.live_bytes == sum(octets[file_id] for file_id in store.files)


class Missing(logging.Handler):
    """Files that were looked for and not there: the disk's faults are never of this kind."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if NOT_THERE in line or "journal_file_missing" in line:
            self.lines.append(line)


@contextmanager
def quiet_log() -> Iterator[Missing]:
    """Nothing is shown of what the storage logs; what is missing is kept."""
    log = logging.getLogger("warren.storage")
    missing = Missing()
    log.addHandler(missing)
    propagate, log.propagate = log.propagate, False
    try:
        yield missing
    finally:
        log.propagate = propagate
        log.removeHandler(missing)


def run(seed: int, seen: Counter[str], history: type[History] = History) -> None:
    """Raises AssertionError with the seed."""
    with quiet_log() as missing:
        try:
            history(seed, seen).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert not missing.lines, f"seed {seed}: {missing.lines[0]}"


def main(history: type[History] = History) -> None:
    journal.BATCH_BYTES_MAX = BATCH_BYTES_MAX
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--small-in-a-row",
        type=int,
        default=log_writer.SMALL_IN_A_ROW,
        help="small batches until a file is given room",
    )
    options = parser.parse_args()
    log_writer.SMALL_IN_A_ROW = options.small_in_a_row
    seen: Counter[str] = Counter()
    started = time.monotonic()
    failed = []
    for seed in range(options.seed, options.seed + options.count):
        try:
            run(seed, seen, history)
        except AssertionError as error:
            failed.append(seed)
            print(error, flush=True)
            if len(failed) >= 10:
                break
    elapsed = time.monotonic() - started
    print(f"{options.count} histories in {elapsed:.0f} s, failed: {failed}")
    for name, count in sorted(seen.items()):
        print(f"  {count:9} {name}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
