"""Delayed messages as clients see them: declaration, times, publishes of all kinds, the end."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, Content

from warren.core.field import Field, Table, long, longstr
from warren.core.messages.message import Message
from warren.core.scheduling.waiting import run
from warren.core.vhosts.delay_queue import UNDER_WAY_MAX, DelayQueue
from warren.core.vhosts.vhost import FEW

DIRECT: Table = {"x-delayed-type": longstr("direct")}


def declare(client: Client, name: str = "dx", kind: str = "direct", **more: Any) -> None:
    arguments = {"x-delayed-type": longstr(kind), **more.pop("arguments", {})}
    client.sends(
        commands.Exchange.Declare,
        exchange=name,
        exchange_type="x-delayed-message",
        arguments=arguments,
        **more,
    )
    client.receives(commands.Exchange.DeclareOk)


def bind(client: Client, queue: str = "q", exchange: str = "dx", key: str = "k") -> None:
    client.declares(queue)
    client.sends(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=key)
    client.receives(commands.Queue.BindOk)


def delay(client: Client, body: bytes, delay: Field | int, key: str = "k", **more: Any) -> None:
    field = long(delay) if isinstance(delay, int) else delay
    headers = {"x-delay": field, **more.pop("headers", {})}
    exchange = more.pop("exchange", "dx")
    client.publishes(key, body, exchange=exchange, headers=headers, **more)


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    found = []
    while (content := client.gets(queue, no_ack=True)) is not None:
        found.append(content.body)
    return found


@pytest.fixture
def client(broker: Broker) -> Client:
    client = broker.connects()
    client.opens_channel(1)
    declare(client)
    bind(client)
    return client


class TestDeclaration:
    @pytest.mark.parametrize(
        ("field", "code", "text"),
        [
            (None, 406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
            (long(1), 406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
            (longstr("bogus"), 503, "unknown exchange type 'bogus'"),
            (longstr(""), 503, "invalid exchange type ''"),
            (
                longstr("x-delayed-message"),
                406,
                "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
            ),
        ],
    )
    def test_a_type_that_cannot_route_is_refused(
        self, broker: Broker, field: Field | None, code: int, text: str
    ) -> None:
        client = broker.connects()
        client.opens_channel(1)
        client.sends(
            commands.Exchange.Declare,
            exchange="new",
            exchange_type="x-delayed-message",
            arguments={} if field is None else {"x-delayed-type": field},
        )
        if code == 406:
            assert text in client.receives_close(406).reply_text
        else:
            assert text in client.receives_connection_close(503).reply_text
        assert "new" not in broker.vhost.exchanges
        assert "amq.delayed.new" not in broker.vhost.queues

    @pytest.mark.parametrize("arguments", [{"x-delayed-type": longstr("topic")}, {}])
    def test_to_declare_it_again_with_another_type_that_routes_is_refused(
        self, client: Client, arguments: Table
    ) -> None:
        client.sends(
            commands.Exchange.Declare,
            exchange="dx",
            exchange_type="x-delayed-message",
            arguments=arguments,
        )
        assert "inequivalent arg 'x-delayed-type' for exchange 'dx'" in (
            client.receives_close(406).reply_text
        )

    def test_to_declare_the_same_again_is_no_error(self, client: Client) -> None:
        declare(client)
        declare(client, arguments={"other": long(1)})

    def test_to_declare_it_again_as_another_type_is_refused(self, client: Client) -> None:
        client.sends(commands.Exchange.Declare, exchange="dx", exchange_type="direct")
        assert (
            "inequivalent arg 'type' for exchange 'dx' in vhost '/': received 'direct' but current"
            " is ''x-delayed-message''"
        ) in client.receives_close(406).reply_text

    def test_a_name_without_room_for_its_queue_is_refused(self, client: Client) -> None:
        client.sends(
            commands.Exchange.Declare,
            exchange="x" * 250,
            exchange_type="x-delayed-message",
            arguments=DIRECT,
        )
        assert "may have 243 octets" in client.receives_close(406).reply_text

    def test_deleting_it_deletes_its_queue_and_what_waits(
        self, broker: Broker, client: Client
    ) -> None:
        delay(client, b"1", 1000)
        client.sends(commands.Exchange.Delete, exchange="dx")
        client.receives(commands.Exchange.DeleteOk)
        assert list(broker.vhost.queues) == ["q"]
        declare(client)
        bind(client)
        broker.advance(2)
        assert bodies(client) == []

    def test_an_auto_delete_one_takes_its_queue_with_it(
        self, broker: Broker, client: Client
    ) -> None:
        declare(client, "auto", auto_delete=True)
        bind(client, "other", "auto")
        client.sends(commands.Queue.Delete, queue="other")
        client.receives(commands.Queue.DeleteOk)
        assert "auto" not in broker.vhost.exchanges
        assert "amq.delayed.auto" not in broker.vhost.queues


class TestTime:
    def test_a_message_is_routed_when_its_delay_is_over(
        self, broker: Broker, client: Client
    ) -> None:
        delay(client, b"1", 500)
        broker.advance(0.499)
        assert bodies(client) == []
        broker.advance(0.001)
        content = client.gets("q")
        assert content is not None
        assert (content.body, content.headers) == (b"1", {"x-delay": long(-500)})
        assert (content.method.exchange, content.method.routing_key) == ("dx", "k")
        assert not content.method.redelivered
        assert "x-death" not in content.headers

    def test_order_is_by_due_time_and_then_by_publish(self, broker: Broker, client: Client) -> None:
        for body, ms in ((b"c", 300), (b"a", 100), (b"d", 300), (b"b", 200), (b"now", 0)):
            delay(client, body, ms)
        broker.advance(1)
        assert bodies(client) == [b"now", b"a", b"b", b"c", b"d"]

    @pytest.mark.parametrize(
        "field",
        [long(0), long(-5), long(1 << 32), longstr("abc"), Field("D", (0, 5)), Field("V", None)],
    )
    def test_what_is_no_delay_in_range_is_routed_at_once(
        self, client: Client, field: Field
    ) -> None:
        delay(client, b"1", field)
        assert bodies(client) == [b"1"]

    def test_the_time_to_live_begins_when_the_message_enters_its_queue(
        self, broker: Broker, client: Client
    ) -> None:
        delay(client, b"1", 500, expiration="200")
        broker.advance(0.6)
        assert client.counts("q") == (1, 0)
        broker.advance(0.15)
        assert client.counts("q") == (0, 0)

    def test_ten_thousand_that_are_due_at_once_take_many_turns(
        self, broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(10_000):
            delay(client, b"%d" % number, 500)
        queue = broker.queue("amq.delayed.dx")
        assert isinstance(queue, DelayQueue)
        assert len(queue) == 10_000
        under_way: list[int] = []
        buried = DelayQueue.buried

        def watched(queue: DelayQueue, messages: list[Message]) -> None:
            under_way.append(queue._under_way)
            buried(queue, messages)

        monkeypatch.setattr(DelayQueue, "buried", watched)
        broker.advance(0.5)
        assert max(under_way) <= UNDER_WAY_MAX
        assert len(under_way) > 10
        assert broker.queue("q").backing.length == 10_000
        found = [int(message.body) for message in broker.queue("q").backing.fetch_many(10_000)]
        assert found == list(range(10_000))


class TestRouting:
    @pytest.mark.parametrize(
        ("kind", "key", "published", "headers"),
        [
            ("direct", "a", "a", {}),
            ("fanout", "", "b", {}),
            ("topic", "a.*", "a.b", {}),
            ("x-consistent-hash", "1", "anything", {}),
            ("x-random", "", "anything", {}),
            ("x-modulus-hash", "", "anything", {}),
        ],
    )
    def test_every_type_can_route(
        self, broker: Broker, client: Client, kind: str, key: str, published: str, headers: Table
    ) -> None:
        declare(client, kind, kind)
        bind(client, "to", kind, key)
        delay(client, b"now", 0, published, exchange=kind)
        delay(client, b"later", 10, published, exchange=kind)
        assert bodies(client, "to") == [b"now"]
        broker.advance(1)
        assert bodies(client, "to") == [b"later"]

    def test_headers_can_route(self, broker: Broker, client: Client) -> None:
        declare(client, "hx", "headers")
        client.sends(
            commands.Queue.Bind,
            queue="q",
            exchange="hx",
            routing_key="",
            arguments={"a": longstr("b")},
        )
        client.receives(commands.Queue.BindOk)
        delay(client, b"1", 10, "", exchange="hx", headers={"a": longstr("b")})
        delay(client, b"2", 10, "", exchange="hx", headers={"a": longstr("c")})
        broker.advance(1)
        assert bodies(client) == [b"1"]

    def test_bindings_count_as_they_are_when_it_is_due(
        self, broker: Broker, client: Client
    ) -> None:
        delay(client, b"1", 500)
        client.sends(commands.Queue.Unbind, queue="q", exchange="dx", routing_key="k")
        client.receives(commands.Queue.UnbindOk)
        bind(client, "late")
        broker.advance(1)
        assert (bodies(client), bodies(client, "late")) == ([], [b"1"])

    def test_what_is_unroutable_when_due_is_dropped(self, broker: Broker, client: Client) -> None:
        delay(client, b"1", 500, "nowhere")
        broker.advance(1)
        assert len(broker.queue("amq.delayed.dx")) == 0
        assert bodies(client) == []

    def test_the_alternate_exchange_gets_what_is_unroutable_when_due_once(
        self, broker: Broker, client: Client
    ) -> None:
        declare(client, "alt", arguments={"alternate-exchange": longstr("amq.fanout")})
        bind(client, "other", "amq.fanout")
        bind(client, "q", "alt")
        delay(client, b"routable", 500, exchange="alt")
        delay(client, b"unroutable", 500, "nowhere", exchange="alt")
        assert bodies(client, "other") == []
        broker.advance(1)
        assert (bodies(client), bodies(client, "other")) == ([b"routable"], [b"unroutable"])

    def test_one_delayed_exchange_bound_to_another_delays_once(
        self, broker: Broker, client: Client
    ) -> None:
        declare(client, "first", "fanout")
        client.sends(commands.Exchange.Bind, source="first", destination="dx", routing_key="")
        client.receives(commands.Exchange.BindOk)
        delay(client, b"1", 400, exchange="first")
        broker.advance(0.41)
        content = client.gets("q")
        assert content is not None
        assert content.method.exchange == "first"

    @pytest.mark.parametrize("source", ["amq.fanout", "amq.direct", "amq.topic"])
    def test_an_ordinary_exchange_can_lead_to_a_delayed_one(
        self, broker: Broker, client: Client, source: str
    ) -> None:
        client.sends(commands.Exchange.Bind, source=source, destination="dx", routing_key="k")
        client.receives(commands.Exchange.BindOk)
        delay(client, b"1", 400, exchange=source)
        assert bodies(client) == []
        broker.advance(0.4)
        assert bodies(client) == [b"1"]

    def test_a_dead_letter_with_a_delay_is_delayed(self, broker: Broker, client: Client) -> None:
        client.declares("old", arguments={"x-dead-letter-exchange": longstr("dx"),
                                          "x-dead-letter-routing-key": longstr("k")})  # fmt: skip
        client.publishes("old", b"1", headers={"x-delay": long(300)})
        assert client.gets("old") is not None
        client.nacks(1, requeue=False)
        broker.settle()
        assert bodies(client) == []
        broker.advance(0.3)
        content = client.gets("q")
        assert content is not None
        assert content.headers["x-delay"] == long(-300)
        assert "x-death" in content.headers

    def test_copies_go_by_their_own_keys(self, broker: Broker, client: Client) -> None:
        bind(client, "cc", key="c")
        bind(client, "bcc", key="b")
        more = {"CC": Field("A", [longstr("c")]), "BCC": Field("A", [longstr("b")])}
        delay(client, b"1", 300, headers=more)
        broker.advance(0.3)
        # As in RabbitMQ, BCC counts no more for what the broker publishes itself.
        assert [bodies(client, queue) for queue in ("q", "cc")] == [[b"1"], [b"1"]]


class TestPublisher:
    def test_a_mandatory_message_that_is_delayed_is_not_returned(
        self, broker: Broker, client: Client
    ) -> None:
        delay(client, b"1", 300, "nowhere", mandatory=True)
        client.receives_nothing()

    def test_a_transaction_that_is_rolled_back_undoes_its_publishes(
        self, broker: Broker, client: Client
    ) -> None:
        client.opens_channel(2)
        client.sends(commands.Tx.Select, 2)
        client.receives(commands.Tx.SelectOk)
        delay(client, b"undone", 300, channel=2)
        broker.advance(1)
        client.sends(commands.Tx.Rollback, 2)
        client.receives(commands.Tx.RollbackOk)
        delay(client, b"done", 300, channel=2)
        assert len(broker.queue("amq.delayed.dx")) == 0
        client.sends(commands.Tx.Commit, 2)
        client.receives(commands.Tx.CommitOk)
        assert len(broker.queue("amq.delayed.dx")) == 1
        broker.advance(1)
        assert bodies(client) == [b"done"]


class TestTheQueueBehind:
    QUEUE = "amq.delayed.dx"

    @pytest.mark.parametrize(
        ("method", "more"),
        [
            (commands.Queue.Declare, {"queue": QUEUE, "passive": True}),
            (commands.Queue.Declare, {"queue": QUEUE}),
            (commands.Queue.Purge, {"queue": QUEUE}),
            (commands.Queue.Delete, {"queue": QUEUE}),
            (commands.Queue.Bind, {"queue": QUEUE, "exchange": "dx", "routing_key": "k"}),
            (commands.Basic.Consume, {"queue": QUEUE}),
            (commands.Basic.Get, {"queue": QUEUE}),
        ],
    )
    def test_clients_cannot_use_it(self, client: Client, method: Any, more: Any) -> None:
        delay(client, b"1", 300)
        client.sends(method, **more)
        client.receives_close(403)

    def test_nothing_reaches_it_by_its_name(self, broker: Broker, client: Client) -> None:
        delay(client, b"1", 300, self.QUEUE, exchange="", mandatory=True)
        content: Content = client.receives_content(commands.Basic.Return)
        assert content.body == b"1"
        assert len(broker.queue(self.QUEUE)) == 0

    def test_policies_for_queues_do_not_limit_it(self, broker: Broker, client: Client) -> None:
        limits = {"max-length": 1, "message-ttl": 10, "expires": 1000, "max-length-bytes": 1}
        broker.node.policies.set("/", "p", ".*", limits, 0, "queues")
        for body in (b"1", b"2"):
            delay(client, body, 2000)
        broker.advance(1.9)
        assert len(broker.queue(self.QUEUE)) == 2

    def test_it_does_not_count_towards_the_limit_of_queues(
        self, broker: Broker, client: Client
    ) -> None:
        broker.node.vhost_limits.put("/", "max-queues", 2)
        client.declares("second")
        client.sends(commands.Queue.Declare, queue="third")
        client.receives_close(406)


class TestWithoutItsQueue:
    def test_the_exchange_gets_another_queue_when_its_own_has_ended(
        self, broker: Broker, client: Client
    ) -> None:
        """As where the node that had it is gone for good."""
        broker.vhost.delete(queues=[broker.queue("amq.delayed.dx")])
        broker.settle()
        delay(client, b"1", 300)
        broker.advance(0.3)
        assert bodies(client) == [b"1"]

    def test_a_virtual_host_that_is_deleted_gets_none(self, broker: Broker, client: Client) -> None:
        for number in range(30):
            declare(client, f"dx{number}")
        vhost = broker.vhost
        run(vhost.empty(), lambda result: result())
        broker.settle()
        assert 0 < len(vhost.queues) <= FEW
