"""Definitions of a cluster, over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from etcd_server import EtcdServer, until
from metadata_contract import MetadataContract, Opened

from warren.mirror.cluster_metadata import ClusterMetadata
from warren.mirror.etcd import EtcdClient


class TestContract(MetadataContract):
    @pytest.fixture
    def opened(self, shared_etcd: EtcdServer, prefix: str) -> Iterator[Opened]:
        with asyncio.Runner() as runner:

            async def start() -> tuple[EtcdClient, ClusterMetadata]:
                etcd = EtcdClient([shared_etcd.url])
                return etcd, await ClusterMetadata.open(etcd, prefix, "node")

            async def settle() -> None:
                await until(lambda: store.uncommitted() is None)

            async def stop() -> None:
                await store.aclose()
                await etcd.close()

            etcd, store = runner.run(start())
            yield Opened(store, lambda: runner.run(settle()))
            runner.run(stop())
