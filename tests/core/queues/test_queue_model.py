"""A queue against a plain list: whatever is done to it, it does what the list says.

The model knows the rules of amqp_semantics.md sections 4.3, 4.4 and 5.2 and nothing of how the
queue keeps them: messages in a list, consumers in a list in the order in which they are served.
Deliveries, dead letters, answers and counts must be the same after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
from recorder import SOMEBODY, Recorder

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.paging import Pager
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.variable_queue import BatchSizes, VariableQueue
from warren.core.errors import AccessRefused
from warren.core.messages.message import PAGED_OUT, Envelope, Message
from warren.core.messages.settlement import REJECTED, SETTLED
from warren.core.queues.consumers import Blocked
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeadLetters, DeathReason
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event


class Owner:
    """The virtual host of the queue under test: writes down what it is told."""

    name = "/"

    def __init__(self) -> None:
        self.clock = ManualClock(start=0.0)
        self.turns = Turns(self.clock)
        self.dead: list[tuple[bytes, str]] = []
        self.unused: list[str] = []

    @property
    def burials(self) -> DeadLetters[Queue]:
        return self

    def bury(self, queue: Queue, messages: Sequence[Message], reason: DeathReason) -> None:
        loaded = queue.backing.load(messages)
        self.dead += [(message.body, reason.value) for message in loaded]
        queue.buried(list(messages))

    def bury_unkept(
        self, queue: Queue, message: Message, reason: DeathReason, done: Callable[[], None]
    ) -> None:
        self.dead.append((message.body, reason.value))
        done()

    def all_buried(self, queue: Queue) -> Event:
        raise AssertionError("nobody waits for that")

    def queue_ends(self, queue: Queue) -> None:
        """All of the dead are buried."""

    def queue_moves(self, queue: Queue) -> None:
        raise AssertionError("there is no other node")

    def queue_unused(self, queue: Queue) -> None:
        self.unused.append(queue.name)


@dataclass
class Entry:
    """A message in the model."""

    body: bytes
    seq: int
    level: int
    expires_at: float | None
    redelivered: bool = False


@dataclass
class Subscriber:
    """A consumer in the model."""

    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    socket_full: bool = False
    got: list[tuple[bytes, bool]] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        full = not self.no_ack and 0 < self.prefetch <= len(self.held)
        return not full and not self.socket_full


class Model:
    """What a queue is."""

    def __init__(self, rules: QueueSettings) -> None:
        self.rules = rules
        self.now = 0.0
        self.ready: list[Entry] = []
        self.subscribers: list[Subscriber] = []
        self.serving: list[Subscriber] = []
        self.active: Subscriber | None = None
        self.fetched: list[Entry] = []
        self.dead: list[tuple[bytes, str]] = []
        self.published = 0

    def publish(self, body: bytes, priority: int, ttl_ms: int | None) -> str:
        rules = self.rules
        full = rules.max_length is not None and len(self.ready) + 1 > rules.max_length
        full |= (
            rules.max_length_bytes is not None and self.octets + len(body) > rules.max_length_bytes
        )
        if rules.overflow != "drop-head" and full:
            if rules.overflow == "reject-publish-dlx":
                self._dies(body, "maxlen")
            return "rejected"
        ttls = [ttl for ttl in (ttl_ms, rules.message_ttl_ms) if ttl is not None]
        expires_at = self.now + min(ttls) / 1000 if ttls else None
        level = min(priority, rules.max_priority or 0)
        entry = Entry(body, self.published, level, expires_at)
        self.published += 1
        if not self._someone_waits() and ttls and min(ttls) == 0:
            self._dies(body, "expired")
            return "settled"
        if self._someone_waits():
            self._hand(entry)
        else:
            self.ready.append(entry)
            self._sort()
            self._drop_excess()
        return "settled"

    def get(self) -> Entry | None:
        self._expire()
        entry = self.ready.pop(0) if self.ready else None
        return entry

    def settle(self, subscriber: Subscriber | None, entries: list[Entry], verdict: str) -> None:
        held = self.fetched if subscriber is None else subscriber.held
        for entry in entries:
            held.remove(entry)
        if subscriber is not None:
            self._find_serving(subscriber)
        if verdict == "reject":
            for entry in sorted(entries, key=lambda entry: entry.seq):
                self._dies(entry.body, "rejected")
        elif verdict == "requeue":
            for entry in entries:
                entry.redelivered = True
            self.ready += entries
            self._sort()
            self._expire()
            self._drop_excess()
        self.deliver()

    def subscribe(self, subscriber: Subscriber) -> bool:
        single = self.rules.single_active_consumer
        if any(other.exclusive for other in self.subscribers):
            return False
        if subscriber.exclusive and (self.subscribers or single):
            return False
        self.subscribers.append(subscriber)
        if single and self.active is None:
            self.active = subscriber
        self._find_serving(subscriber)
        self.deliver()
        return True

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers.remove(subscriber)
        if subscriber in self.serving:
            self.serving.remove(subscriber)
        if subscriber is self.active:
            self.active = max(self.subscribers, key=lambda s: s.priority, default=None)
            if self.active is not None:
                self._find_serving(self.active)
        self.deliver()

    def socket(self, subscriber: Subscriber, full: bool) -> None:
        subscriber.socket_full = full
        self._find_serving(subscriber)
        self.deliver()

    def follow(self, rules: QueueSettings) -> None:
        self.rules = rules
        self._drop_excess()

    def deliver(self) -> None:
        self._expire()
        while self.ready and self._someone_waits():
            self._hand(self.ready.pop(0))
            self._expire()

    @property
    def octets(self) -> int:
        return sum(len(entry.body) for entry in self.ready)

    def _someone_waits(self) -> bool:
        return bool(self.serving)

    def _hand(self, entry: Entry) -> None:
        best = max(subscriber.priority for subscriber in self.serving)
        chosen = next(s for s in self.serving if s.priority == best)
        chosen.got.append((entry.body, entry.redelivered))
        if not chosen.no_ack:
            chosen.held.append(entry)
        self.serving.remove(chosen)
        self._find_serving(chosen)

    def _find_serving(self, subscriber: Subscriber) -> None:
        """Who can take nothing leaves, and comes back at the tail."""
        waits = not self.rules.single_active_consumer or subscriber is self.active
        able = subscriber in self.subscribers and subscriber.has_room and waits
        if able and subscriber not in self.serving:
            self.serving.append(subscriber)
        elif not able and subscriber in self.serving:
            self.serving.remove(subscriber)

    def expire(self) -> None:
        self._expire()

    def _expire(self) -> None:
        """Only the head of each level can expire."""
        for level in sorted({entry.level for entry in self.ready}, reverse=True):
            for entry in [entry for entry in self.ready if entry.level == level]:
                if entry.expires_at is None or entry.expires_at > self.now:
                    break
                self.ready.remove(entry)
                self._dies(entry.body, "expired")

    def _drop_excess(self) -> None:
        rules = self.rules
        if rules.overflow != "drop-head":
            return
        while self.ready and (
            (rules.max_length is not None and len(self.ready) > rules.max_length)
            or (rules.max_length_bytes is not None and self.octets > rules.max_length_bytes)
        ):
            self._dies(self.ready.pop(0).body, "maxlen")

    def _dies(self, body: bytes, reason: str) -> None:
        if self.rules.dead_letter_exchange is not None:
            self.dead.append((body, reason))

    def _sort(self) -> None:
        self.ready.sort(key=lambda entry: (-entry.level, entry.seq))


_times_ms = st.sampled_from((None, None, None, 0, 125, 1000))
_rules = st.one_of(
    # A queue without rules takes shorter ways.
    st.builds(QueueSettings, dead_letter_exchange=st.sampled_from((None, "dlx"))),
    st.builds(
        QueueSettings,
        message_ttl_ms=_times_ms,
        max_length=st.sampled_from((None, None, None, 0, 1, 3)),
        max_length_bytes=st.sampled_from((None, None, None, 0, 12, 40)),
        overflow=st.sampled_from(
            ("drop-head", "drop-head", "reject-publish", "reject-publish-dlx")
        ),
        dead_letter_exchange=st.sampled_from((None, "dlx")),
    ),
)


class QueueMachine(RuleBasedStateMachine):
    """Does the same to a queue and to the model."""

    max_priority: int | None = None

    def new_backing(self) -> BackingQueue:
        if self.max_priority is not None:
            return PriorityQueue(self.max_priority, self.new_level)
        return self.new_level(0)

    def new_level(self, level: int) -> BackingQueue:
        return MemoryQueue()

    def body_of(self, message: Message) -> bytes:
        """The body of a message that is out for acknowledgement."""
        return message.body

    @initialize(rules=_rules, single=st.sampled_from((False,) * 5 + (True,)))
    def start(self, rules: QueueSettings, single: bool) -> None:
        rules = replace(rules, single_active_consumer=single, max_priority=self.max_priority)
        self.owner = Owner()
        backing = self.new_backing()
        self.queue = Queue(
            self.owner,
            "q",
            durable=False,
            auto_delete=False,
            exclusive_owner=None,
            arguments={},
            settings=rules,
            backing=backing,
        )
        self.model = Model(rules)
        self.consumers: dict[str, tuple[Recorder, Subscriber]] = {}
        self.gone: dict[str, tuple[Recorder, Subscriber]] = {}
        self.fetched: list[Message] = []
        self.tags = 0

    # Publishing

    @rule(
        count=st.sampled_from((1, 1, 1, 2, 5)),
        size=st.sampled_from((5, 5, 9, 30)),
        priority=st.integers(0, 4),
        ttl_ms=st.sampled_from((None, None, 0, 125, 125, 1000)),
    )
    def publish(self, count: int, size: int, priority: int, ttl_ms: int | None) -> None:
        for _ in range(count):
            body = b"%d" % self.model.published
            body = body.ljust(size, b".")
            persistent = self.model.published % 3 == 0
            envelope = Envelope("", "q", b"", persistent, priority, ttl_ms)
            answer = self.queue.publish(envelope, body, None, 0)
            expected = self.model.publish(body, priority, ttl_ms)
            assert answer is (REJECTED if expected == "rejected" else SETTLED)
            self.settle()

    @precondition(lambda self: not self.queue.one_by_one)
    @rule(
        count=st.sampled_from((1, 2, 3, 7)),
        size=st.sampled_from((5, 30)),
        priority=st.integers(0, 4),
    )
    def publish_many(self, count: int, size: int, priority: int) -> None:
        envelopes, bodies = [], []
        for _ in range(count):
            persistent = self.model.published % 3 == 0
            envelopes.append(Envelope("", "q", b"", persistent, priority, None))
            bodies.append((b"%d" % self.model.published).ljust(size, b"."))
            self.model.publish(bodies[-1], priority, None)
        assert not self.queue.publish_many(envelopes, bodies, None, 0)
        self.settle()

    # Consuming

    @rule(
        prefetch=st.sampled_from((0, 0, 1, 2, 5)),
        no_ack=st.sampled_from((False, False, True)),
        exclusive=st.sampled_from((False,) * 9 + (True,)),
        priority=st.sampled_from((0, 0, 0, 5, -1)),
    )
    def consume(self, prefetch: int, no_ack: bool, exclusive: bool, priority: int) -> None:
        if len(self.consumers) >= 4:
            return
        self.tags += 1
        tag = f"c{self.tags}"
        options = {
            "no_ack": no_ack, "exclusive": exclusive, "priority": priority, "prefetch": prefetch
        }  # fmt: skip
        consumer = Recorder(self.queue, tag, **options)
        subscriber = Subscriber(tag, **options)  # type: ignore[arg-type]
        try:
            self.queue.add_consumer(consumer)
        except AccessRefused:
            assert not self.model.subscribe(subscriber)
            return
        self.queue.deliver()
        assert self.model.subscribe(subscriber)
        self.consumers[tag] = (consumer, subscriber)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.consumers)))
        self.gone[tag] = consumer, subscriber = self.consumers.pop(tag)
        self.queue.remove_consumer(consumer)
        self.model.unsubscribe(subscriber)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), full=st.booleans())
    def socket(self, data: st.DataObject, full: bool) -> None:
        consumer, subscriber = self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))]
        if full:
            consumer.block(Blocked.SOCKET)
        elif consumer.unblock(Blocked.SOCKET):
            self.queue.deliver()
        self.model.socket(subscriber, full)

    @precondition(lambda self: self.holders())
    @rule(data=st.data(), verdict=st.sampled_from(("ack", "ack", "requeue", "requeue", "reject")))
    def judge(self, data: st.DataObject, verdict: str) -> None:
        tag = data.draw(st.sampled_from(self.holders()))
        consumer, subscriber = {**self.consumers, **self.gone}[tag]
        count = len(consumer.held)
        kind = data.draw(st.sampled_from(("one", "up to", "some")))
        if kind == "one":
            chosen = [data.draw(st.integers(0, count - 1))]
        elif kind == "up to":
            chosen = list(range(data.draw(st.integers(0, count - 1)) + 1))
        else:
            chosen = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
        messages = [consumer.held[index] for index in chosen]
        entries = [subscriber.held[index] for index in chosen]
        for message in messages:
            consumer.held.remove(message)
        consumer.settled(len(messages))
        self.queue_settles(messages, verdict)
        self.model.settle(subscriber, entries, verdict)

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        message = self.queue.get(no_ack, SOMEBODY)
        entry = self.model.get()
        if entry is None:
            assert message is None
            return
        assert message is not None
        assert (message.body, message.redelivered) == (entry.body, entry.redelivered)
        if not no_ack:
            self.fetched.append(message)
            self.model.fetched.append(entry)

    @precondition(lambda self: self.fetched)
    @rule(data=st.data(), verdict=st.sampled_from(("ack", "requeue", "reject")))
    def judge_fetched(self, data: st.DataObject, verdict: str) -> None:
        index = data.draw(st.integers(0, len(self.fetched) - 1))
        message = self.fetched.pop(index)
        self.queue_settles([message], verdict)
        self.model.settle(None, [self.model.fetched[index]], verdict)

    # The rest of its life

    @rule(ms=st.sampled_from((0, 125, 125, 250, 1000)))
    def time_passes(self, ms: int) -> None:
        self.owner.clock.advance(ms / 1000)
        # In steps, as heads expire when their time comes and not when the time is over.
        for _ in range(ms // 125):
            self.model.now += 0.125
            self.model.deliver()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.model.ready)
        self.model.ready.clear()

    @rule(rules=_rules)
    def policy_changes(self, rules: QueueSettings) -> None:
        rules = replace(
            rules,
            single_active_consumer=self.model.rules.single_active_consumer,
            max_priority=self.max_priority,
        )
        self.queue.apply_settings(rules)
        self.model.follow(rules)

    @precondition(lambda self: self.tags > 3)
    @rule(rules=_rules)
    def delete(self, rules: QueueSettings) -> None:
        """Everything ends, and a new queue begins."""
        dead = list(self.owner.dead)
        self.queue.delete()
        assert self.queue.left_ready == len(self.model.ready)
        assert all(consumer.was_cancelled for consumer, _ in self.consumers.values())
        assert not self.queue.consumers and not self.queue.ring.top
        self.queue_settles(self.fetched, "requeue")
        self.owner.clock.advance(10)
        assert len(self.queue) == 0 and self.queue.unacked == 0
        assert self.owner.dead == dead, "a deleted queue dead-letters nothing"
        assert not self.owner.clock.timers
        self.start(rules, False)

    # Comparing

    @invariant()
    def agrees(self) -> None:
        self.settle()
        queue, model = self.queue, self.model
        for consumer, subscriber in {**self.consumers, **self.gone}.values():
            assert consumer.got == subscriber.got, consumer.tag
            assert [self.body_of(m) for m in consumer.held] == [e.body for e in subscriber.held]
            assert consumer.unacked == len(subscriber.held)
            assert consumer.unacked <= consumer.prefetch
        assert self.owner.dead == model.dead
        assert len(queue) == len(model.ready)
        assert queue.backing.ready_bytes == model.octets
        outstanding = sum(len(s.held) for _, s in {**self.consumers, **self.gone}.values())
        assert queue.unacked == outstanding + len(model.fetched)

    @invariant()
    def the_ring_holds_who_is_not_blocked(self) -> None:
        levels = self.queue.ring._levels
        ring = [consumer for level in levels.values() for consumer in level]
        assert len(ring) == len(set(ring))
        assert set(ring) == {c for c in self.queue.consumers if not c.blocked}
        by_tag = [[c.tag for c in levels[priority]] for priority in sorted(levels)]
        serving = [
            [s.tag for s in self.model.serving if s.priority == priority]
            for priority in sorted({s.priority for s in self.model.serving})
        ]
        assert by_tag == serving
        assert list(self.queue.ring.top) == (list(levels[max(levels)]) if levels else [])

    @invariant()
    def nobody_waits_while_there_are_messages(self) -> None:
        assert not (self.queue.ring.top and len(self.queue))

    @invariant()
    def limits_hold(self) -> None:
        rules = self.queue.settings
        if rules.overflow == "drop-head":
            assert rules.max_length is None or len(self.queue) <= rules.max_length
            octets = self.queue.backing.ready_bytes
            assert rules.max_length_bytes is None or octets <= rules.max_length_bytes

    def holders(self) -> list[str]:
        return sorted(
            tag for tag, (consumer, _) in {**self.consumers, **self.gone}.items() if consumer.held
        )

    def queue_settles(self, messages: list[Message], verdict: str) -> None:
        """As a channel does it."""
        queue = self.queue
        if verdict == "ack":
            queue.ack(messages)
        elif verdict == "reject":
            queue.reject(messages)
        else:
            queue.requeue(list(messages))
        if queue.backing.length:
            queue.deliver()

    def settle(self) -> None:
        self.owner.clock.advance(0)
        self.model.deliver()


class PriorityQueueMachine(QueueMachine):
    max_priority = 2


class VariableQueueMachine(QueueMachine):
    """The same over a disk, with memory short now and then."""

    def new_backing(self) -> BackingQueue:
        self.memory_ratio = 0.1
        self.levels: list[VariableQueue] = []
        self.stores: list[FakeQueueStore] = []
        self.pager = Pager(self.owner.clock, lambda: self.memory_ratio, worth_paging=1)
        return super().new_backing()

    def new_level(self, level: int) -> BackingQueue:
        self.stores.append(FakeQueueStore())
        queue = VariableQueue(self.stores[-1], self.pager, sizes=BatchSizes(2, 1000, 2, 1000, 2))
        self.levels.append(queue)
        return queue

    def body_of(self, message: Message) -> bytes:
        if message.body is not PAGED_OUT:
            return message.body
        store = self.stores[min(message.envelope.priority, len(self.stores) - 1)]
        return store.kept[message.position].body

    @rule(ratio=st.sampled_from((0.1, 0.6, 20.0, 20.0)))
    def memory_is_looked_at(self, ratio: float) -> None:
        self.memory_ratio = ratio
        self.pager.check(self.owner.clock.now())
        self.owner.clock.settle()

    @rule(lazy=st.booleans())
    def mode_changes(self, lazy: bool) -> None:
        for level in self.levels:
            level.set_mode("lazy" if lazy else "default")

    @rule()
    def everything_is_paged_out(self) -> None:
        for level in self.levels:
            level._target_count = 0
            while level.excess:
                level.reduce(3)
            level._target_count = None

    @invariant()
    def levels_are_sound(self) -> None:
        for level in self.levels:
            if not self.queue.deleted:
                level.check()


class VariablePriorityQueueMachine(VariableQueueMachine):
    max_priority = 2


bounded = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemoryQueue = QueueMachine.TestCase
TestMemoryQueue.settings = bounded
TestPriorityQueue = PriorityQueueMachine.TestCase
TestPriorityQueue.settings = settings(bounded, max_examples=200)
TestVariableQueue = VariableQueueMachine.TestCase
TestVariableQueue.settings = settings(bounded, max_examples=200)
TestVariablePriorityQueue = VariablePriorityQueueMachine.TestCase
TestVariablePriorityQueue.settings = settings(bounded, max_examples=100)
