"""Very many consumers leave their queues, or are told that their queue is gone, in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.amqp.leaving import LEFT_AT_ONCE
from warren.core.queues.classic_queue import DELIVERY_SLICE
from warren.core.queues.subscriptions import CANCELLED_AT_ONCE
from warren.core.scheduling.turns import TURN_US

MANY = 12 * LEFT_AT_ONCE

A_TURN = 5 * LEFT_AT_ONCE
"""Consumers that may leave in one turn."""


@pytest.fixture
def other(broker: Broker) -> Client:
    other = broker.connects()
    other.opens_channel(1)
    return other


def consume_many(client: Client, *, no_ack: bool = False, exclusive: bool = False) -> None:
    """Very many queues, with a consumer of each."""
    for number in range(MANY):
        name = f"q{number}"
        client.sends(commands.Queue.Declare, queue=name, exclusive=exclusive, nowait=True)
        client.sends(
            commands.Basic.Consume, queue=name, consumer_tag=name, no_ack=no_ack, nowait=True
        )
    client.broker.settle()


def consume_often(client: Client) -> None:
    """Very many consumers of one queue."""
    client.declares("q")
    for number in range(MANY):
        client.sends(commands.Basic.Consume, queue="q", consumer_tag=f"c{number}", nowait=True)
    client.broker.settle()


def served(broker: Broker) -> int:
    """How many consumers there are, in all queues."""
    return sum(len(queue.consumers) for queue in broker.vhost.queues.values())


def in_turns(broker: Broker, left: Callable[[], int]) -> list[int]:
    """How many were left after each turn, until none was."""
    lefts = [left()]
    while lefts[-1]:
        broker.clock.turn()
        lefts.append(left())
        assert lefts[-2] - lefts[-1] <= A_TURN
    return lefts


def close(client: Client) -> None:
    ids = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}
    client.sends(commands.Channel.Close, **ids)


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_consumers_of_a_connection_leave_very_many_queues_in_turns(
    broker: Broker, client: Client, exclusive: bool
) -> None:
    consume_many(client, exclusive=exclusive)
    client.pipe.ended = True
    broker.node.turns.left_us = TURN_US
    client.connection.connection_lost()
    assert MANY - A_TURN <= served(broker) < MANY
    in_turns(broker, lambda: served(broker))
    broker.settle()
    assert bool(broker.vhost.queues) is not exclusive
    assert not broker.node.giving_back


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_reaches_a_consumer_that_has_not_left_yet_comes_back(
    broker: Broker, client: Client, other: Client, no_ack: bool
) -> None:
    consume_many(client, no_ack=no_ack)
    close(client)
    waiting = [name for name, queue in broker.vhost.queues.items() if queue.consumers]
    assert waiting
    for name in waiting:
        other.publishes(name, b"1")
        other.publishes(name, b"2")
    client.receives(commands.Channel.CloseOk)
    client.receives_nothing()
    assert not broker.node.giving_back
    for name in waiting:
        assert (len(broker.queue(name)), broker.queue(name).unacked) == (2, 0)
    other.consumes(waiting[-1], no_ack=True)
    assert other.receives_bodies() == [b"1", b"2"]


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_backlog_stays_in_the_queue_while_its_consumer_leaves(
    broker: Broker, client: Client, other: Client, no_ack: bool
) -> None:
    consume_many(client, no_ack=no_ack)
    client.connection.writable(False)
    bodies = [b"%d" % number for number in range(3 * DELIVERY_SLICE)]
    for body in bodies:
        other.publishes("q0", body)
    broker.settle()
    client.connection.writable(True)
    close(client)
    assert broker.queue("q0").consumers
    assert len(broker.queue("q0")) == 2 * DELIVERY_SLICE
    assert client.frames()[-1].method.name == "Channel.CloseOk"
    other.consumes("q0", no_ack=True)
    assert other.receives_bodies() == bodies[DELIVERY_SLICE if no_ack else 0 :]


def test_a_channel_is_closed_when_all_its_consumers_have_left(
    broker: Broker, client: Client, other: Client
) -> None:
    consume_many(client, no_ack=True)
    close(client)
    assert served(broker)
    other.publishes("q0", b"1")
    client.receives(commands.Channel.CloseOk)
    assert not served(broker)
    client.opens_channel(1)
    other.publishes("q0", b"2")
    client.receives_nothing()
    assert len(broker.queue("q0")) == 2


def test_a_consumer_leaves_a_queue_that_moves_meanwhile(broker: Broker, client: Client) -> None:
    consume_many(client)
    close(client)
    queue = next(queue for queue in broker.vhost.queues.values() if queue.consumers)
    broker.vhost._placement.move_in = lambda queue, moving: queue.move_in(moving.consumers)
    broker.vhost.renew_queue(queue)
    assert broker.queue(queue.name) is not queue
    client.receives(commands.Channel.CloseOk)
    assert not served(broker)


def test_a_queue_that_is_deleted_meanwhile_says_nothing_to_consumers_that_leave(
    broker: Broker, client: Client, other: Client
) -> None:
    consume_many(client)
    close(client)
    queue = next(queue for queue in broker.vhost.queues.values() if queue.consumers)
    other.sends(commands.Queue.Delete, queue=queue.name)
    other.receives(commands.Queue.DeleteOk)
    client.receives(commands.Channel.CloseOk)
    client.receives_nothing()


def test_very_many_consumers_are_told_in_turns_that_their_queue_is_gone(
    broker: Broker, client: Client, other: Client
) -> None:
    consume_often(client)
    consumers = client.connection.channels[1].consumers
    other.sends(commands.Queue.Delete, queue="q")
    assert MANY - A_TURN <= len(consumers) < MANY
    in_turns(broker, lambda: len(consumers))
    other.receives(commands.Queue.DeleteOk)
    tags = [client.receives(commands.Basic.Cancel).consumer_tag for _ in range(MANY)]
    assert tags == [f"c{number}" for number in range(MANY)]
    client.receives_nothing()


def test_who_deletes_the_queue_hears_of_that_first(broker: Broker, client: Client) -> None:
    consume_often(client)
    client.sends(commands.Queue.Delete, queue="q")
    client.receives(commands.Queue.DeleteOk)
    for _ in range(MANY):
        client.receives(commands.Basic.Cancel)
    client.receives_nothing()


def test_a_new_queue_of_the_name_has_none_of_the_old_consumers(
    broker: Broker, client: Client, other: Client
) -> None:
    consume_often(client)
    other.sends(commands.Queue.Delete, queue="q")
    other.sends(commands.Queue.Declare, queue="q", nowait=True)
    other.publishes("q", b"new")
    assert len(client.connection.channels[1].consumers) > CANCELLED_AT_ONCE
    broker.settle()
    assert len(broker.queue("q")) == 1


@pytest.mark.parametrize("what", ["cancel", "close", "vanish"])
def test_a_consumer_that_goes_before_it_is_told_is_not_told(
    broker: Broker, client: Client, other: Client, what: str
) -> None:
    consume_often(client)
    last = f"c{MANY - 1}"
    other.sends(commands.Queue.Delete, queue="q")
    assert last in client.connection.channels[1].consumers
    if what == "cancel":
        client.sends(commands.Basic.Cancel, consumer_tag=last)
        broker.settle()
        told = [f.method for f in client.frames()]
        assert last not in [m.consumer_tag for m in told if isinstance(m, commands.Basic.Cancel)]
        assert [m.consumer_tag for m in told if isinstance(m, commands.Basic.CancelOk)] == [last]
    elif what == "close":
        close(client)
        broker.settle()
        assert client.frames()[-1].method.name == "Channel.CloseOk"
    else:
        client.vanishes()
    other.receives(commands.Queue.DeleteOk)
