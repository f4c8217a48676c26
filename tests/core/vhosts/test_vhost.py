"""A virtual host: what belongs together comes and goes together."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.definitions.records import BindingRecord, ExchangeRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import NotFound, PreconditionFailed, ResourceLocked
from warren.core.exchanges.binding import Binding, DestinationKind
from warren.core.field import Field, Table, long, longstr
from warren.core.messages.firehose import Firehose
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.ports import Write
from warren.core.queues.consumers import Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.turns import TURN_US
from warren.core.scheduling.waiting import run
from warren.core.vhosts.burials import BURIAL_US
from warren.core.vhosts.equivalence import check_exchange_equivalent
from warren.core.vhosts.vhost import LEVEL_US, PREDECLARED, VirtualHost

OWNER = object()
SOMEBODY = TracedClient("connection", 1, "user")


class Taker(Consumer):
    """Takes everything, and calls back for each."""

    def __init__(self, queue: LocalQueue, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(queue, "c", True, False, 0, 0, {})
        self.bodies: list[bytes] = []
        self.was_cancelled = 0
        self._then = then

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        self.bodies.append(body)
        self._then()

    def take(self, message: Message) -> None:
        raise AssertionError("it needs no acknowledgements")

    def take_many(self, messages: list[Message]) -> None:
        raise AssertionError("it needs no acknowledgements")

    def capacity(self) -> int:
        return 1 << 30

    def traced_as(self) -> TracedClient:
        return SOMEBODY

    def cancelled(self) -> None:
        self.was_cancelled += 1

    def move_to(self, queue: LocalQueue) -> None:
        self.queue = queue


def add_queue(vhost: VirtualHost, name: str, **more: Any) -> LocalQueue:
    options = {"durable": False, "exclusive_owner": None, "auto_delete": False, "arguments": {}}
    vhost.declare_queue(name, **(options | more))
    return vhost.queue(name)


def add_exchange(vhost: VirtualHost, name: str, kind: str = "fanout", **more: Any) -> None:
    options = {"durable": False, "auto_delete": False, "internal": False, "arguments": {}}
    vhost.declare_exchange(name, kind, **(options | more))


def bind(
    vhost: VirtualHost,
    source: str,
    destination: str,
    key: str = "",
    kind: DestinationKind = "queue",
    arguments: Table | None = None,
) -> Binding:
    binding = Binding(source, kind, destination, key, arguments or {})
    vhost.bind(binding, OWNER)
    return binding


def publish(vhost: VirtualHost, exchange: str, key: str, body: bytes = b"x") -> None:
    header = struct.pack(">HHQH", 60, 0, len(body), 0)
    run(
        vhost.publish(Envelope(exchange, key, header, False, 0, None), body, (key,)),
        lambda result: result(),
    )


def names(vhost: VirtualHost) -> set[str]:
    return set(vhost.exchanges) - {name for name, _, _ in PREDECLARED}


class TestBindings:
    def test_a_binding_is_the_same_twice(self, vhost: VirtualHost) -> None:
        add_queue(vhost, "q")
        bind(vhost, "amq.direct", "q", "k")
        bind(vhost, "amq.direct", "q", "k")
        bind(vhost, "amq.direct", "q", "k", arguments={"a": long(1)})
        assert len(list(vhost.bindings())) == 2
        publish(vhost, "amq.direct", "k")
        assert len(vhost.queues["q"]) == 1

    def test_a_missing_exchange_is_reported_before_a_missing_queue(
        self, vhost: VirtualHost
    ) -> None:
        with pytest.raises(NotFound, match="no exchange 'x' in vhost '/'"):
            bind(vhost, "x", "q")
        with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
            bind(vhost, "amq.direct", "q")

    def test_a_queue_of_another_connection_is_not_bound(self, vhost: VirtualHost) -> None:
        add_queue(vhost, "q", exclusive_owner=object())
        with pytest.raises(ResourceLocked):
            bind(vhost, "amq.direct", "q")

    def test_unbinding_what_is_not_bound_is_no_error(self, vhost: VirtualHost) -> None:
        vhost.unbind(Binding("none", "queue", "none", "", {}), OWNER)
        vhost.unbind(Binding("amq.direct", "exchange", "none", "", {}), OWNER)

    def test_a_change_of_routes_is_noticed_by_caches(self, vhost: VirtualHost) -> None:
        generations = [vhost.topology.generation]

        def changed() -> bool:
            generations.append(vhost.topology.generation)
            return generations[-1] != generations[-2]

        queue = add_queue(vhost, "q")
        assert changed()
        binding = bind(vhost, "amq.direct", "q")
        assert changed()
        bind(vhost, "amq.direct", "q")
        assert not changed()
        vhost.unbind(binding, OWNER)
        assert changed()
        add_exchange(vhost, "x")
        assert changed()
        vhost.delete_exchange("x", if_unused=False)
        assert changed()
        vhost.delete(queues=[queue])
        assert changed()


class TestCascades:
    def test_the_bindings_of_a_deleted_queue_go_with_it(self, vhost: VirtualHost) -> None:
        queue = add_queue(vhost, "q")
        bind(vhost, "amq.direct", "q")
        bind(vhost, "amq.fanout", "q")
        vhost.delete(queues=[queue])
        assert list(vhost.bindings()) == []
        assert vhost.bindings_to("queue", "q") == []

    def test_an_auto_delete_exchange_goes_with_its_last_binding(self, vhost: VirtualHost) -> None:
        add_exchange(vhost, "x", auto_delete=True)
        queues = [add_queue(vhost, name) for name in ("a", "b")]
        for queue in queues:
            bind(vhost, "x", queue.name)
        vhost.delete(queues=[queues[0]])
        assert names(vhost) == {"x"}
        vhost.delete(queues=[queues[1]])
        assert names(vhost) == set()

    def test_a_binding_as_destination_does_not_keep_an_exchange(self, vhost: VirtualHost) -> None:
        add_exchange(vhost, "x", auto_delete=True)
        bind(vhost, "amq.fanout", "x", kind="exchange")
        binding = bind(vhost, "x", "amq.topic", kind="exchange")
        vhost.unbind(binding, OWNER)
        assert names(vhost) == set()
        assert list(vhost.bindings()) == []

    def test_a_cascade_may_be_longer_than_the_stack(self, vhost: VirtualHost) -> None:
        depth = sys.getrecursionlimit() + 100
        queue = add_queue(vhost, "q")
        for number in range(depth):
            add_exchange(vhost, f"x{number}", auto_delete=True)
            if number:
                bind(vhost, f"x{number}", f"x{number - 1}", kind="exchange")
            else:
                bind(vhost, "x0", "q")
        vhost.delete(queues=[queue])
        assert names(vhost) == set()

    def test_a_circle_of_auto_delete_exchanges_ends(self, vhost: VirtualHost) -> None:
        for name in ("a", "b", "c"):
            add_exchange(vhost, name, auto_delete=True)
        for source, destination in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "a")):
            bind(vhost, source, destination, kind="exchange")
        vhost.delete_exchange("a", if_unused=False)
        assert names(vhost) == set()
        assert list(vhost.bindings()) == []

    def test_an_exchange_in_use_is_not_deleted_if_unused(self, vhost: VirtualHost) -> None:
        add_exchange(vhost, "x")
        bind(vhost, "amq.fanout", "x", kind="exchange")
        add_exchange(vhost, "y")
        bind(vhost, "y", "x", kind="exchange")
        with pytest.raises(PreconditionFailed, match="exchange 'y' in vhost '/' in use"):
            vhost.delete_exchange("y", if_unused=True)
        vhost.delete_exchange("x", if_unused=True)
        assert names(vhost) == {"y"}

    def test_exclusive_queues_end_with_their_connection(self, vhost: VirtualHost) -> None:
        mine, other = object(), object()
        add_queue(vhost, "a", exclusive_owner=mine)
        add_queue(vhost, "b", exclusive_owner=mine)
        add_queue(vhost, "c", exclusive_owner=other)
        bind_all = Binding("amq.fanout", "queue", "a", "", {})
        vhost.bind(bind_all, mine)
        vhost.delete_exclusive_queues(mine)
        vhost.delete_exclusive_queues(mine)
        assert set(vhost.queues) == {"c"}
        assert list(vhost.bindings()) == []

    def test_an_auto_delete_queue_goes_once_with_its_last_consumer(
        self, vhost: VirtualHost
    ) -> None:
        queue = add_queue(vhost, "q", auto_delete=True)
        publish(vhost, "", "q")
        assert "q" in vhost.queues
        takers = [Taker(queue), Taker(queue)]
        for taker in takers:
            queue.add_consumer(taker)
        queue.remove_consumer(takers[0])
        assert "q" in vhost.queues
        queue.remove_consumer(takers[1])
        assert "q" not in vhost.queues and queue.deleted
        assert [taker.was_cancelled for taker in takers] == [0, 0]

    def test_an_unused_queue_expires(self, vhost: VirtualHost, clock: ManualClock) -> None:
        queue = add_queue(vhost, "q", arguments={"x-expires": long(1000)})
        clock.advance(0.9)
        queue.get(True, SOMEBODY)
        clock.advance(0.9)
        publish(vhost, "", "q")
        taker = Taker(queue)
        queue.add_consumer(taker)
        clock.advance(10)
        queue.remove_consumer(taker)
        clock.advance(0.9)
        assert "q" in vhost.queues
        clock.advance(0.1)
        assert "q" not in vhost.queues
        assert not clock.timers

    def test_a_queue_may_be_deleted_in_the_middle_of_a_delivery(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = add_queue(vhost, "q")
        for number in range(5):
            publish(vhost, "", "q", b"%d" % number)
        taker = Taker(queue, then=lambda: len(taker.bodies) == 2 and vhost.delete(queues=[queue]))  # type: ignore[arg-type,return-value]
        queue.add_consumer(taker)
        queue.deliver()
        clock.settle()
        assert taker.bodies == [b"0", b"1"]
        assert taker.was_cancelled == 1
        assert "q" not in vhost.queues and len(queue) == 0

    def test_a_virtual_host_that_stops_cancels_all_consumers(self, vhost: VirtualHost) -> None:
        takers = [Taker(add_queue(vhost, name)) for name in ("a", "b")]
        for taker in takers:
            taker.queue.add_consumer(taker)
        vhost.end()
        assert [taker.was_cancelled for taker in takers] == [1, 1]
        assert not vhost.queues


class TestDurability:
    def test_durable_entities_and_the_bindings_between_them_survive(
        self, vhost: VirtualHost, restarted: Callable[[], VirtualHost]
    ) -> None:
        arguments = {"x-max-length": long(3), "x-odd": Field("A", [Field("V", None), long(1)])}
        add_queue(vhost, "q", durable=True, arguments=arguments)
        add_queue(vhost, "transient")
        alternate = {"alternate-exchange": longstr("amq.fanout")}
        add_exchange(vhost, "x", "topic", durable=True, internal=True, arguments=alternate)
        add_exchange(vhost, "transient")
        kept = [
            bind(vhost, "x", "q", "a.#", arguments={"k": Field("D", (2, 314))}),
            bind(vhost, "amq.direct", "x", kind="exchange"),
            bind(vhost, "amq.direct", "q"),
        ]
        bind(vhost, "x", "transient")
        bind(vhost, "transient", "q")
        again = restarted()
        assert set(again.queues) == {"q"} and names(again) == {"x"}
        assert set(again.bindings()) == set(kept)
        assert again.queues["q"].arguments == arguments
        assert again.queues["q"].settings.max_length == 3
        exchange = again.exchange("x")
        assert (exchange.type, exchange.internal, exchange.durable) == ("topic", True, True)
        assert exchange.alternate == "amq.fanout"

    def test_what_is_deleted_stays_deleted(
        self,
        vhost: VirtualHost,
        store: VolatileMetadataStore,
        restarted: Callable[[], VirtualHost],
    ) -> None:
        queue = add_queue(vhost, "q", durable=True)
        add_exchange(vhost, "x", durable=True)
        add_exchange(vhost, "auto", durable=True, auto_delete=True)
        unbound = bind(vhost, "amq.direct", "q")
        bind(vhost, "x", "q")
        bind(vhost, "auto", "q")
        bind(vhost, "x", "auto", kind="exchange")
        vhost.unbind(unbound, OWNER)
        vhost.delete(queues=[queue])
        assert names(vhost) == {"x"}
        vhost.delete_exchange("x", if_unused=False)
        for kind in ("queue", "exchange", "binding"):
            assert list(store.records((kind,))) == []
        assert names(restarted()) == set()

    def test_a_queue_deleted_with_its_bindings_is_one_transaction(
        self, vhost: VirtualHost, store: VolatileMetadataStore
    ) -> None:
        queue = add_queue(vhost, "q", durable=True)
        bind(vhost, "amq.direct", "q")
        seen: list[int] = []
        store.watch(("queue",), lambda key, record: seen.append(len(list(store.records(())))))
        vhost.delete(queues=[queue])
        assert seen == [1], "only the virtual host is left when the first change is told"

    def test_a_cascade_is_one_transaction(
        self, vhost: VirtualHost, store: VolatileMetadataStore
    ) -> None:
        """A crash must not leave an exchange that only its last binding would have deleted."""
        queue = add_queue(vhost, "q", durable=True)
        add_exchange(vhost, "auto", durable=True, auto_delete=True)
        add_exchange(vhost, "further", durable=True, auto_delete=True)
        bind(vhost, "auto", "q")
        bind(vhost, "further", "auto", kind="exchange")
        seen: list[int] = []
        store.watch(("queue",), lambda key, record: seen.append(len(list(store.records(())))))
        vhost.delete(queues=[queue])
        assert seen == [1]

    def test_an_exchange_of_a_type_nobody_knows_is_left_alone(
        self,
        vhost: VirtualHost,
        store: VolatileMetadataStore,
        restarted: Callable[[], VirtualHost],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        strange = ("exchange", "/", "strange")
        binding = ("binding", "/", "strange", "queue", "q", "", "")
        add_queue(vhost, "q", durable=True)
        store.transact(
            [
                Write(strange, ExchangeRecord("x-from-the-future", False, False, {})),
                Write(binding, BindingRecord({})),
            ]
        )
        again = restarted()
        assert set(again.queues) == {"q"} and names(again) == set()
        assert store.get(strange) is not None and store.get(binding) is not None
        assert "unknown exchange type 'x-from-the-future'" in caplog.text


BURIALS_A_TURN_MAX = TURN_US // BURIAL_US


class TestDeadLetters:
    def test_many_are_buried_in_turns(self, vhost: VirtualHost, clock: ManualClock) -> None:
        graveyard = add_queue(vhost, "graveyard")
        arguments = {
            "x-dead-letter-exchange": longstr(""),
            "x-dead-letter-routing-key": longstr("graveyard"),
            "x-max-length": long(0),
            "x-overflow": longstr("drop-head"),
        }
        queue = add_queue(vhost, "q")
        for number in range(5 * BURIALS_A_TURN_MAX):
            publish(vhost, "", "q", b"%d" % number)
        queue.apply_settings(add_queue(vhost, "like this", arguments=arguments).settings)
        assert len(graveyard) <= BURIALS_A_TURN_MAX
        clock.settle()
        assert len(graveyard) == 5 * BURIALS_A_TURN_MAX
        bodies = [graveyard.get(True, SOMEBODY) for _ in range(3)]
        assert [message.body for message in bodies if message is not None] == [b"0", b"1", b"2"]

    def test_traces_that_die_and_are_delivered_do_not_stop_the_node(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        """Delivery, trace, overflow, dead letter, delivery: without end, but one turn at a time."""
        delivered = add_queue(vhost, "delivered")
        taker = Taker(delivered)
        delivered.add_consumer(taker)
        arguments = {
            "x-max-length": long(0),
            "x-dead-letter-exchange": longstr(""),
            "x-dead-letter-routing-key": longstr("delivered"),
        }
        add_queue(vhost, "traces", arguments=arguments)
        bind(vhost, "amq.rabbitmq.trace", "traces", "deliver.#")
        vhost.observation.trace_with(Firehose(vhost, "node", AmqpContentCodec()))
        publish(vhost, "", "delivered")
        assert len(taker.bodies) <= BURIALS_A_TURN_MAX + 1
        vhost.observation.trace_with(None)
        clock.settle()


class TestEquivalence:
    def test_the_first_difference_is_reported(self, vhost: VirtualHost) -> None:
        add_exchange(vhost, "x", durable=True)
        options: dict[str, Any] = {
            "durable": True, "auto_delete": False, "internal": False, "arguments": {}
        }  # fmt: skip
        exchange = vhost.exchange("x")
        check_exchange_equivalent(exchange, "/", "fanout", **options)
        with pytest.raises(PreconditionFailed) as raised:
            check_exchange_equivalent(exchange, "/", "topic", **(options | {"durable": False}))
        assert raised.value.text == (
            "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current "
            "is 'fanout'"
        )
        arguments = {"alternate-exchange": longstr("y")}
        with pytest.raises(PreconditionFailed, match="the value 'y' of type 'longstr' but current"):
            check_exchange_equivalent(
                exchange, "/", "fanout", **(options | {"arguments": arguments})
            )

    def test_exclusiveness_comes_before_everything_else(self, vhost: VirtualHost) -> None:
        queue = add_queue(vhost, "q", exclusive_owner=OWNER)
        with pytest.raises(ResourceLocked):
            vhost.check_queue_equivalent(
                queue, OWNER, exclusive=False, durable=True, auto_delete=True, arguments={}
            )


def test_queue_that_was_declared_anew_takes_the_place_of_the_one_before(
    vhost: VirtualHost, store: VolatileMetadataStore
) -> None:
    """A node that was cut off hears of the deletion and of the next declaration at once."""
    add_queue(vhost, "q")
    before = vhost.queue("q")
    consumer = Taker(before)
    before.add_consumer(consumer)
    key = ("queue", "/", "q")
    stored = store.get(key)
    assert stored is not None
    store.transact([Write(key, msgspec.structs.replace(stored.record, queue_id=4096))])
    after = vhost.queue("q")
    assert after is not before and after.queue_id == 4096
    assert before.deleted and consumer.was_cancelled == 1


def test_nothing_is_declared_when_definitions_are_not_followed_any_more(
    vhost: VirtualHost, store: VolatileMetadataStore
) -> None:
    """Otherwise a declaration would take the place of one that nobody here has heard of."""
    vhost.stop_following()
    with pytest.raises(NotFound, match="vhost '/' is down"):
        add_queue(vhost, "q")
    assert store.get(("queue", "/", "q")) is None


def test_declaring_a_queue_costs_more_of_a_turn_with_each_of_its_priorities(
    vhost: VirtualHost,
) -> None:
    def cost(name: str, **arguments: Field) -> int:
        before = vhost.turns.left_us
        vhost.declare_queue(
            name, durable=False, exclusive_owner=None, auto_delete=False, arguments=arguments
        )
        return before - vhost.turns.left_us

    many = cost("many", **{"x-max-priority": long(255)})
    assert many - cost("one") == 255 * LEVEL_US
