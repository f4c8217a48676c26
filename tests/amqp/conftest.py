"""The in-memory broker, and the way to the modules the tests of this folder share."""

from __future__ import annotations

import pytest
from pipe import Broker, Client


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    """A client with channel 1 open."""
    client = broker.connects()
    client.opens_channel(1)
    return client
