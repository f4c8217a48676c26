"""Frames that are many and small, or few and costly to read, are served in turns as well."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame, publish_frames

from warren.amqp.frames import BODY, FRAME_US, HEARTBEAT_FRAME, frame
from warren.core.exchanges.binding import Binding
from warren.core.field import Field, Table, longstr
from warren.core.scheduling.turns import TURN_US

MANY = 2 * TURN_US // FRAME_US


LARGE: Table = {f"k{number}": longstr("v") for number in range(5000)}
"""A table whose decoding takes more than a turn."""


def connected(broker: Broker) -> Client:
    """A client with channel 1 open, that may send large frames."""
    client = broker.connects(frame_max=131072)
    client.opens_channel(1)
    return client


@pytest.fixture
def client(broker: Broker) -> Client:
    return connected(broker)


@pytest.fixture
def other(broker: Broker) -> Client:
    return connected(broker)


def test_a_flood_of_heartbeats_is_read_in_turns(broker: Broker, client: Client) -> None:
    client.declares("q")
    client.sends_octets(HEARTBEAT_FRAME * MANY + publish_frames(1, "", "q", b"x"))
    assert broker.queue("q").published == 0
    broker.settle()
    assert broker.queue("q").published == 1


def test_a_flood_of_frames_of_a_channel_that_closes_is_read_in_turns(
    broker: Broker, client: Client
) -> None:
    client.declares("q")
    client.opens_channel(2)
    client.sends(commands.Queue.Declare, queue="absent", passive=True)
    client.receives(commands.Channel.Close)
    client.sends_octets(frame(BODY, 1, b"x") * MANY + publish_frames(2, "", "q", b"x"))
    assert broker.queue("q").published == 0
    broker.settle()
    assert broker.queue("q").published == 1


def test_a_body_of_very_many_small_frames_is_read_in_turns(broker: Broker, client: Client) -> None:
    client.declares("q")
    whole = publish_frames(1, "", "q", b"x" * MANY)
    begun = whole[: whole.rindex(frame(BODY, 1, b"x" * MANY))]
    client.sends_octets(begun + frame(BODY, 1, b"x") * MANY)
    assert broker.queue("q").published == 0
    broker.settle()
    assert client.gets("q") is not None
    assert broker.queue("q").published == 1


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (commands.Queue.Declare, {"queue": "q", "passive": True, "nowait": True}),
        (commands.Queue.Bind, {"queue": "q", "exchange": "amq.headers", "nowait": True}),
    ],
    ids=lambda value: value.name if isinstance(value, type) else "",
)
def test_methods_with_large_tables_are_served_one_in_a_turn(
    broker: Broker, client: Client, other: Client, kind: Any, arguments: dict[str, Any]
) -> None:
    client.declares("q")
    costly = method_frame(1, kind, **arguments, arguments=LARGE)
    client.sends_octets(costly + publish_frames(1, "", "q", b"x"))
    other.sends_octets(costly + publish_frames(1, "", "q", b"x"))
    assert broker.queue("q").published == 0
    broker.settle()
    assert broker.queue("q").published == 2


def test_a_method_with_a_large_table_waits_for_a_turn_that_is_not_over(
    broker: Broker, client: Client, other: Client
) -> None:
    client.declares("q")
    costly: dict[str, Any] = {"exchange": "x", "exchange_type": "fanout", "nowait": True}
    broker.node.turns.spend(TURN_US)
    client.sends(commands.Exchange.Declare, **costly, arguments=LARGE)
    assert "x" not in broker.vhost.exchanges
    other.publishes("q")
    assert broker.queue("q").published == 1
    broker.settle()
    assert "x" in broker.vhost.exchanges


@pytest.mark.parametrize(
    ("exchange", "headers"),
    [
        ("amq.headers", LARGE),
        ("", {"CC": Field("A", [longstr(f"n{number}") for number in range(2000)])}),
    ],
    ids=["headers exchange", "CC"],
)
def test_publishes_whose_large_headers_are_read_are_served_in_turns(
    broker: Broker, client: Client, exchange: str, headers: Table
) -> None:
    client.declares("q")
    client.sends_octets(
        publish_frames(1, exchange, "n", b"x", headers=headers) + publish_frames(1, "", "q", b"x")
    )
    assert broker.queue("q").published == 0
    broker.settle()
    assert broker.queue("q").published == 1


def test_routes_through_very_many_bindings_are_found_in_turns(
    broker: Broker, client: Client
) -> None:
    names = [f"x{number}" for number in range(100)]
    for name in names:
        client.sends(commands.Exchange.Declare, exchange=name, exchange_type="fanout", nowait=True)
    client.declares("q")
    client.sends(commands.Queue.Bind, queue="q", exchange=names[-1], nowait=True)
    for source in names:
        for destination in names:
            client.sends(
                commands.Exchange.Bind, source=source, destination=destination, nowait=True
            )
    broker.settle()
    client.receives_nothing()
    client.sends_octets(
        b"".join(publish_frames(1, "x0", f"k{number}", b"x") for number in range(20))
    )
    assert broker.queue("q").published < 5
    broker.settle()
    assert broker.queue("q").published == 20


def test_cancels_of_a_queue_with_very_many_consumers_are_served_in_turns(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1000
    client.declares("q")
    for number in range(count):
        client.consumes("q", f"c{number}")
    queue = broker.queue("q")
    with monkeypatch.context() as patch:
        patch.setattr("warren.amqp.connection.METHOD_US", 0)
        patch.setattr("warren.amqp.connection.METHODS_A_TURN", count)
        client.sends_octets(
            b"".join(
                method_frame(1, commands.Basic.Cancel, consumer_tag=f"c{number}", nowait=True)
                for number in range(count)
            )
        )
        assert 0 < len(queue.consumers) < count
        broker.settle()
    assert not list(queue.consumers)


def test_a_publish_with_large_headers_that_are_not_read_does_not_wait(
    broker: Broker, client: Client
) -> None:
    client.declares("q")
    client.publishes("q", b"")
    broker.node.turns.spend(TURN_US)
    client.publishes("q", b"", headers=LARGE)
    assert broker.queue("q").published == 2


def test_a_binding_with_very_many_arguments_is_read_in_one_turn_and_stored_in_another(
    broker: Broker, client: Client
) -> None:
    client.declares("q")
    client.sends(commands.Queue.Bind, queue="q", exchange="amq.headers", arguments=LARGE)
    assert not broker.vhost.bindings_to("queue", "q")
    client.receives(commands.Queue.BindOk)
    (binding,) = broker.vhost.bindings_to("queue", "q")
    assert binding == Binding("amq.headers", "queue", "q", "", LARGE)
