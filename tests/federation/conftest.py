"""The way to the modules that the tests of this folder share, and brokers to federate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from federating import Side

from warren import Broker


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is published again soon."""
    monkeypatch.setattr("warren.shovel.flow.REFUSED_PAUSE_S", 0.02)


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Broker]]:
    """Three, each of which is a cluster of its own name."""
    with ExitStack() as running:
        yield [
            running.enter_context(Broker(http_port=0, cluster_name=name))
            for name in ("one", "two", "three")
        ]


@pytest.fixture
def sides(brokers: list[Broker]) -> Iterator[list[Side]]:
    with ExitStack() as entered:
        yield [entered.enter_context(Side(broker)) for broker in brokers]


@pytest.fixture
def up(sides: list[Side]) -> Side:
    return sides[0]


@pytest.fixture
def down(sides: list[Side]) -> Side:
    return sides[1]
