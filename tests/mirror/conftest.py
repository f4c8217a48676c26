"""What the tests of a cluster share: an etcd of their own, and the way to their modules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from etcd_server import EtcdServer, find_etcd
from metadata_cluster import Cluster


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that do it no harm; each uses a prefix of its own."""
    find_etcd()
    # It lives as long as all the tests of this process.
    with EtcdServer(tmp_path_factory.mktemp("etcd"), heartbeat_ms=100) as server:
        yield server


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """One etcd to stop, kill and lose."""
    find_etcd()
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/warren/{request.node.nodeid}"


@pytest.fixture
def in_cluster(prefix: str) -> Callable[..., None]:
    """Run a scenario with a cluster on an etcd."""

    def run(server: EtcdServer, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with AsyncExitStack() as stack:
                await scenario(Cluster(prefix, stack, server))

        asyncio.run(whole())

    return run
