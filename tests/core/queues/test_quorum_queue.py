"""Quorum queues in a virtual host: dead letters that must arrive, credit, and who may do what.

What clients see is in `compat_tests/test_quorum_*.py`; here is what takes too long there, or cannot
be seen from outside.
"""

from __future__ import annotations

from typing import Any

import pytest
from bare_vhost import add_queue, new_vhost
from durable_queue import DurableQueue
from fake_queue_store import FakeQueueStore
from manual_clock import ManualClock
from recorder import Recorder

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties
from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.paging import Pager
from warren.core.backing.variable_queue import VariableQueue
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import Unsupported
from warren.core.field import long, longstr
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms
from warren.core.ports import Write
from warren.core.queues.consumers import NO_LIMIT
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_type import QueueType
from warren.core.queues.quorum_queue import CREDIT, QuorumQueue
from warren.core.vhosts.burials import INSISTED_ON_MAX, KEPT_AGAIN_S
from warren.core.vhosts.node_counts import Death
from warren.core.vhosts.vhost import VirtualHost

SOMEBODY = TracedClient("connection", 1, "user")
CODEC = AmqpContentCodec()


def quorum_queue(
    vhost: VirtualHost, name: str, dead_to: str | None = None, **arguments: int | str
) -> QuorumQueue:
    queue = add_queue(vhost, name, dead_to, queue_type="quorum", **arguments)
    assert isinstance(queue, QuorumQueue)
    return queue


def insisting(vhost: VirtualHost, name: str, dead_to: str, **arguments: int) -> QuorumQueue:
    """A queue whose dead letters have to arrive."""
    return quorum_queue(
        vhost,
        name,
        dead_to,
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        **arguments,
    )


def publish(queue: LocalQueue, body: bytes = b"m", mode: int = 2) -> Any:
    header = encode_properties(len(body), {"delivery_mode": mode})
    return queue.publish(Envelope("", queue.name, header, mode == 2, 0, None), body, None, 0)


def reject(queue: LocalQueue, count: int = 1) -> None:
    queue.reject([m for _ in range(count) if (m := queue.get(False, SOMEBODY)) is not None])


def bodies(queue: LocalQueue) -> list[bytes]:
    found = []
    while (message := queue.get(True, SOMEBODY)) is not None:
        found.append(message.body)
    return found


class TestDeadLettersThatMustArrive:
    def test_they_are_kept_until_there_is_a_route(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = insisting(vhost, "q", "later")
        publish(queue)
        reject(queue)
        clock.settle()
        assert (len(queue), queue.set_aside) == (0, (1, 1))
        assert queue.purge() == 0 and queue.set_aside == (1, 1)
        clock.advance(KEPT_AGAIN_S)
        assert queue.set_aside == (1, 1)
        later = add_queue(vhost, "later")
        clock.advance(KEPT_AGAIN_S)
        assert (len(later), queue.set_aside) == (1, (0, 0))
        assert vhost._counts.dead_confirmed == 1

    def test_they_are_kept_while_their_exchange_is_missing(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = quorum_queue(
            vhost,
            "q",
            dead_letter_exchange="x",
            dead_letter_strategy="at-least-once",
            overflow="reject-publish",
        )
        publish(queue)
        reject(queue)
        clock.advance(KEPT_AGAIN_S)
        assert queue.set_aside == (1, 1)

    def test_a_target_that_is_full_gets_them_when_it_has_room(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        full = add_queue(vhost, "full", max_length=1, overflow="reject-publish")
        publish(full, b"first")
        queue = insisting(vhost, "q", "full")
        publish(queue, b"dead")
        reject(queue)
        clock.advance(30)
        assert queue.set_aside == (1, 4)
        assert bodies(full) == [b"first"]
        clock.advance(5)
        assert bodies(full) == [b"dead"]
        assert queue.set_aside == (0, 0)

    def test_a_target_that_goes_before_it_has_them_counts_as_no_route(
        self, store: VolatileMetadataStore, clock: ManualClock
    ) -> None:
        def durable(spec: BackingSpec) -> DurableQueue:
            return DurableQueue()

        vhost = new_vhost(store, clock, durable)
        target = add_queue(vhost, "target")
        queue = insisting(vhost, "q", "target")
        publish(queue)
        reject(queue)
        clock.settle()
        vhost.delete(queues=[target])
        assert isinstance(target.backing, DurableQueue)
        target.backing.fail()
        clock.advance(2)
        assert queue.set_aside == (1, 1)
        again = add_queue(vhost, "target")
        clock.advance(KEPT_AGAIN_S)
        assert isinstance(again.backing, DurableQueue)
        again.backing.sync()
        clock.settle()
        assert (len(again), queue.set_aside) == (1, (0, 0))

    def test_few_are_on_the_way(self, vhost: VirtualHost, clock: ManualClock) -> None:
        queue = insisting(vhost, "q", "later")
        many = 3 * INSISTED_ON_MAX
        for number in range(many):
            publish(queue, b"%02d" % number)
        reject(queue, many)
        clock.advance(1)
        assert queue.set_aside == (many, 2 * many)
        later = add_queue(vhost, "later")
        clock.advance(KEPT_AGAIN_S)
        assert sorted(bodies(later)) == [b"%02d" % number for number in range(many)]
        assert queue.set_aside == (0, 0)

    def test_it_refuses_from_the_message_on_that_is_too_much(self, vhost: VirtualHost) -> None:
        queue = quorum_queue(vhost, "q", max_length=10, overflow="reject-publish")
        for _ in range(11):
            assert publish(queue) is SETTLED
        assert queue.get(True, SOMEBODY) is not None
        assert publish(queue) is REJECTED
        queue.get(True, SOMEBODY)
        assert publish(queue) is REJECTED
        queue.get(True, SOMEBODY)
        assert publish(queue) is SETTLED

    def test_they_count_towards_the_length(self, vhost: VirtualHost, clock: ManualClock) -> None:
        queue = insisting(vhost, "q", "nowhere", max_length=2)
        for _ in range(3):
            assert publish(queue) is SETTLED
        assert publish(queue) is REJECTED
        reject(queue, 3)
        clock.settle()
        assert (len(queue), queue.set_aside[0]) == (0, 3)
        assert publish(queue) is REJECTED

    def test_a_queue_that_goes_takes_them_along(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = insisting(vhost, "q", "later")
        publish(queue)
        reject(queue)
        clock.settle()
        vhost.delete(queues=[queue])
        later = add_queue(vhost, "later")
        clock.advance(2 * KEPT_AGAIN_S)
        assert len(later) == 0

    def test_they_are_let_go_when_the_queue_insists_no_more(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = insisting(vhost, "q", "nowhere")
        publish(queue)
        reject(queue)
        clock.settle()
        vhost._applied._policies.set("/", "p", "^q$", {"overflow": "drop-head"})
        clock.advance(KEPT_AGAIN_S)
        assert queue.set_aside == (0, 0)

    def test_a_hand_over_does_not_wait_for_what_is_kept(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = insisting(vhost, "q", "nowhere")
        publish(queue)
        reject(queue)
        happened: list[bool] = []
        vhost.burials.all_buried(queue).then(lambda: happened.append(True))
        clock.settle()
        assert happened == [True]

    def test_very_many_that_are_kept_are_tried_again_in_turns(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        count = 20
        for number in range(count):
            queue = insisting(vhost, f"q{number}", "later")
            for _ in range(INSISTED_ON_MAX):
                publish(queue)
            reject(queue, INSISTED_ON_MAX)
        clock.settle()
        later = add_queue(vhost, "later")
        [timer] = clock.timers
        timer.callback()
        while not len(later):
            clock.turn()
        assert len(later) < count * INSISTED_ON_MAX
        clock.settle()
        assert len(later) == count * INSISTED_ON_MAX
        assert vhost.burials.idle

    def test_those_that_wait_for_kept_ones_go_on_when_their_queue_is_deleted(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = insisting(vhost, "q", "later")
        for _ in range(INSISTED_ON_MAX + 5):
            publish(queue)
        reject(queue, INSISTED_ON_MAX + 5)
        clock.settle()
        later = add_queue(vhost, "later")
        vhost.delete(queues=[queue])
        clock.settle()
        assert len(later) == 5

    def test_without_reject_publish_nothing_is_kept(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = quorum_queue(vhost, "q", "nowhere", dead_letter_strategy="at-least-once")
        publish(queue)
        reject(queue)
        clock.settle()
        assert queue.set_aside == (0, 0)
        assert vhost.burials.idle


def test_what_was_dead_before_a_restart_is_not_delivered(
    store: VolatileMetadataStore, clock: ManualClock, restarted: Any
) -> None:
    pager = Pager(clock, lambda: 0.0)
    stores: dict[int, FakeQueueStore] = {}

    def on_disk(spec: BackingSpec) -> VariableQueue:
        before = stores.get(spec.queue_id)
        stores[spec.queue_id] = FakeQueueStore() if before is None else before.restarted()
        return VariableQueue(stores[spec.queue_id], pager)

    queue = insisting(new_vhost(store, clock, on_disk), "q", "later", delivery_limit=5)
    for number in range(6):
        publish(queue, b"%d" % number)
    messages = [queue.get(False, SOMEBODY) for _ in range(5)]
    queue.reject([messages[1], messages[3]])
    queue.requeue([messages[4]])
    clock.settle()
    assert queue.set_aside == (2, 2)
    again = restarted(on_disk)
    queue = again.queues["q"]
    clock.settle()
    assert (len(queue), queue.set_aside) == (4, (2, 2))
    # Which ids queues get begins anew with each of these virtual hosts.
    again._makings.random.seed(2)
    later = add_queue(again, "later")
    clock.advance(KEPT_AGAIN_S)
    assert queue.set_aside == (2, 2)
    stores[later.queue_id].sync()
    clock.settle()
    assert queue.set_aside == (0, 0)
    assert bodies(later) == [b"1", b"3"]
    assert bodies(queue) == [b"0", b"2", b"4", b"5"]


class TestCounts:
    def test_the_dead_are_counted_by_type_and_strategy(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        add_queue(vhost, "dead")
        for queue in (
            quorum_queue(vhost, "disabled", delivery_limit=0),
            quorum_queue(vhost, "once", "dead", delivery_limit=0),
            insisting(vhost, "sure", "dead", delivery_limit=0),
        ):
            publish(queue)
            message = queue.get(False, SOMEBODY)
            assert message is not None
            queue.requeue([message])
        clock.settle()
        strategies = ("disabled", "at_most_once", "at_least_once")
        assert vhost._counts.dead == {
            Death(QueueType.QUORUM, strategy, "delivery_limit"): 1 for strategy in strategies
        }

    def test_what_passed_through_a_queue_that_is_gone_still_counts(
        self, vhost: VirtualHost
    ) -> None:
        queue = quorum_queue(vhost, "q")
        publish(queue)
        assert bodies(queue) == [b"m"]
        vhost.delete(queues=[queue])
        assert vhost._counts.past_of_type[QueueType.QUORUM].get_no_ack == 1

    def test_an_envelope_is_shown_with_a_count_and_kept_without(self, vhost: VirtualHost) -> None:
        queue = quorum_queue(vhost, "q")
        publish(queue)
        message = queue.get(False, SOMEBODY)
        assert message is not None
        own = message.envelope
        assert CODEC.headers(queue.envelope_got(message, False).header) == {
            "x-delivery-count": long(0)
        }
        consumer = Watcher(queue, "c")
        queue.add_consumer(consumer)
        queue.requeue([message])
        assert [CODEC.headers(e.header) for e in consumer.envelopes] == [
            {"x-delivery-count": long(1)}
        ]
        assert message.envelope is own and CODEC.headers(own.header) == {}

    def test_a_transient_dead_letter_is_transient_in_a_classic_queue(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        dead = add_queue(vhost, "dead")
        queue = quorum_queue(vhost, "q", "dead")
        publish(queue, mode=1)
        reject(queue)
        clock.settle()
        message = dead.get(True, SOMEBODY)
        assert message is not None and not message.envelope.persistent


class Watcher(Recorder):
    """Keeps the envelopes it is shown, too."""

    def __init__(self, queue: LocalQueue, tag: str, **options: Any) -> None:
        super().__init__(queue, tag, **options)
        self.envelopes: list[Envelope] = []

    def take(self, message: Message) -> None:
        self.envelopes.append(message.envelope)
        super().take(message)


class TestConsumers:
    def test_credit_takes_the_place_of_no_limit(self, vhost: VirtualHost) -> None:
        queue = quorum_queue(vhost, "q")
        limits = []
        for options in ({}, {"prefetch": 7}, {"no_ack": True}):
            consumer = Recorder(queue, "c", **options)
            queue.add_consumer(consumer)
            limits.append(consumer.prefetch)
        assert limits == [CREDIT, 7, NO_LIMIT]

    def test_one_that_leaves_counts_while_it_has_messages(self, vhost: VirtualHost) -> None:
        queue = quorum_queue(vhost, "q")
        consumer = Recorder(queue, "c")
        queue.add_consumer(consumer)
        publish(queue)
        queue.remove_consumer(consumer)
        assert queue.consumer_total == 1
        consumer.settled(1)
        queue.ack(consumer.held)
        assert queue.consumer_total == 0

    def test_messages_of_one_that_left_keep_the_queue(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = quorum_queue(vhost, "q", expires=1000)
        consumer = Recorder(queue, "c")
        queue.add_consumer(consumer)
        publish(queue)
        queue.remove_consumer(consumer)
        clock.advance(1.5)
        assert "q" in vhost.queues
        consumer.settled(1)
        queue.ack(consumer.held)
        clock.advance(2)
        assert "q" not in vhost.queues


class TestLife:
    @pytest.mark.parametrize("condition", [{"if_unused": True}, {"if_empty": True}])
    def test_it_is_deleted_on_no_condition(
        self, vhost: VirtualHost, condition: dict[str, bool]
    ) -> None:
        queue = quorum_queue(vhost, "q")
        with pytest.raises(Unsupported):
            queue.check_deletable(**{"if_unused": False, "if_empty": False, **condition})

    def test_an_unused_one_expires(self, vhost: VirtualHost, clock: ManualClock) -> None:
        quorum_queue(vhost, "q", expires=1000)
        clock.advance(1.5)
        assert "q" not in vhost.queues

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_default_type_is_for_what_lasts(
        self, store: VolatileMetadataStore, vhost: VirtualHost, durable: bool
    ) -> None:
        store.transact([Write(("vhost", "/"), VirtualHostRecord(default_queue_type="quorum"))])
        arguments = vhost.with_default_type({}, durable=durable, exclusive=False, auto_delete=False)
        assert arguments == ({"x-queue-type": longstr("quorum")} if durable else {})

    def test_limits_of_policies_count_at_once(self, vhost: VirtualHost, clock: ManualClock) -> None:
        queue = quorum_queue(vhost, "q")
        for number in range(5):
            publish(queue, b"%d" % number)
        vhost._applied._policies.set("/", "mirrors", "^q$", {"ha-mode": "all", "max-length": 1}, 9)
        vhost._applied._policies.set("/", "p", "^q$", {"max-length": 2}, 1)
        clock.settle()
        assert bodies(queue) == [b"3", b"4"]

    def test_a_publish_is_pending_whatever_its_delivery_mode(
        self, store: VolatileMetadataStore, clock: ManualClock
    ) -> None:
        made: list[DurableQueue] = []

        def durable(spec: BackingSpec) -> DurableQueue:
            made.append(DurableQueue())
            return made[-1]

        queue = quorum_queue(new_vhost(store, clock, durable), "q")
        header = CODEC.content_header(1, {})
        answers = Answers()
        for persistent in (True, False):
            envelope = Envelope("", "q", header, persistent, 0, None)
            assert queue.publish(envelope, b"m", answers, int(persistent)) is PENDING
        made[0].sync()
        assert answers.settled == [1, 0]


class Answers(PublishConfirms):
    """A publisher with confirms."""

    def __init__(self) -> None:
        self.settled: list[int] = []

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError(f"publish {publish_seq} was refused")
