"""The way to the modules the tests of this folder share, a broker and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import ApiClient
from broker_channel import open_channel
from ctl_node import CtlNode
from pika.adapters.blocking_connection import BlockingChannel

from warren import Broker


@pytest.fixture(scope="module")
def ctl_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtlNode]:
    """A node that the tests of a module share: each uses names of its own."""
    node = CtlNode(tmp_path_factory.mktemp("node"))
    yield node
    node.end()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker in memory, with its HTTP API, that the tests of a module share.

    A module that needs another one has a fixture of this name, which `api` and `channel` use.
    """
    with Broker(http_port=0) as running:
        yield running


@pytest.fixture
def api(broker: Broker) -> ApiClient:
    return ApiClient(broker)


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """With confirms."""
    with open_channel(broker) as channel:
        yield channel


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker(http_port=0) as source, Broker(http_port=0) as target:
        yield source, target


@pytest.fixture
def pair(brokers: tuple[Broker, Broker]) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers without queues."""
    yield brokers
    for broker in brokers:
        for vhost in broker.call(lambda node: [*node.vhosts]):
            broker.delete_vhost(vhost)
        broker.add_vhost("/")
