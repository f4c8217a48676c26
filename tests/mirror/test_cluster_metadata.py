"""Definitions of a cluster, over a real etcd that is cut off, stopped, killed and compacted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest
from etcd_server import EtcdServer, until
from metadata_cluster import Cluster, done, settled
from metadata_contract import MetadataContract, Opened, keys, vhost
from metadata_history import Writers, check, final_table

from warren.core.definitions.records import (
    BindingRecord,
    GlobalParameterRecord,
    QueueRecord,
    UserRecord,
)
from warren.core.ports import Commit, Key, Precondition, Write
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.etcd_messages import Txn
from warren.mirror.definitions.shared_definitions import BATCH_TRANSACTIONS_MAX


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


def test_every_kind_of_value_and_odd_keys_reach_the_other_nodes(
    shared_etcd: EtcdServer, in_cluster: Callable[..., None]
) -> None:
    long_names = ("\udc80" * 255, "queue", "y" * 255, "\0" * 255)
    written: dict[Key, object] = {
        ("queue", "/", "q\udcff\0\x01"): QueueRecord(True, {"caf\udce9": 1}, 7),
        ("queue", "/", ""): QueueRecord(False, {}),
        ("binding", "/", *long_names, "f"): BindingRecord({}),
        ("binding", "/", *long_names, "g"): BindingRecord({"a": [1.5, None, "x"]}),
        ("user", "bob\uffff"): UserRecord(password_hash=b"\x00\xfe", tags=["management"]),
        ("global_parameter", "g"): GlobalParameterRecord({"a": [1, None, "\ud800 lone"]}),
    }

    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.open("a"), await cluster.open("b")
        await done(a.transact([Write(key, record) for key, record in written.items()]))
        await settled(a, b)
        cold = await cluster.open("c")
        for store in (a, b, cold):
            assert {key: record for key, record, _ in store.records(())} == written
            assert keys(store) == sorted(written)

    in_cluster(shared_etcd, scenario)


def test_a_broker_without_a_cluster_does_not_load_the_client() -> None:
    program = "import sys, warren.node; sys.exit('warren.mirror.definitions.etcd' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_a_cluster_without_certificates_does_not_load_what_reads_them() -> None:
    program = "import sys, warren.cluster; sys.exit('warren.link_certificates' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_a_definition_that_is_made_anew_is_not_taken_for_the_one_before(
    shared_etcd: EtcdServer, in_cluster: Callable[..., None]
) -> None:
    key: Key = ("vhost", "v")

    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.open("a"), await cluster.open("b")
        await done(a.transact([Write(key, vhost("first"))]))
        first = a.get(key)
        assert first is not None
        for record in (None, vhost("anew")):
            await done(a.transact([Write(key, record)]))
        anew = a.get(key)
        assert anew is not None and anew.version > first.version
        await settled(a, b)
        assert b.get(key) == anew

    in_cluster(shared_etcd, scenario)


class TestManyWriters:
    def test_every_store_converges_and_every_outcome_is_true(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            random = Random(1)
            stores = {node: await cluster.open(node) for node in "abc"}
            writers = Writers(1)
            for _ in range(1500):
                node = random.choice("abc")
                writers.write(node, stores[node])
                if random.random() < 0.2:
                    await asyncio.sleep(random.random() * 0.003)
            await settled(*stores.values())
            history = await cluster.history()
            outcomes = check(writers.made, history)
            assert outcomes["visible"] > 300 and outcomes["refused"] > 50
            assert outcomes["undecided"] == 0 and writers.conflicts > 10
            for store in stores.values():
                assert list(store.records(())) == final_table(history)

        in_cluster(shared_etcd, scenario)

    @pytest.mark.parametrize("seed", range(3))
    def test_lost_requests_and_lost_answers_do_nothing_twice(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], seed: int
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            random = Random(seed)
            proxies = {node: await cluster.proxy(seed) for node in "abc"}
            stores = {node: await cluster.open(node, proxies[node].url) for node in "abc"}
            for proxy in proxies.values():
                proxy.lose_request, proxy.lose_answer = 0.05, 0.15
            writers = Writers(seed)
            for _ in range(400):
                node = random.choice("abc")
                writers.write(node, stores[node])
                if random.random() < 0.3:
                    await asyncio.sleep(random.random() * 0.01)
            for proxy in proxies.values():
                proxy.lose_request = proxy.lose_answer = 0.0
            # Not by chance, between two checks that close the watch again: soon.
            await settled(*stores.values(), patience_s=5.0)
            history = await cluster.history()
            outcomes = check(writers.made, history)
            assert outcomes["visible"] > 50 and outcomes["refused"] > 5
            assert outcomes["undecided"] == 0
            assert sum(proxy.lost_answers for proxy in proxies.values()) > 10
            for store in stores.values():
                assert list(store.records(())) == final_table(history)

        in_cluster(shared_etcd, scenario)


class TestBatches:
    """What many transactions of one moment cost etcd."""

    def test_changes_that_nobody_contests_go_together_and_leave_no_marks(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], requests: list[Txn]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            requests.clear()
            commits = _made(store, range(4 * BATCH_TRANSACTIONS_MAX))
            await done(commits[-1])
            assert all(commit.visible for commit in commits)
            assert len(requests) == 4
            assert not any(one.request_txn for request in requests for one in request.success)

        in_cluster(shared_etcd, scenario)

    def test_who_was_answered_together_is_written_together_again(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], requests: list[Txn]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            await done(_made(store, range(8))[-1])
            requests.clear()
            first = _made(store, [8])
            # Clients are read one after the other.
            await asyncio.sleep(0)
            others = _made(store, range(9, 16))
            await done(others[-1])
            assert first[0].visible and len(requests) == 1

        in_cluster(shared_etcd, scenario)

    def test_one_that_is_contested_costs_its_batch_one_more_request(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], requests: list[Txn]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            a, b = await cluster.open("a"), await cluster.open("b")
            commits = _made(a, range(100))
            await done(commits[-1])
            await settled(a, b)
            requests.clear()
            # Both change the one of number 50 as they know it, and only one of them can.
            of_a, of_b = _changed(a, range(100)), _changed(b, [50])
            await done(of_a[-1])
            await done(of_b[-1])
            assert [commit.refused for commit in (*of_a, *of_b)].count(True) == 1
            assert len(requests) <= 5
            await settled(a, b)

        in_cluster(shared_etcd, scenario)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Txn]:
    """The transactions that stores send to etcd."""
    sent: list[Txn] = []
    txn = EtcdClient.txn

    async def noting(self: EtcdClient, request: Txn) -> Any:
        sent.append(request)
        return await txn(self, request)

    monkeypatch.setattr(EtcdClient, "txn", noting)
    return sent


def _made(store: ClusterMetadata, numbers: Iterable[int]) -> list[Commit]:
    keys = [("vhost", str(number)) for number in numbers]
    return [store.transact([Write(key, vhost())], [Precondition(key, 0)]) for key in keys]


def _changed(store: ClusterMetadata, numbers: Iterable[int]) -> list[Commit]:
    commits = []
    for number in numbers:
        key = ("vhost", str(number))
        stored = store.get(key)
        assert stored is not None
        condition = Precondition(key, stored.version)
        commits.append(store.transact([Write(key, vhost("changed"))], [condition]))
    return commits


class TestLargeTransactions:
    def test_more_than_etcd_takes_at_once_is_done_when_all_is(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            a, b = await cluster.open("a"), await cluster.open("b")
            names = [f"{number:04}" for number in range(1000)]
            commit = a.transact(
                [Write(("vhost", name), vhost()) for name in names],
                [Precondition(("vhost", name), 0) for name in names[:124]],
            )
            await done(commit)
            assert commit.visible and len(keys(a)) == 1000
            again = b.transact([Write(("vhost", name), None) for name in names])
            await done(again)
            assert keys(b) == []
            await settled(a, b)
            assert keys(a) == []

        in_cluster(shared_etcd, scenario)

    def test_large_records_are_spread_over_batches(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            commits = [
                store.transact([Write(("vhost", str(number)), vhost("d" * 300_000))])
                for number in range(8)
            ]
            together = store.transact(
                [Write(("vhost", f"joint {number}"), vhost("d" * 300_000)) for number in range(8)]
            )
            await done(together)
            assert all(commit.visible for commit in commits) and len(keys(store)) == 16

        in_cluster(shared_etcd, scenario)
