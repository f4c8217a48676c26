"""A binding with very many arguments is read, named and stored in turns of their own."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.amqp.field_table import RUN_MAX, TableError, decode_table, encode_table
from warren.core.exchanges import binding
from warren.core.exchanges.binding import MANY_ARGUMENTS
from warren.core.field import Field, Table, has_more_than

MANY = 4 * MANY_ARGUMENTS

FLAT: Table = {f"k{number}": Field("S", b"%d" % number) for number in range(MANY)}
ARRAY: Table = {"k": Field("A", [Field("t", True)] * MANY)}
NESTED: Table = {"k": Field("F", {"k": Field("A", [Field("V", None)] * MANY)})}


@pytest.fixture
def client(broker: Broker) -> Client:
    client = broker.connects(frame_max=131072)
    client.opens_channel(1)
    client.declares("q")
    return client


def binds(client: Client, arguments: Table, routing_key: str = "") -> None:
    client.sends(
        commands.Queue.Bind,
        queue="q",
        exchange="amq.direct",
        routing_key=routing_key,
        arguments=arguments,
    )


@pytest.mark.parametrize("arguments", [FLAT, ARRAY, NESTED], ids=["flat", "array", "nested"])
def test_it_takes_three_turns(
    broker: Broker, client: Client, arguments: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    fingerprint = binding.fingerprint

    def noted(table: Table) -> str:
        named.append(len(table))
        return fingerprint(table)

    monkeypatch.setattr(binding, "fingerprint", noted)
    broker.node.turns.left_us = -1
    binds(client, arguments)
    assert not named
    while not named:
        broker.clock.turn()
    assert not broker.vhost.bindings_to("queue", "q")
    client.receives(commands.Queue.BindOk)
    (made,) = broker.vhost.bindings_to("queue", "q")
    assert made.arguments == arguments


def test_a_queue_that_is_deleted_meanwhile_is_not_found(broker: Broker, client: Client) -> None:
    other = broker.connects()
    other.opens_channel(1)
    broker.node.turns.left_us = -1
    binds(client, FLAT)
    other.sends(commands.Queue.Delete, queue="q")
    other.receives(commands.Queue.DeleteOk)
    client.receives_close(404)


def test_requests_behind_it_wait(broker: Broker, client: Client) -> None:
    broker.node.turns.left_us = -1
    binds(client, FLAT, "large")
    binds(client, {}, "small")
    client.receives(commands.Queue.BindOk)
    client.receives(commands.Queue.BindOk)
    assert [one.routing_key for one in broker.vhost.bindings_to("queue", "q")] == ["large", "small"]


def test_a_client_that_vanishes_meanwhile_leaves_nothing(broker: Broker, client: Client) -> None:
    broker.node.turns.left_us = -1
    binds(client, FLAT)
    client.vanishes()
    assert not broker.vhost.bindings_to("queue", "q")


@pytest.mark.parametrize("table", [FLAT, ARRAY, NESTED], ids=["flat", "array", "nested"])
def test_fields_are_counted_wherever_they_are(table: Table) -> None:
    assert has_more_than(table, MANY - 1)
    assert not has_more_than(table, MANY + 2)


def test_runs_of_items_of_one_type_are_read_as_they_were_written() -> None:
    booleans = [Field("t", number % 3 == 0) for number in range(2 * RUN_MAX + 1)]
    numbers = [Field("s", -number) for number in range(RUN_MAX - 1)]
    mixed = [field for pair in zip(booleans, numbers, strict=False) for field in pair]
    items = [*booleans, Field("V", None), *numbers, *mixed, Field("D", (1, 2)), Field("l", 1 << 40)]
    table = {"a": Field("A", items)}
    assert decode_table(encode_table(table), 0)[0] == table


def test_the_last_item_of_a_run_has_to_be_whole() -> None:
    octets = b"\x01aA" + (3 * RUN_MAX + 2).to_bytes(4, "big") + b"s\x00\x01" * RUN_MAX + b"s\x00"
    with pytest.raises(TableError, match="type s"):
        decode_table(len(octets).to_bytes(4, "big") + octets, 0)
