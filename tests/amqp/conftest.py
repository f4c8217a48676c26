"""The in-memory broker, and the way to the modules the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "simulation"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from pipe import Broker, Client  # noqa: E402


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    """A client with channel 1 open."""
    client = broker.connects()
    client.opens_channel(1)
    return client
