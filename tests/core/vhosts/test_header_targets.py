"""The queues behind sets of bindings of a headers exchange: kept while nothing changes."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, publish_frames

from warren.core.exchanges.exchange import HeadersExchange
from warren.core.field import Table, long, longstr
from warren.core.scheduling.turns import TURN_US
from warren.core.vhosts.header_targets import HeaderTargets

RED, BLUE = {"colour": longstr("red")}, {"colour": longstr("blue")}


@pytest.fixture
def client() -> Client:
    client = Broker().connects()
    client.opens_channel(1)
    for queue, arguments in (("r", RED), ("b", BLUE), ("all", {})):
        client.declares(queue)
        bind(client, queue, arguments)
    return client


def bind(client: Client, destination: str, arguments: Table, kind: str = "queue") -> None:
    if kind == "queue":
        client.sends(
            commands.Queue.Bind, queue=destination, exchange="amq.headers", arguments=arguments
        )
        client.receives(commands.Queue.BindOk)
    else:
        client.sends(
            commands.Exchange.Bind,
            destination=destination,
            source="amq.headers",
            arguments=arguments,
        )
        client.receives(commands.Exchange.BindOk)


def targets_of(client: Client) -> HeaderTargets:
    vhost = client.broker.vhost
    exchange = vhost.exchange("amq.headers")
    assert isinstance(exchange, HeadersExchange)
    return HeaderTargets(exchange, vhost.queues_for, vhost.codec, vhost.turns)


def header_with(client: Client, table: Table) -> bytes:
    return client.broker.vhost.codec.content_header(1, table)


def names_of(client: Client, targets: HeaderTargets, table: Table) -> list[str]:
    return [queue.name for queue in targets.queues(header_with(client, table))]


def test_messages_with_other_headers_for_the_same_bindings_get_the_same_object(
    client: Client,
) -> None:
    targets = targets_of(client)
    first, second = (header_with(client, {**RED, "n": long(n)}) for n in (1, 2))
    assert targets.queues(first) is targets.queues(second)
    assert names_of(client, targets, RED) == ["r", "all"]
    assert names_of(client, targets, BLUE) == ["b", "all"]
    assert names_of(client, targets, {}) == ["all"]


def test_a_binding_to_an_exchange_is_left_to_the_general_way(client: Client) -> None:
    bind(client, "amq.fanout", RED, "exchange")
    targets = targets_of(client)
    assert names_of(client, targets, RED) == []
    assert names_of(client, targets, BLUE) == ["b", "all"]


def test_what_costs_much_is_left_for_another_turn(client: Client) -> None:
    targets, turns = targets_of(client), client.broker.vhost.turns
    turns.spend(turns.left_us + 2 * TURN_US)
    assert names_of(client, targets, RED) == []


def test_publishes_follow_a_binding_that_comes_and_goes(client: Client) -> None:
    def publishes() -> None:
        client.sends_octets(
            b"".join(
                publish_frames(1, "amq.headers", "", b"x", headers=table)
                for table in (RED, RED, BLUE)
            )
        )

    publishes()
    client.declares("late")
    bind(client, "late", RED)
    publishes()
    client.sends(commands.Queue.Unbind, queue="r", exchange="amq.headers", arguments=RED)
    client.receives(commands.Queue.UnbindOk)
    publishes()
    counts = {name: client.counts(name)[0] for name in ("r", "b", "all", "late")}
    assert counts == {"r": 4, "b": 3, "all": 9, "late": 4}


def test_many_publishes_of_one_read_are_handed_over_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are served as publishes to other exchanges are, not one by one."""
    taken: list[int] = []
    queue = client.broker.queue("r")
    publish_many = type(queue).publish_many
    monkeypatch.setattr(
        type(queue),
        "publish_many",
        lambda self, envelopes, *rest: (
            taken.append(len(envelopes)) or publish_many(self, envelopes, *rest)
        ),
    )
    client.sends_octets(
        b"".join(
            publish_frames(1, "amq.headers", "", b"x", headers={**RED, "n": long(number)})
            for number in range(100)
        )
    )
    assert taken == [100, 100]
    assert client.counts("r")[0] == 100
