"""The limit of connections of a node."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from warren import Broker


def test_a_connection_too_many_is_refused_and_room_is_used_again() -> None:
    with Broker(connection_max=2) as broker:
        parameters = pika.URLParameters(broker.url)
        first, second = (pika.BlockingConnection(parameters) for _ in range(2))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters)
        first.close()
        third = pika.BlockingConnection(parameters)
        third.close()
        second.close()
