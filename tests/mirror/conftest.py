"""What the tests of a cluster share: an etcd of their own, and the way to their modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_server import EtcdServer, find_etcd


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that do it no harm; each uses a prefix of its own."""
    find_etcd()
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
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
