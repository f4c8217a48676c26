"""A node hears at its start that it has another secret than the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from etcd_server import EtcdServer

from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.etcd_messages import Range, Txn, delete, put
from warren.mirror.definitions.secret_proof import SecretProof, is_secret_of

UP = b"/w/c/up/one"
SALT = "00" * 16


def test_the_secret_of_a_cluster_is_that_of_the_nodes_that_are_up(tmp_path: Path) -> None:
    async def check(etcd: EtcdClient) -> None:
        async def holds(secret: bytes) -> bool:
            return await is_secret_of(etcd, "/w/c", secret, SALT)

        assert await holds(b"first")
        await etcd.txn(Txn(success=[put(UP, b"{}")]))
        assert await holds(b"first")
        assert not await holds(b"second")
        kept = (await etcd.range(Range(b"/w/c/cluster/secret"))).kvs[0].value
        assert b"first" not in kept and b"second" not in kept
        # When nobody is up, it may change.
        await etcd.txn(Txn(success=[delete(UP)]))
        assert await holds(b"second")
        await etcd.txn(Txn(success=[put(UP, b"{}")]))
        assert not await holds(b"first")
        # What cannot be read proves nothing.
        await etcd.txn(Txn(success=[put(b"/w/c/cluster/secret", b"?")]))
        assert not await holds(b"second")

    async def run(url: str) -> None:
        etcd = EtcdClient([url])
        try:
            await check(etcd)
        finally:
            await etcd.close()

    with EtcdServer(tmp_path / "etcd") as server:
        asyncio.run(run(server.url))


def test_a_proof_holds_for_its_secret_only() -> None:
    proof = SecretProof.of(b"secret", SALT)
    assert proof.holds_for(b"secret")
    assert not proof.holds_for(b"Secret")
    assert SecretProof.of(b"secret", "11" * 16) != proof
