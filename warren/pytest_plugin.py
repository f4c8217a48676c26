"""A broker for tests: the fixture `warren_broker` is a running `warren.Broker`."""

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
