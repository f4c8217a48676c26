"""Many connections at once: those that end, and those that have sent much, take turns."""

from __future__ import annotations

from typing import cast

from pipe import Broker

from warren.amqp.connection import READ_US
from warren.amqp.server import AmqpListener, AmqpProtocol
from warren.core.scheduling.turns import TURN_US


class FakeListener:
    """Knows which protocols have not ended."""

    def __init__(self) -> None:
        self.left: set[AmqpProtocol] = set()

    def forget(self, protocol: AmqpProtocol) -> None:
        self.left.discard(protocol)


def test_connections_that_wait_for_a_turn_go_on_a_few_at_a_time(broker: Broker) -> None:
    connections = [broker.connects().connection for _ in range(20)]
    for connection in connections:
        connection.wait_for_turn()
    broker.node.turns._begin()
    waiting = sum("work" in connection._pauses for connection in connections)
    assert waiting == len(connections) - TURN_US // READ_US
    broker.settle()
    assert not any("work" in connection._pauses for connection in connections)


def test_connections_that_are_lost_together_end_in_turns(broker: Broker) -> None:
    listener = FakeListener()
    count = 20
    broker.node.turns.left_us = TURN_US
    for _ in range(count):
        protocol = AmqpProtocol(cast(AmqpListener, listener), False)
        protocol._connection = broker.connects().connection
        listener.left.add(protocol)
    broker.node.turns.left_us = TURN_US
    for protocol in list(listener.left):
        protocol.connection_lost(None)
    assert 0 < len(listener.left) < count
    broker.settle()
    assert not listener.left
    assert not broker.node.clients
