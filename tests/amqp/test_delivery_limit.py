"""basic.qos with `global`: one limit on what all consumers of a channel may hold together."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client

from warren.amqp.delivery_limit import DeliveryLimit
from warren.core.queues.consumers import Blocked


class Waiting:
    """A consumer that the limit holds back, and its queue, which has nothing until it is woken."""

    has_ready = False

    def __init__(self, limit: DeliveryLimit) -> None:
        self.queue = self
        self.blocked = Blocked.CHANNEL_LIMIT
        self.got = 0
        self._limit = limit

    def block(self, reason: int) -> None:
        self.blocked |= reason

    def unblock(self, reason: int) -> bool:
        self.blocked &= ~reason
        return True

    def deliver(self) -> None:
        self.got += 1
        self._limit.count(1)


@pytest.fixture
def other(broker: Broker) -> Client:
    other = broker.connects()
    other.opens_channel(1)
    return other


def limits(client: Client, most: int) -> None:
    client.sends(commands.Basic.Qos, prefetch_count=most, global_=True)
    client.receives(commands.Basic.QosOk)


def test_consumers_are_served_in_turn(client: Client, other: Client) -> None:
    limits(client, 1)
    for name in ("a", "b"):
        client.declares(name)
        client.sends(commands.Basic.Consume, queue=name, consumer_tag=name, nowait=True)
    for number in range(3):
        other.publishes("a", b"a%d" % number)
        other.publishes("b", b"b%d" % number)
    bodies = []
    for tag in range(1, 7):
        bodies += client.receives_bodies()
        client.sends(commands.Basic.Ack, delivery_tag=tag)
    assert bodies == [b"a0", b"a1", b"b0", b"a2", b"b1", b"b2"]


@pytest.mark.parametrize("most", [0, 3, 10])
def test_a_wider_limit_or_none_lets_more_through(client: Client, other: Client, most: int) -> None:
    client.declares("q")
    for number in range(5):
        other.publishes("q", b"%d" % number)
    limits(client, 2)
    client.consumes("q")
    assert client.receives_bodies() == [b"0", b"1"]
    client.sends(commands.Basic.Qos, prefetch_count=most, global_=True)
    client.receives(commands.Basic.QosOk)
    assert client.receives_bodies() == [b"%d" % number for number in range(2, min(most or 5, 5))]


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
def test_a_consumer_that_has_gone_is_forgotten(broker: Broker, client: Client, how: str) -> None:
    limits(client, 10)
    for number in range(3):
        name = f"q{number}"
        client.sends(commands.Queue.Declare, queue=name, nowait=True)
        client.sends(commands.Basic.Consume, queue=name, consumer_tag=name, nowait=True)
        if how == "cancelled":
            client.sends(commands.Basic.Cancel, consumer_tag=name, nowait=True)
        else:
            client.sends(commands.Queue.Delete, queue=name, nowait=True)
    broker.settle()
    limit = client.connection.channels[1].limit
    assert limit is not None
    assert not limit._served and not limit._held


def test_those_that_are_woken_stop_when_one_of_them_reaches_the_limit(broker: Broker) -> None:
    limit = DeliveryLimit(2, 2, (), broker.node.turns)
    consumers = [Waiting(limit) for _ in range(3)]
    for consumer in consumers:
        limit.add(consumer)
    limit.settled(1)
    assert [bool(consumer.blocked) for consumer in consumers] == [True, True, True]
    assert [consumer.got for consumer in consumers] == [1, 0, 0]
