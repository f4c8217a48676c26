"""Deletions that take very many auto-delete exchanges along go on in turns, and are exact: what
others do meanwhile comes before the deletion or after it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.core.definitions.records import BindingRecord
from warren.core.ports import Write
from warren.core.scheduling.waiting import run
from warren.core.vhosts.ending import BINDINGS_AT_ONCE, GATHERED_AT_ONCE
from warren.core.vhosts.vhost import PREDECLARED

DEPTH = 6 * GATHERED_AT_ONCE

A_TURN = 2 * BINDINGS_AT_ONCE
"""Exchanges and bindings that may go in one turn."""


@pytest.fixture
def other(broker: Broker) -> Client:
    other = broker.connects()
    other.opens_channel(1)
    other.declares("other")
    return other


def auto_delete_exchange(client: Client, name: str, *leads_to: str) -> None:
    """An exchange that goes when all of these exchanges have gone."""
    client.sends(
        commands.Exchange.Declare,
        exchange=name,
        exchange_type="fanout",
        auto_delete=True,
        durable=True,
        nowait=True,
    )
    for destination in leads_to:
        client.sends(commands.Exchange.Bind, destination=destination, source=name, nowait=True)


def chain(client: Client, depth: int = DEPTH) -> None:
    """A queue with a chain of exchanges that lead to it; x0 is the next one."""
    client.declares("q", durable=True)
    auto_delete_exchange(client, "x0")
    client.sends(commands.Queue.Bind, queue="q", exchange="x0", nowait=True)
    for number in range(1, depth):
        auto_delete_exchange(client, f"x{number}", f"x{number - 1}")
    client.broker.settle()


def fan(client: Client, depth: int = DEPTH) -> None:
    """A queue with many exchanges that lead to it."""
    client.declares("q", durable=True)
    for number in range(depth):
        auto_delete_exchange(client, f"x{number}")
        client.sends(commands.Queue.Bind, queue="q", exchange=f"x{number}", nowait=True)
    client.broker.settle()


def mesh(client: Client) -> None:
    """A queue with exchanges each of which leads to all that are nearer to it."""
    chain(client, 1)
    for number in range(1, 60):
        auto_delete_exchange(client, f"x{number}", *[f"x{one}" for one in range(number)])
    client.broker.settle()


def left(broker: Broker) -> int:
    """Exchanges and bindings there are, without those that are there from the beginning."""
    return len(broker.vhost.exchanges) - len(PREDECLARED) + len(list(broker.vhost.bindings()))


def in_turns(broker: Broker, done: Callable[[], bool]) -> list[int]:
    """How much was left after each turn until it was done. No turn may do much, and none may leave
    an exchange behind that only its last binding would have deleted."""
    lefts = [left(broker)]
    while not done():
        broker.clock.turn()
        lefts.append(left(broker))
        assert lefts[-2] - lefts[-1] <= A_TURN
        for exchange in broker.vhost.exchanges.values():
            assert exchange.bindings or not exchange.auto_delete, exchange
    assert len(lefts) > DEPTH // A_TURN
    return lefts


@pytest.mark.parametrize("shape", [chain, fan, mesh])
def test_a_queue_takes_very_many_exchanges_along_in_turns(
    broker: Broker, client: Client, other: Client, shape: Callable[[Client], None]
) -> None:
    shape(client)
    client.publishes("q", b"1")
    client.publishes("q", b"2")
    client.sends(commands.Queue.Delete, queue="q")
    other.publishes("q", b"3")
    assert left(broker) and "q" in broker.vhost.queues
    in_turns(broker, lambda: "q" not in broker.vhost.queues)
    assert client.receives(commands.Queue.DeleteOk).message_count == 3
    assert left(broker) == 0
    client.receives_nothing()


def test_an_exchange_takes_very_many_others_along_in_turns(broker: Broker, client: Client) -> None:
    chain(client)
    client.sends(commands.Exchange.Delete, exchange="x0")
    in_turns(broker, lambda: "x0" not in broker.vhost.exchanges)
    client.receives(commands.Exchange.DeleteOk)
    assert left(broker) == 0
    assert "q" in broker.vhost.queues


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_binding_takes_very_many_exchanges_along_in_turns(
    broker: Broker, client: Client, vanishes: bool
) -> None:
    chain(client)
    client.sends(commands.Queue.Unbind, queue="q", exchange="x0")
    if vanishes:
        client.pipe.lose()
    in_turns(broker, lambda: "x0" not in broker.vhost.exchanges)
    assert left(broker) == 0
    assert "q" in broker.vhost.queues
    if not vanishes:
        client.receives(commands.Queue.UnbindOk)


def test_exclusive_queues_take_very_many_exchanges_along_in_turns(
    broker: Broker, client: Client
) -> None:
    client.sends(commands.Queue.Declare, queue="q", exclusive=True, nowait=True)
    auto_delete_exchange(client, "x0")
    client.sends(commands.Queue.Bind, queue="q", exchange="x0", nowait=True)
    for lower, upper in pairwise(range(DEPTH)):
        auto_delete_exchange(client, f"x{upper}", f"x{lower}")
    broker.settle()
    client.pipe.lose()
    in_turns(broker, lambda: "q" not in broker.vhost.queues)
    assert left(broker) == 0


def test_who_binds_an_exchange_that_is_about_to_go_waits_until_it_has_gone(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    client.sends(commands.Queue.Delete, queue="q")
    broker.clock.turn()
    middle = f"x{DEPTH // 4}"
    assert middle in broker.vhost.exchanges
    other.sends(commands.Queue.Bind, queue="other", exchange=middle)
    other.receives_close(404)
    client.receives(commands.Queue.DeleteOk)
    assert left(broker) == 0


def test_an_exchange_that_is_bound_before_stays_with_all_that_lead_to_it(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    middle = DEPTH // 4
    broker.node.turns.left_us = -1
    client.sends(commands.Queue.Delete, queue="q")
    # The deletion has not come to this one yet.
    other.sends(commands.Queue.Bind, queue="other", exchange=f"x{middle}")
    other.receives(commands.Queue.BindOk)
    client.receives(commands.Queue.DeleteOk)
    there = set(broker.vhost.exchanges) - {name for name, _, _ in PREDECLARED}
    assert there == {f"x{number}" for number in range(middle, DEPTH)}
    other.publishes("", exchange=f"x{DEPTH - 1}")
    assert len(broker.queue("other")) == 1


def test_what_is_declared_again_meanwhile_is_new_and_stays(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    last = f"x{DEPTH - 1}"
    client.sends(commands.Queue.Delete, queue="q")
    while last in broker.vhost.exchanges:
        broker.clock.turn()
    auto_delete_exchange(other, last)
    other.sends(commands.Queue.Bind, queue="other", exchange=last)
    other.receives(commands.Queue.BindOk)
    client.receives(commands.Queue.DeleteOk)
    assert left(broker) == 2
    other.publishes("", exchange=last)
    assert len(broker.queue("other")) == 1


def test_an_exchange_that_begins_to_lead_there_meanwhile_goes_too(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    client.sends(commands.Queue.Delete, queue="q")
    broker.clock.turn()
    auto_delete_exchange(other, "late", "x0")
    assert "late" in broker.vhost.exchanges
    client.receives(commands.Queue.DeleteOk)
    assert left(broker) == 0


def test_what_another_node_binds_meanwhile_stays(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    client.sends(commands.Queue.Delete, queue="q")
    broker.clock.turn()
    key = ("binding", "/", "x1", "queue", "other", "k", "")
    broker.metadata.transact([Write(key, BindingRecord({}), True)])
    client.receives(commands.Queue.DeleteOk)
    assert list(broker.vhost.exchanges["x1"].bindings) == broker.vhost.bindings_to("queue", "other")
    assert left(broker) == 2


def test_a_deletion_that_is_refused_after_all_brings_everything_back(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    before = left(broker)
    client.sends(commands.Queue.Delete, queue="q", if_empty=True)
    while left(broker) == before:
        broker.clock.turn()
    other.publishes("q", b"1")
    client.receives_close(406)
    assert left(broker) == before
    other.publishes("", b"2", exchange=f"x{DEPTH - 1}")
    assert len(broker.queue("q")) == 2


def test_two_deletions_of_the_same_exchanges_meet(
    broker: Broker, client: Client, other: Client
) -> None:
    chain(client)
    client.sends(commands.Queue.Delete, queue="q")
    broker.clock.turn()
    other.sends(commands.Exchange.Delete, exchange=f"x{DEPTH // 2}")
    client.receives(commands.Queue.DeleteOk)
    other.receives(commands.Exchange.DeleteOk)
    assert left(broker) == 0


def test_a_virtual_host_with_very_many_exchanges_is_deleted_in_turns(
    broker: Broker, client: Client
) -> None:
    for number in range(DEPTH):
        client.sends(
            commands.Exchange.Declare, exchange=f"x{number}", exchange_type="fanout", nowait=True
        )
    for lower, upper in pairwise(range(DEPTH)):
        client.sends(
            commands.Exchange.Bind, destination=f"x{lower}", source=f"x{upper}", nowait=True
        )
    broker.settle()
    vhost = broker.vhost
    run(broker.node.end_vhost("/"), lambda result: result())
    exchanges, bindings = len(vhost.exchanges), len(list(vhost.bindings()))
    while "/" in broker.node.vhosts:
        broker.clock.turn()
        before = exchanges + bindings
        exchanges, bindings = len(vhost.exchanges), len(list(vhost.bindings()))
        assert before - exchanges - bindings <= A_TURN
