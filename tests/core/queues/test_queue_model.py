"""A queue against a plain list (`queue_model.py`): deliveries, dead letters, answers and counts are
the same after every step."""

from __future__ import annotations

from dataclasses import replace

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
from queue_model import RULES, Model, Owner, Subscriber
from recorder import SOMEBODY, Recorder

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.paging import Pager
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.ready_messages import BatchSizes
from warren.core.backing.variable_queue import VariableQueue
from warren.core.definitions.records import QueueRecord
from warren.core.errors import AccessRefused
from warren.core.messages.message import PAGED_OUT, Envelope, Message
from warren.core.messages.settlement import REJECTED, SETTLED
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.consumers import Blocked
from warren.core.queues.queue import DeclaredQueue
from warren.core.queues.queue_arguments import QueueSettings


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

    @initialize(rules=RULES, single=st.sampled_from((False,) * 5 + (True,)))
    def start(self, rules: QueueSettings, single: bool) -> None:
        rules = replace(rules, single_active_consumer=single, max_priority=self.max_priority)
        self.owner = Owner()
        backing = self.new_backing()
        record = QueueRecord(auto_delete=False, arguments={}, durable=False)
        declared = DeclaredQueue("q", record, None, {})
        self.queue = ClassicQueue(self.owner, declared, rules, backing)
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
        ttl_ms=st.sampled_from((None, None, 125, 1000)),
    )
    def publish_many(self, count: int, size: int, priority: int, ttl_ms: int | None) -> None:
        envelopes, bodies = [], []
        for _ in range(count):
            persistent = self.model.published % 3 == 0
            envelopes.append(Envelope("", "q", b"", persistent, priority, ttl_ms))
            bodies.append((b"%d" % self.model.published).ljust(size, b"."))
            self.model.publish(bodies[-1], priority, ttl_ms)
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

    @rule(rules=RULES)
    def policy_changes(self, rules: QueueSettings) -> None:
        rules = replace(
            rules,
            single_active_consumer=self.model.rules.single_active_consumer,
            max_priority=self.max_priority,
        )
        self.queue.apply_settings(rules)
        self.model.follow(rules)

    @precondition(lambda self: self.tags > 3)
    @rule(rules=RULES)
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
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemoryQueue = QueueMachine.TestCase
TestMemoryQueue.settings = bounded
TestPriorityQueue = PriorityQueueMachine.TestCase
TestPriorityQueue.settings = settings(bounded, max_examples=100)
TestVariableQueue = VariableQueueMachine.TestCase
TestVariableQueue.settings = settings(bounded, max_examples=100)
TestVariablePriorityQueue = VariablePriorityQueueMachine.TestCase
TestVariablePriorityQueue.settings = settings(bounded, max_examples=50)
