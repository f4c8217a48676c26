"""The way to the modules the tests of this folder share, and a node on a simulated disk."""

from __future__ import annotations

from random import Random

import pytest
from disk import SimulatedDisk
from stored_queues import Node


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def node(disk: SimulatedDisk) -> Node:
    node = Node(disk)
    node.rest()
    return node
