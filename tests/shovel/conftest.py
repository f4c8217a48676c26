"""The way to the modules that the tests of this folder share, and two brokers to move between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moving import End

from warren import Broker


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is published again soon."""
    monkeypatch.setattr("warren.shovel.flow.REFUSED_PAUSE_S", 0.02)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker(http_port=0) as source, Broker(http_port=0) as destination:
        yield source, destination


@pytest.fixture
def source(brokers: tuple[Broker, Broker]) -> Iterator[End]:
    """The broker that has the shovel."""
    with End(brokers[0]) as end:
        yield end


@pytest.fixture
def destination(brokers: tuple[Broker, Broker]) -> Iterator[End]:
    with End(brokers[1]) as end:
        yield end
