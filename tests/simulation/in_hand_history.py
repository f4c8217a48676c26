"""Histories of the message storage with delays, counted returns and replays beside the rest.

A node has, beside its queues, the delayed messages of an exchange and a stream. The history delays
messages, sends them on when they are due or before that, and cancels some; returns messages to
queues that count it; and appends to the stream, trims it, and replays parts of it to queues. Moves
and all faults are those of `storage_history.py`. What must be true after each failure:

- A delayed message that was confirmed is delayed, with the time it had, or safe where it went, or
  cancelled. Messages leave in the order of their times, not before, and all that are due do.
- A count of returns is one that the message had since its last safe one.
- A stream has no gap; what a reader saw, or a publisher was told of, stands where it stood, unless
  it was trimmed; and nothing is trimmed that was not to be.
- Of a replayed message there is the copy at most once in each queue that it went to, the one that
  the model knows; the stream keeps its own.

    python -P tests/simulation/in_hand_history.py --seed 4711 --count 1000
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from storage_history import LIMITS, Action, History, Node, Sent, main  # noqa: E402

from warren.core.backing.due_queue import DueQueue  # noqa: E402
from warren.core.backing.stream_limits import StreamLimits  # noqa: E402
from warren.core.backing.stream_log import StreamLog  # noqa: E402
from warren.core.messages.message import Envelope, Message  # noqa: E402
from warren.core.messages.settlement import PublishConfirms  # noqa: E402

DELAYED = 0x400
STREAM = 0x500

ROUNDING_US = 2
"""Times are on the disk as whole microseconds of the clock on the wall."""

TIMES_S = (0.0, 0.02, 1.0, 1.0, 5.0, 40.0, 100_000.0)
"""For so long messages are delayed; some for the same time, and some for longer than a history."""


class DelayedModel:
    """What is delayed: by number, the message and when it is due, in microseconds since 1970.

    `taken` are the numbers of those that were taken out and are on their way.
    """

    def __init__(self) -> None:
        self.messages: dict[int, tuple[Sent, int]] = {}
        self.taken: set[int] = set()

    def there(self) -> set[int]:
        """Those that can be taken out."""
        return {
            number
            for number, (sent, _) in self.messages.items()
            if not sent.removed and number not in self.taken
        }


class StreamModel:
    """What is in the stream, by offset.

    Nothing below `first` is there any more; below `gone` nothing may come back. A reader saw all
    below `seen`.
    """

    def __init__(self) -> None:
        self.messages: dict[int, Sent] = {}
        self.first = 0
        self.gone = 0
        self.seen = 0

    def confirmed_end(self) -> int:
        """Everything below this offset is safe."""
        confirmed = [offset + 1 for offset, sent in self.messages.items() if sent.confirmed]
        return max([self.seen, *confirmed])


class InHandHistory(History):
    """`returns` has how often a message came back to its queue; `safe_returns` the highest of these
    counts that was on disk."""

    more = 2
    left_bytes_max = LIMITS.file_bytes_max + 1000
    """Delayed messages that are not persistent are paged out by themselves: the newest file of the
    transient store may be nearly full of what is dead."""

    delayed: DueQueue
    stream: StreamLog

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        super().__init__(seed, seen)
        self.of_delayed = DelayedModel()
        self.of_stream = StreamModel()
        self.returns: Counter[Sent] = Counter()
        self.safe_returns: Counter[Sent] = Counter()

    def actions(self) -> list[Action]:
        return [
            *super().actions(),
            (self.move, 4),
            (self.delay, 8),
            (self.send_due, 8),
            (self.send_early, 2),
            (self.cancel_delayed, 2),
            (self.return_counted, 8),
            (self.append, 8),
            (self.replay, 5),
            (self.trim, 3),
        ]

    # Starts and ends

    def open_more(self, node: Node) -> None:
        self.delayed = DueQueue(node.storage.open(DELAYED, durable=True))
        self.stream = StreamLog(node.storage.open(STREAM, durable=True))
        self.of_delayed.taken.clear()

    def stop_more(self, node: Node) -> None:
        self.delayed.stop()
        self.stream.stop()

    def stop(self, node: Node) -> None:
        super().stop(node)
        self._all_is_on_disk()
        self.seen["clean stop with messages delayed"] += bool(self.of_delayed.there())

    def quiesce(self, node: Node) -> None:
        super().quiesce(node)
        self._all_is_on_disk()
        assert self.stream.committed == self.stream.next_position

    def _all_is_on_disk(self) -> None:
        for sent, _ in self.of_delayed.messages.values():
            sent.gone |= sent.removed
            sent.confirmed |= sent.persistent
        for sent in self.of_stream.messages.values():
            sent.confirmed = True
        self.of_stream.gone = self.of_stream.first
        self.safe_returns = self.returns.copy()

    def compare(self, node: Node, counts: dict[int, int]) -> None:
        for messages in self.defined.values():
            for sent in messages.values():
                if sent.removed:
                    # Its count went with it; where the message comes back, the count need not.
                    self.safe_returns[sent] = 0
        super().compare(node, counts)
        self._compare_returns(node)
        self._compare_delayed(node, counts.get(DELAYED, 0))
        self._compare_stream(counts.get(STREAM, 0))

    def _compare_returns(self, node: Node) -> None:
        found: Counter[Sent] = Counter()
        for queue_id, messages in self.defined.items():
            queue = node.queues[queue_id]
            there = self.all_of(queue)
            assert queue.delivery_counts.keys() <= {message.position for message in there}
            for message in there:
                sent = messages[int(message.body[:8])]
                count = queue.delivery_counts.get(message.position, 0)
                safe, given = self.safe_returns[sent], self.returns[sent]
                assert safe <= count <= given, (
                    f"returns of {sent.number}: {count}, not {safe} to {given}"
                )
                self.seen["counts of returns found"] += count > 0
                found[sent] = count
        self.returns, self.safe_returns = found, found.copy()

    def _compare_delayed(self, node: Node, count: int) -> None:
        queue, model = self.delayed, self.of_delayed.messages
        found = queue.look_at(queue.due_order())
        assert len(found) == queue.length == count, f"{len(found)} delayed, {count} before"
        numbers = set()
        for message in found:
            number = int(message.body[:8])
            assert number in model, f"{number} was never delayed"
            sent, due_us = model[number]
            assert sent.persistent, f"transient {number} came back"
            assert not sent.gone, f"{number} is delayed again, its removal was on disk"
            self._check_delayed(node, message, sent, due_us)
            numbers.add(number)
        assert len(numbers) == len(found), "one is delayed twice"
        for number, (sent, _) in list(model.items()):
            if number not in numbers:
                assert not (sent.confirmed and sent.persistent) or sent.removed, (
                    f"confirmed {number} is delayed no more"
                )
                del model[number]
            else:
                sent.removed, sent.confirmed = False, True
        self.seen["delayed messages found"] += len(found)

    def _check_delayed(self, node: Node, message: Message, sent: Sent, due_us: int) -> None:
        assert (message.body, message.envelope.header) == (sent.body, sent.header)
        assert message.expires_at is not None
        at_us = (message.expires_at + self._epoch_s(node)) * 1e6
        assert abs(at_us - due_us) <= ROUNDING_US, f"{sent.number} is due at another time"

    def _epoch_s(self, node: Node) -> float:
        return node.clock.wall_time() - node.clock.now()

    def _compare_stream(self, count: int) -> None:
        log, model = self.stream, self.of_stream
        first, end = log.first, log.committed
        assert log.length == count == end - first, f"a gap in the stream: {count}, {first}-{end}"
        safe_end = model.confirmed_end()
        assert end >= safe_end, f"offset {safe_end - 1} of the stream is lost"
        if count:
            assert model.gone <= first <= model.first, (
                f"the stream begins at {first}, not at {model.gone} to {model.first}"
            )
        else:
            assert not safe_end, "all of the stream is gone"
        self._check_stream(first, end)
        model.messages = {at: one for at, one in model.messages.items() if first <= at < end}
        for sent in model.messages.values():
            sent.confirmed = True
        model.first = first
        self.seen["messages of the stream found"] += count

    def _check_stream(self, first: int, end: int) -> None:
        position = first
        expected = first
        while position < end:
            messages, position = self.stream.read(position, 7)
            for message in messages:
                assert message.position == expected, f"offset {expected} is not there"
                self._check_streamed(message)
                expected += 1
        assert expected == end, f"the stream ends at {expected}, not at {end}"

    def _check_streamed(self, message: Message) -> None:
        sent = self.of_stream.messages[message.position]
        assert (message.body, message.envelope.header) == (sent.body, sent.header), (
            f"offset {message.position} is another message"
        )

    def drain(self, node: Node) -> None:
        while self._sent_on(node, self.delayed.fetch_many(7)):
            node.clock.advance(1.0)
            node.jobs.run_all()
        node.clock.advance(1.0)
        node.jobs.run_all()
        assert not self.of_delayed.there() and not self.delayed.length
        self.noted.add(STREAM)
        self.stream.delete()
        super().drain(node)

    # Delays

    def delay(self, node: Node) -> None:
        for _ in range(self.random.choice((1, 1, 5))):
            sent, envelope, confirms = self._new(node, DELAYED)
            due_at = node.clock.now() + self.random.choice(TIMES_S)
            due_us = int((due_at + self._epoch_s(node)) * 1e6)
            self.of_delayed.messages[sent.number] = (sent, due_us)
            self._publish_to(node, self.delayed, sent, envelope, due_at, confirms)
            self.seen["delayed"] += 1

    def _new(self, node: Node, queue_id: int) -> tuple[Sent, Envelope, bool]:
        """A message, and whether its publisher is to be told."""
        self.numbers += 1
        size = self.random.choice((8, 60, 200, 292, 900))
        body = b"%08d" % self.numbers + bytes(size - 8)
        header = b"header-%d" % self.random.randrange(3)
        persistent = self.random.random() < 0.8
        envelope = Envelope("", "key", header, persistent, 0, None)
        confirms = self.random.random() < 0.6
        sent = Sent(self.numbers, queue_id, persistent, body, header, confirms)
        return sent, envelope, confirms

    def _publish_to(
        self,
        node: Node,
        queue: DueQueue | StreamLog,
        sent: Sent,
        envelope: Envelope,
        due_at: float | None,
        confirms: bool,
    ) -> None:
        publisher: PublishConfirms | None = None
        seq = sent.number * 1000
        if confirms and (sent.persistent or queue.defers_transient):
            publisher = node.publisher
            node.publisher.waiting[seq] = sent
        node.publisher.inside = True
        queue.publish(envelope, sent.body, due_at, publisher, seq)
        node.publisher.inside = False

    def send_due(self, node: Node) -> None:
        """What is due goes on, and the rest stays."""
        now = node.clock.now()
        limit = self.random.choice((1, 3, 1000))
        there = self.of_delayed.there()
        messages = self.delayed.fetch_expired(now, limit)
        dues_us = [(message.expires_at or 0.0) * 1e6 for message in messages]
        for one, after in pairwise(dues_us):
            assert one <= after + ROUNDING_US, f"not in the order of their times: {dues_us}"
        assert all([at <= now * 1e6 + ROUNDING_US for at in dues_us]), "sent before it is due"
        if len(messages) < limit:
            now_us = (now + self._epoch_s(node)) * 1e6 - ROUNDING_US
            late = {n for n in there if self.of_delayed.messages[n][1] < now_us}
            late -= {int(message.body[:8]) for message in messages}
            assert not late, f"due, and not sent: {late}"
        self._sent_on(node, messages)

    def send_early(self, node: Node) -> None:
        self._sent_on(node, self._some_delayed())

    def _some_delayed(self) -> list[Message]:
        listed = self.delayed.list_positions(0, self.delayed.next_position, 1000).positions
        count = min(len(listed), self.random.randrange(4))
        return self.delayed.take(self.random.sample(listed, count))

    def _sent_on(self, node: Node, messages: list[Message]) -> int:
        """These become messages of queues, and are delayed until they are safe there."""
        for message in messages:
            self._send_delayed(node, message)
        return len(messages)

    def _send_delayed(self, node: Node, message: Message) -> None:
        number = self._taken(node, message)
        queue = self.delayed
        sent, _ = self.of_delayed.messages[number]

        def done() -> None:
            sent.removed = True
            queue.ack([message])
            self.seen["delayed messages sent"] += 1

        self.send_on(node, message, done)

    def _taken(self, node: Node, message: Message) -> int:
        number = int(message.body[:8])
        assert number in self.of_delayed.there(), f"{number} was taken out already"
        self._check_delayed(node, message, *self.of_delayed.messages[number])
        self.of_delayed.taken.add(number)
        return number

    def cancel_delayed(self, node: Node) -> None:
        """Some are taken out and forgotten, and some put back."""
        for message in self._some_delayed():
            number = self._taken(node, message)
            if self.random.random() < 0.3:
                self.delayed.requeue([message])
                self.of_delayed.taken.discard(number)
            else:
                self.of_delayed.messages[number][0].removed = True
                self.delayed.ack([message])
                self.seen["delayed messages cancelled"] += 1

    # Returns

    def return_counted(self, node: Node) -> None:
        """As `core/queues/redelivery.py` does: count first, then wait, or be ready again."""
        queue_id, queue = self.some_queue(node)
        pending = node.pending[queue_id]
        chosen = self.random.sample(pending, self.random.randrange(len(pending) + 1))
        for message in queue.load(chosen):
            times = queue.delivery_counts.get(message.position, 0) + 1
            queue.delivery_counts[message.position] = times
            queue.counts_changed((message.position,))
            message.redelivered = True
            if queue_id in self.defined:
                sent = self.defined[queue_id][int(message.body[:8])]
                self.returns[sent] += 1
                assert self.returns[sent] == times, f"{sent.number} came back {times} times"
            self.seen["returns"] += 1
        ready = set(chosen) if self.random.random() < 0.7 else set()
        queue.requeue(ready)
        node.pending[queue_id] = [message for message in pending if message not in ready]

    # The stream

    def append(self, node: Node) -> None:
        for _ in range(self.random.choice((1, 1, 2, 8))):
            sent, envelope, confirms = self._new(node, STREAM)
            self.of_stream.messages[self.stream.next_position] = sent
            self._publish_to(node, self.stream, sent, envelope, None, confirms)

    def replay(self, node: Node) -> None:
        """Some messages in a row become messages of queues; the stream keeps them."""
        first, end = self.stream.first, self.stream.committed
        if first == end:
            return
        self.of_stream.seen = max(self.of_stream.seen, end)
        messages, _ = self.stream.read(self.random.randrange(first, end), 5)
        assert messages, "a reader got nothing"
        for message in messages:
            self._check_streamed(message)
            self.seen["replayed"] += 1
            self.send_on(node, message, self._replay_done)

    def _replay_done(self) -> None:
        self.seen["replayed and safe"] += 1

    def trim(self, node: Node) -> None:
        limits = StreamLimits(
            octets_max=self.random.choice((0, 1000, 5000)),
            segment_bytes=self.random.choice((1, 500, 2000)),
        )
        end = self.stream.committed
        for _ in range(self.random.choice((1, 5, 100))):
            if not self.stream.trim(limits, node.clock.wall_time()).more:
                break
        first = self.stream.first
        assert first >= self.of_stream.first and (first < end or first == self.of_stream.first)
        self.seen["trimmed"] += first > self.of_stream.first
        self.of_stream.first = first


if __name__ == "__main__":
    main(InHandHistory)
