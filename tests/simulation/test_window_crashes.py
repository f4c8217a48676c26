"""Power fails at any step under a queue that remembers ids: a message and its id are both there, or
neither is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from disk import PowerLost, SimulatedDisk
from jobs import Jobs
from manual_clock import ManualClock
from storage_history import DIRECTORY, LIMITS, NODE_ID, SIZES, quiet_log

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.paging import Pager
from warren.core.backing.variable_queue import VariableQueue
from warren.core.backing.windowed_queue import IDS, WindowedQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.persist.definitions.deleted_queues import no_notes
from warren.persist.log import journal
from warren.persist.log.store_context import StoreContext
from warren.persist.recovery.recovery import Recovery
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient

QUEUE = 0x100
WINDOW = 1000
"""More than a history publishes."""

STEPS = 60
LIVES = 4
SEEDS = range(150)


class Confirms(PublishConfirms):
    """Each publish is settled twice: for the message, and for its id."""

    def __init__(self) -> None:
        self.settled: Counter[int] = Counter()

    def settle(self, publish_seq: int) -> None:
        self.settled[publish_seq] += 1

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a queue of this node never takes it back")


class History:
    """`removed` are messages that were acknowledged at any time: these may be gone."""

    def __init__(self, seed: int, *, beside: bool = True) -> None:
        self.random = Random(seed)
        self.beside = beside
        self.disk = SimulatedDisk(Random(seed + 1))
        self.numbers = 0
        self.removed: set[int] = set()
        self.safe: set[int] = set()

    def run(self) -> None:
        for life in range(LIVES):
            self.start(life)
            try:
                self.disk.crash_after(self.random.randrange(1, 60))
                for _ in range(STEPS):
                    self.step()
            except PowerLost:
                pass
            self.safe |= {seq for seq, times in self.confirms.settled.items() if times == 2}
            self.disk.heal()
            self.disk.crash()
        self.start(LIVES)

    def start(self, life: int) -> None:
        empty_transient(self.disk, DIRECTORY)
        recovery = Recovery(self.disk, DIRECTORY, NODE_ID, report=lambda progress: None)
        recovery.run()
        clock = ManualClock(start=1000.0 + life)
        self.jobs = Jobs()
        self.clock = clock
        context = StoreContext(
            filesystem=self.disk,
            directory=DIRECTORY,
            node_id=NODE_ID,
            clock=clock,
            run_journal=self.jobs.lane("journal"),
            run_transient=self.jobs.lane("transient"),
            run_background=self.jobs.lane("background"),
            call_on_loop=self.jobs.call_on_loop,
            limits=LIMITS,
        )
        storage = Storage.start(context, recovery, NodeCalls(), no_notes())
        pager = Pager(clock, lambda: 0.1, worth_paging=4)

        def level(number: int) -> BackingQueue:
            beside = self.beside and number == IDS
            store = storage.open(QUEUE + number, durable=True, beside=beside)
            return VariableQueue(store, pager, mode="default", sizes=SIZES)

        self.queue = WindowedQueue(WINDOW, level, AmqpContentCodec())
        self.pending: list[Message] = []
        self.confirms = Confirms()
        self.check()

    def check(self) -> None:
        while self.queue.recall():
            pass
        messages = self.queue.fetch_many(self.queue.length)
        there = {int(message.body[:8]) for message in messages}
        self.queue.requeue(messages)
        ids = {number for number in range(1, self.numbers + 1) if b"%d" % number in self.queue}
        assert len(ids) == self.queue.ids
        assert there <= ids, f"messages without ids: {there - ids}"
        assert ids - there <= self.removed, f"ids without messages: {ids - there - self.removed}"
        assert self.safe <= ids, f"confirmed, and forgotten: {self.safe - ids}"

    def step(self) -> None:
        random = self.random
        choice = random.random()
        if choice < 0.4:
            for _ in range(random.choice((1, 1, 3, 8))):
                self.publish()
        elif choice < 0.5:
            self.pending += self.queue.fetch_many(random.randrange(1, 5))
        elif choice < 0.6 and self.pending:
            count = random.randrange(len(self.pending) + 1)
            acked, self.pending = self.pending[:count], self.pending[count:]
            self.removed |= {int(one.body[:8]) for one in self.queue.load(acked)}
            self.queue.ack(acked)
        elif choice < 0.8:
            for _ in range(random.choice((1, 2, 10))):
                self.jobs.step(random)
        elif choice < 0.9:
            self.clock.settle()
        else:
            self.clock.advance(random.choice((0.01, 0.03, 1.1, 6.0)))

    def publish(self) -> None:
        self.numbers += 1
        body = b"%08d" % self.numbers + bytes(self.random.choice((0, 50, 200, 290, 900, 1500)))
        envelope = Envelope("", "q", b"header", True, 0, None)
        if not self.queue.length and self.random.random() < 0.5:
            confirms, number = self.confirms, self.numbers
            self.pending.append(
                self.queue.publish_delivered(envelope, body, None, confirms, number)
            )
        else:
            self.queue.publish(envelope, body, None, self.confirms, self.numbers)
        self.queue.remember(
            b"%d" % self.numbers,
            persistent=True,
            confirms=self.confirms,
            publish_seq=self.numbers,
        )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BATCH_BYTES_MAX", 2000)


def test_a_message_and_its_id_are_there_or_neither_is() -> None:
    with quiet_log():
        for seed in SEEDS:
            try:
                History(seed).run()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error


def test_ids_in_batches_of_their_own_would_be_found_out() -> None:
    with quiet_log(), pytest.raises(AssertionError, match="messages without ids"):
        for seed in SEEDS:
            History(seed, beside=False).run()
