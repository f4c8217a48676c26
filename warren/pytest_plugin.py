"""Brokers for tests: fixtures that provide a running `warren.Broker`.

`warren_broker` is a new one for each test, `warren_session_broker` one for all tests of a process
(with pytest-xdist: of a worker), `warren_movable_broker` a new one whose clock can be set forward,
`warren_durable_broker` a new one that keeps what is durable when it is restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from warren.embedded import Broker


@pytest.fixture
def warren_broker() -> Iterator[Broker]:
    """A fresh broker on a free port, stopped after the test."""
    # Imported on first use: pytest loads plugins in every run, with or without a broker.
    from warren.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def warren_session_broker() -> Iterator[Broker]:
    """One broker for all tests of this process: queues and messages of one test are there in the
    next."""
    from warren.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def warren_movable_broker() -> Iterator[Broker]:
    """Like `warren_broker`, with an `advance` that sets its clock forward."""
    from warren.embedded import Broker

    with Broker(movable_clock=True) as broker:
        yield broker


@pytest.fixture
def warren_durable_broker(tmp_path: Path) -> Iterator[Broker]:
    """Like `warren_broker`, with a data directory: after `restart` it has what is durable."""
    from warren.embedded import Broker

    with Broker(data_dir=tmp_path / "warren-data") as broker:
        yield broker
