"""Nodes that share the definitions of one etcd."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from etcd_server import PATIENCE_S, EtcdServer, until

from warren.core.definitions.definition_table import Change
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.codec import Keys
from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.etcd_messages import Txn, put
from warren.mirror.definitions.history import DefinitionHistory


class Cluster:
    """Stores over one etcd, each with a client of its own, closed in the end."""

    def __init__(self, prefix: str, stack: AsyncExitStack, server: EtcdServer) -> None:
        self.prefix = prefix
        self.server = server
        self.stack = stack

    def client(self, *urls: str, **options: Any) -> EtcdClient:
        etcd = EtcdClient(urls or [self.server.url], **{"request_timeout_s": 1.0, **options})
        self.stack.push_async_callback(etcd.close)
        return etcd

    async def open(self, node: str, *urls: str, **options: Any) -> ClusterMetadata:
        options = {"check_interval_s": 0.2, "attempt_pause_s": 0.05, **options}
        store = await ClusterMetadata.open(self.client(*urls), self.prefix, node, **options)
        self.stack.push_async_callback(store.aclose, 0.0)
        return store

    async def proxy(self, seed: int = 0) -> CuttingProxy:
        return await self.stack.enter_async_context(CuttingProxy(self.server.port, seed))

    async def compact(self) -> None:
        """Make etcd forget all but the newest state: for an etcd that no other test uses."""
        etcd = self.client()
        now = (await etcd.txn(Txn(success=[put(b"/any", b"")]))).header.revision
        await etcd._call("/v3/kv/compaction", {"revision": now, "physical": True}, dict)

    async def history(self) -> list[list[Change]]:
        """All that ever happened to the definitions, as a client that was never cut off sees it."""
        reader = DefinitionHistory(self.client(), Keys(self.prefix))
        until_revision = (await reader.progress()).changed_at
        history: list[list[Change]] = []
        async with reader.after(0) as stream:
            while True:
                for revision in await stream.next_revisions():
                    history.append(revision.changes)
                    if revision.number >= until_revision:
                        return history


async def done(commit: Any) -> None:
    await until(lambda: commit.done)


async def settled(*stores: ClusterMetadata, patience_s: float = PATIENCE_S) -> None:
    """All is decided, and all stores have come equally far."""
    await until(lambda: all(store.uncommitted() is None for store in stores), patience_s)
    await until(lambda: len({store.revision for store in stores}) == 1)


def logged_as(caplog: pytest.LogCaptureFixture, event: str) -> set[int]:
    """The levels of the lines with this event."""
    lines = [line for line in caplog.records if line.getMessage().startswith(event)]
    return {line.levelno for line in lines}


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().split()[0]
        for record in caplog.records
        if record.name == "warren.cluster"
    ]
