"""Thousands of channels on a connection are listed and sampled in many turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from api_client import ApiClient
from bulk_client import BulkClient, method
from server_process import PATIENCE_S

from warren import Broker
from warren.amqp.channel import Channel
from warren.mgmt.http import slices
from warren.mgmt.statistics.sampler import Statistics

CHANNELS = 2040
AT_ONCE_MAX = 600

OPEN, OPEN_OK = (20, 10), (20, 11)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Three connections have as many channels as they may, which are sampled."""
    with Broker(http_port=0, stats_interval_ms=100) as broker:
        clients = [BulkClient(broker.port).open() for _ in range(3)]
        for client in clients:
            numbers = range(2, CHANNELS + 1)
            client.send(b"".join(method(*OPEN, b"\0", channel=number) for number in numbers))
            for _ in numbers:
                client.expect(OPEN_OK)
        yield broker
        for client in clients:
            client.close()


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until a sample was taken that has begun after the call."""
    begun, ended = [0], [0]
    sample = Statistics.sample

    async def counted(statistics: Statistics) -> None:
        begun[0] = number = begun[0] + 1
        await sample(statistics)
        ended[0] = number

    monkeypatch.setattr(Statistics, "sample", counted)

    def wait() -> None:
        first, patience = begun[0] + 1, time.monotonic() + PATIENCE_S
        while ended[0] < first:
            assert time.monotonic() < patience
            time.sleep(0.01)

    return wait


@pytest.fixture
def most_at_once(
    broker: Broker, sampled: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], int]]:
    """How many channels were looked at in one turn of the loop, at most."""
    sampled()
    looked_at, over = [0], []
    stats = Channel.stats

    def counted(channel: Channel) -> object:
        looked_at[-1] += 1
        return stats(channel)

    def turn() -> None:
        looked_at.append(0)
        if not over:
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(Channel, "stats", counted)
    broker.call(lambda node: turn())
    yield lambda: max(looked_at)
    over.append(True)


@pytest.mark.parametrize(
    "path",
    ["/overview", "/channels?page=2&page_size=500&sort=name", "/vhosts", "/nodes", "/vhosts/%2F"],
)
def test_the_api_looks_at_some_hundred_channels_in_a_turn(
    broker: Broker, most_at_once: Callable[[], int], path: str
) -> None:
    status, _ = ApiClient(broker).get(path)
    assert status == 200
    assert most_at_once() <= AT_ONCE_MAX


def test_samples_look_at_some_hundred_channels_in_a_turn(
    sampled: Callable[[], None], most_at_once: Callable[[], int]
) -> None:
    sampled()
    assert 0 < most_at_once() <= AT_ONCE_MAX


def test_channels_are_in_the_order_of_a_column_that_is_made_of_their_rows(broker: Broker) -> None:
    api = ApiClient(broker)
    _, page = api.get("/channels?page=2&page_size=500&sort=name")
    names = sorted(row["name"] for row in api.get("/channels?columns=name")[1])
    assert [row["name"] for row in page["items"]] == names[500:1000]
