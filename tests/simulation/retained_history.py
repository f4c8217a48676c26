"""Histories of the message storage with a queue that retains what is acknowledged.

Beside its other queues a node has one whose acknowledged messages are retained, trimmed, and
replayed to the others. Moves and all faults are those of `storage_history.py`. What must be true
after each failure:

- A message that was confirmed is in the queue or retained, unless it was trimmed; none is in both.
- What was on disk as retained is not in the queue again; what was on disk as trimmed is nowhere.
- Retained messages stand in the order of their acknowledgements, and are what was published.
- Some positions are left free, and messages filled in later, as on a mirror that was away: these
  stand where they were put, and are there after a crash when that was said.

    python -P tests/simulation/retained_history.py --seed 4711 --count 1000
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import cast

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from storage_history import SIZES, Action, History, Node, Sent, main  # noqa: E402

from warren.core.backing.backing_queue import RETAINED_LEVEL  # noqa: E402
from warren.core.backing.queue_store import NOT_HANDED  # noqa: E402
from warren.core.backing.retained_log import RetainedLog, RetainedStore  # noqa: E402
from warren.core.backing.stream_limits import KEEP_ALL, StreamLimits  # noqa: E402
from warren.core.backing.variable_queue import VariableQueue  # noqa: E402
from warren.core.messages.message import Envelope, Message  # noqa: E402
from warren.core.queues.retention import Retention  # noqa: E402
from warren.core.scheduling.turns import Turns  # noqa: E402

KEEPING = 0x600


class Holder:
    """The queue, as its retention knows it."""

    name = "keeping"
    vhost_name = "/"
    key = ("queue", "/", name)

    def __init__(self, backing: VariableQueue) -> None:
        self.backing = backing


class RetainedHistory(History):
    """`sent` are the messages of the queue by number; `kept` the numbers of those that were
    acknowledged, in order; `safe` is how many of these are on disk; `trimmed` those that went.
    `filled` are those that were filled in, with their positions; `free` are positions for more."""

    more = 2
    left_bytes_max = History.left_bytes_max + 2000

    queue: VariableQueue
    retention: Retention

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        super().__init__(seed, seen)
        self.sent: dict[int, Sent] = {}
        self.kept: list[int] = []
        self.out: list[Message] = []
        self.safe: set[int] = set()
        self.trimmed: set[int] = set()
        self.gone: set[int] = set()
        self.filled: dict[int, int] = {}
        self.free: list[int] = []

    def actions(self) -> list[Action]:
        return [
            *super().actions(),
            (self.send, 12),
            (self.take, 8),
            (self.acknowledge, 10),
            (self.replay, 4),
            (self.trim, 3),
            (self.skip, 2),
            (self.fill, 4),
        ]

    # Starts and ends

    def open_more(self, node: Node) -> None:
        self.queue = VariableQueue(
            node.storage.open(KEEPING, durable=True), node.pager, sizes=SIZES
        )
        store = node.storage.open(KEEPING + RETAINED_LEVEL, durable=True, retained=True)
        log = RetainedLog(cast(RetainedStore, store))
        self.retention = Retention(Holder(self.queue), log, node.clock, Turns(node.clock))
        self.retention.keep_within(KEEP_ALL)
        self.out = []
        self.free = [at for at in self.free if at < log.next_position]

    def stop_more(self, node: Node) -> None:
        self.queue.requeue(self.out)
        self.retention.stop()
        self.queue.stop()

    def stop(self, node: Node) -> None:
        super().stop(node)
        self._all_is_on_disk()

    def quiesce(self, node: Node) -> None:
        super().quiesce(node)
        self._all_is_on_disk()
        retained = self._retained()
        assert [number for number in retained if number not in self.filled] == self.kept
        assert self.filled.keys() <= {*retained}
        log = self.retention.log
        log.count_anew()
        while log.trim(KEEP_ALL, node.clock.wall_time()).more:
            pass
        assert log.length == len(retained)

    def _all_is_on_disk(self) -> None:
        for sent in self.sent.values():
            sent.confirmed |= sent.persistent
        self.safe = {*self.kept, *self.filled} - self.trimmed
        self.gone |= self.trimmed

    def compare(self, node: Node, counts: dict[int, int]) -> None:
        super().compare(node, counts)
        kept, left = self._retained(), self.all_of(self.queue)
        self.queue.check()
        numbers = {int(message.body[:8]) for message in left}
        assert len(numbers) == len(left), "one is in the queue twice"
        assert len(kept) == len({*kept}) == counts.get(KEEPING + RETAINED_LEVEL, 0)
        assert not numbers & {*kept}, f"in both places: {numbers & {*kept}}"
        assert not numbers & (self.safe | self.gone), "acknowledged, and there again"
        assert not self.gone & {*kept}, "trimmed, and there again"
        for number, sent in self.sent.items():
            if sent.confirmed and sent.persistent and number not in self.trimmed:
                assert number in numbers or number in kept, f"confirmed {number} is lost"
        order = [number for number in self.kept if number in {*kept}]
        assert [number for number in kept if number in {*order}] == order
        assert {*self.filled} & self.safe - self.trimmed <= {*kept}, "filled in, and lost"
        self.sent = {n: self.sent[n] for n in (*numbers, *kept)}
        self.safe, self.trimmed = set(kept), self.trimmed - {*kept}
        self.kept = [number for number in kept if number not in self.filled]
        self.filled = {number: at for number, at in self.filled.items() if number in {*kept}}
        for sent in self.sent.values():
            sent.confirmed = True
        self.seen["retained messages found"] += len(kept)

    def _retained(self) -> list[int]:
        log, found = self.retention.log, list[int]()
        position = log.first
        while position < log.committed:
            messages, position = log.read(position, 7)
            for message in messages:
                found.append(self._checked(message))
                assert self.filled.get(found[-1], message.position) == message.position
        return found

    def _checked(self, message: Message) -> int:
        number = int(message.body[:8])
        sent = self.sent[number]
        assert (message.body, message.envelope.header) == (sent.body, sent.header)
        return number

    def drain(self, node: Node) -> None:
        self.noted.add(KEEPING)
        self.retention.delete()
        self.queue.delete()
        super().drain(node)

    # The queue

    def send(self, node: Node) -> None:
        for _ in range(self.random.choice((1, 1, 5))):
            self.numbers += 1
            body = b"%08d" % self.numbers + bytes(self.random.choice((0, 200, 292, 900)))
            header = b"header-%d" % self.random.randrange(3)
            persistent = self.random.random() < 0.8
            confirms = persistent and self.random.random() < 0.6
            sent = Sent(self.numbers, KEEPING, persistent, body, header, confirms)
            self.sent[sent.number] = sent
            if confirms:
                node.publisher.waiting[sent.number * 1000] = sent
            envelope = Envelope("", "key", header, persistent, 0, None)
            node.publisher.inside = True
            publisher = node.publisher if confirms else None
            self.queue.publish(envelope, body, None, publisher, sent.number * 1000)
            node.publisher.inside = False

    def take(self, node: Node) -> None:
        self.out += self.queue.fetch_many(self.random.randrange(1, 6))
        if self.random.random() < 0.2:
            back, self.out = self.out, []
            self.queue.requeue(back)

    def acknowledge(self, node: Node) -> None:
        chosen = self.random.sample(self.out, self.random.randrange(len(self.out) + 1))
        self.out = [message for message in self.out if message not in chosen]
        self.kept += [int(m.body[:8]) for m in chosen if m.envelope.persistent]
        node.publisher.inside = True
        self.retention.ack(chosen)
        node.publisher.inside = False
        self.seen["retained"] += len(chosen)

    def replay(self, node: Node) -> None:
        log = self.retention.log
        if log.first < log.committed:
            messages, _ = log.read(self.random.randrange(log.first, log.committed), 5)
            for message in messages:
                # What was read is not lost any more, unless another node has it, too.
                number = self._checked(message)
                if number not in self.filled:
                    self.safe.add(number)
                self.send_on(node, message, self._replay_done)

    def _replay_done(self) -> None:
        self.seen["retained messages replayed"] += 1

    def trim(self, node: Node) -> None:
        log = self.retention.log
        limits = StreamLimits(octets_max=self.random.choice((0, 1000, 5000)))
        before = self._retained()
        # Until it is known which ones: the power may fail.
        perhaps = {*before, *self.filled} - self.trimmed
        self.trimmed |= perhaps
        for _ in range(self.random.choice((1, 5, 100))):
            if not log.trim(limits, node.clock.wall_time()).more:
                break
        trimmed = {*before} - {*self._retained()}
        assert trimmed == {*before[: len(trimmed)]}
        trimmed |= {number for number, at in self.filled.items() if not log.has(at)}
        self.trimmed -= perhaps - trimmed
        self.safe -= trimmed
        self.kept = [number for number in self.kept if number not in trimmed]
        self.filled = {one: at for one, at in self.filled.items() if one not in trimmed}
        self.seen["retained messages trimmed"] += len(trimmed)

    def skip(self, node: Node) -> None:
        """Leave positions free."""
        log = self.retention.log
        self.retention.catch_up()
        start = log.next_position
        log.skip_to(start + self.random.choice((1, 3, 3, 20_000, 1 << 32)))
        self.free += range(start, min(log.next_position, start + 3))
        self.free += range(max(start + 3, log.next_position - 3), log.next_position)

    def fill(self, node: Node) -> None:
        """Have messages of another node at some of them."""
        chosen = sorted(at for at in self.free if self.random.random() < 0.5)
        self.free = [at for at in self.free if at not in chosen]
        log = self.retention.log
        chosen = [at for at in chosen if at >= log.trimmed_below]
        if not chosen:
            return
        messages = []
        for position in chosen:
            self.numbers += 1
            body = b"%08d" % self.numbers + bytes(self.random.choice((0, 200, 900)))
            self.sent[self.numbers] = Sent(self.numbers, KEEPING, True, body, b"header-1", False)
            self.filled[self.numbers] = position
            envelope = Envelope("", "key", b"header-1", True, 0, None)
            messages.append(Message(envelope, body, position))
        numbers = {*range(self.numbers - len(chosen) + 1, self.numbers + 1)}

        def done() -> None:
            if self.retention.log is log:
                self.safe |= numbers - self.trimmed
                self.seen["messages filled in"] += len(numbers)

        times = [node.clock.wall_time()] * len(chosen)
        log.fill(messages, [NOT_HANDED] * len(chosen), times, done)


if __name__ == "__main__":
    main(RetainedHistory)
