"""Brokers for tests: fixtures that are a running `warren.Broker`.

`warren_broker` is a new one for each test, `warren_session_broker` one for all tests of a process
(with pytest-xdist: of a worker), `warren_movable_broker` a new one whose clock can be set forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from warren.embedded import Broker


@pytest.fixture
def warren_broker() -> Iterator[Broker]:
    """A fresh broker on a free port, stopped after the test."""
    # Loaded when first used: pytest loads plugins in every run, with or without a broker.
    from warren.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def warren_session_broker() -> Iterator[Broker]:
    """One broker for all tests of this process: what one of them leaves, the next one finds."""
    from warren.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def warren_movable_broker() -> Iterator[Broker]:
    """As `warren_broker`, and `advance` lets hours pass."""
    from warren.embedded import Broker

    with Broker(movable_clock=True) as broker:
        yield broker
