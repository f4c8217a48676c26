"""Exchanges of type x-recent-history, where RabbitMQ does otherwise or no client can see it.

What both brokers do alike is in compat_tests/test_recent_history.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.core.exchanges import topic
from warren.core.field import Field, Table, long, longstr


def declare(client: Client, name: str = "h", **more: Any) -> None:
    client.sends(
        commands.Exchange.Declare,
        exchange=name,
        exchange_type=more.pop("kind", "x-recent-history"),
        **more,
    )
    client.receives(commands.Exchange.DeclareOk)


def bind(client: Client, queue: str = "q", exchange: str = "h") -> None:
    client.declares(queue)
    client.sends(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key="")
    client.receives(commands.Queue.BindOk)


def bind_exchange(client: Client, destination: str, source: str) -> None:
    client.sends(commands.Exchange.Bind, destination=destination, source=source, routing_key="")
    client.receives(commands.Exchange.BindOk)


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
    return client


def test_a_rolled_back_publish_is_not_kept(client: Client) -> None:
    client.opens_channel(2)
    client.sends(commands.Tx.Select, channel=2)
    client.receives(commands.Tx.SelectOk)
    client.publishes("k", b"undone", exchange="h", channel=2)
    client.sends(commands.Tx.Rollback, channel=2)
    client.receives(commands.Tx.RollbackOk)
    client.publishes("k", b"done", exchange="h", channel=2)
    bind(client, "before")
    client.sends(commands.Tx.Commit, channel=2)
    client.receives(commands.Tx.CommitOk)
    bind(client, "after")
    assert (bodies(client, "before"), bodies(client, "after")) == ([], [b"done"])


def test_an_exchange_gets_the_history_in_order(client: Client) -> None:
    declare(client, "f", kind="fanout")
    bind(client, exchange="f")
    for body in (b"1", b"2"):
        client.publishes("k", body, exchange="h")
    bind_exchange(client, "f", "h")
    assert bodies(client) == [b"1", b"2"]


def test_another_history_takes_it_over(client: Client) -> None:
    declare(client, "second")
    client.publishes("k", b"m", exchange="h")
    bind_exchange(client, "second", "h")
    bind(client, exchange="second")
    assert bodies(client) == [b"m"]


def test_exchanges_in_a_circle_do_not_keep_it_again(client: Client) -> None:
    declare(client, "second")
    bind_exchange(client, "h", "second")
    client.publishes("k", b"m", exchange="h")
    bind_exchange(client, "second", "h")
    bind(client)
    assert bodies(client) == [b"m"]


@pytest.mark.parametrize("keys", [("first", None), ("none", ["first"])])
def test_carbon_copies_may_lead_to_it(client: Client, keys: tuple[str, list[str] | None]) -> None:
    declare(client, "direct", kind="direct")
    client.sends(commands.Exchange.Bind, destination="h", source="direct", routing_key="first")
    client.receives(commands.Exchange.BindOk)
    key, copies = keys
    headers: Table = {} if copies is None else {"CC": _array(copies)}
    client.publishes(key, b"m", exchange="direct", headers=headers)
    bind(client)
    assert bodies(client) == [b"m"]


def _array(texts: list[str]) -> Field:
    return Field("A", [longstr(text) for text in texts])


def test_a_publish_that_a_quota_refuses_is_not_kept(broker: Broker, client: Client) -> None:
    bind(client)
    broker.node.vhost_limits.put("/", "max-queue-messages", 1)
    client.publishes("k", b"1", exchange="h")
    client.publishes("k", b"2", exchange="h")
    client.receives_close(406)
    broker.node.vhost_limits.clear("/")
    client.opens_channel(1)
    bind(client, "late")
    assert bodies(client, "late") == [b"1"]


def test_a_history_for_which_a_quota_has_no_room_is_not_sent(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"1", b"2"):
        client.publishes("k", body, exchange="h")
    broker.node.vhost_limits.put("/", "max-queue-messages", 1)
    bind(client)
    assert bodies(client) == []
    assert "message limit (1) of queues in vhost '/' is reached" in caplog.text
    client.publishes("k", b"3", exchange="h")
    assert bodies(client) == [b"3"]


def test_its_dead_letters_and_delayed_messages_are_kept_once(
    broker: Broker, client: Client
) -> None:
    client.declares("dying", arguments={"x-dead-letter-exchange": longstr("h")})
    client.publishes("dying", b"dead", expiration="10")
    delayed = {"x-delayed-type": longstr("fanout")}
    declare(client, "later", kind="x-delayed-message", arguments=delayed)
    bind_exchange(client, "h", "later")
    client.publishes("k", b"delayed", exchange="later", headers={"x-delay": long(20)})
    broker.advance(1)
    bind(client)
    assert bodies(client) == [b"dead", b"delayed"]


def test_dead_letters_that_must_arrive_are_kept_when_they_do(
    broker: Broker, client: Client
) -> None:
    arguments = {
        "x-queue-type": longstr("quorum"),
        "x-dead-letter-exchange": longstr("h"),
        "x-dead-letter-strategy": longstr("at-least-once"),
        "x-overflow": longstr("reject-publish"),
    }
    client.declares("dying", durable=True, arguments=arguments)
    client.publishes("dying", b"m", expiration="10")
    broker.advance(60)
    bind(client, "first")
    assert bodies(client, "first") == []
    broker.advance(600)
    assert bodies(client, "first") == [b"m"]
    bind(client, "second")
    assert bodies(client, "second") == [b"m"]


def test_it_cannot_route_for_a_delayed_exchange(client: Client) -> None:
    client.sends(
        commands.Exchange.Declare,
        exchange="dx",
        exchange_type="x-delayed-message",
        arguments={"x-delayed-type": longstr("x-recent-history")},
    )
    close = client.receives_close(406)
    assert close.reply_text.endswith("'x-recent-history' can't be used for 'x-delayed-type'")


def test_a_history_goes_where_bindings_are_found_in_turns(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    client.declares("q")
    for pattern in ("#.a", "b.#.a"):
        client.sends(
            commands.Queue.Bind, queue="q", exchange="amq.topic", routing_key=pattern, nowait=True
        )
    for number in range(3):
        client.publishes("b.c.a", b"%d" % number, exchange="h")
    broker.settle()
    bind_exchange(client, "amq.topic", "h")
    broker.settle()
    assert bodies(client) == [b"0", b"1", b"2"]


def test_what_is_committed_is_kept_though_the_way_to_a_history_takes_turns(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    client.sends(
        commands.Exchange.Bind,
        destination="h",
        source="amq.topic",
        routing_key="#.a",
        nowait=True,
    )
    client.opens_channel(2)
    client.sends(commands.Tx.Select, channel=2)
    client.receives(commands.Tx.SelectOk)
    client.publishes("b.a", b"x", exchange="amq.topic", channel=2)
    broker.settle()
    # A new binding: what was found before counts no more.
    client.declares("other")
    client.sends(
        commands.Queue.Bind, queue="other", exchange="amq.topic", routing_key="c", nowait=True
    )
    client.sends(commands.Tx.Commit, channel=2)
    client.receives(commands.Tx.CommitOk)
    broker.settle()
    bind(client)
    broker.settle()
    assert bodies(client) == [b"x"]
