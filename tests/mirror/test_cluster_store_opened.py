"""Definitions of a cluster when a node starts: unreadable ones, one writer, the replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from etcd_server import EtcdServer, until
from metadata_cluster import Cluster, done, settled
from metadata_contract import keys, vhost

from warren.core.definitions.definition_table import Change
from warren.core.definitions.records import (
    PermissionRecord,
)
from warren.core.ports import Key, Precondition, Stored, Write
from warren.mirror.definitions.batch_writer import WriterSuperseded
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.codec import Keys
from warren.mirror.definitions.etcd import EtcdUnreachable
from warren.mirror.definitions.etcd_messages import Txn, put
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import SyncThread


class TestUnreadable:
    """A value nested 5,000 deep, and one that is no definition at all."""

    def damaged(self) -> list[bytes]:
        head = msgspec.msgpack.encode((1, False, False))[1:]
        return [b"\x94" + head + b"\x91" * 5000 + b"\xc0", b"\xc1"]

    def test_what_comes_is_passed_over_and_can_be_written_over(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            places = Keys(cluster.prefix)
            await done(store.transact([Write(("vhost", "known"), vhost("before"))]))
            for value in self.damaged():
                for name in ("known", "new"):
                    place = places.key(("vhost", name))
                    await cluster.client().txn(Txn(success=[put(place, value)]))
                # The history goes on.
                await done(store.transact([Write(("vhost", "v"), vhost())]))
                assert keys(store) == [("vhost", "known"), ("vhost", "v")]
                assert {one.key for one in store.unreadable.values()} == {
                    "vhost/known",
                    "vhost/new",
                }
                await self.write_over(store)

        in_cluster(shared_etcd, scenario)

    async def write_over(self, store: ClusterMetadata) -> None:
        """As declarations do: on the condition that nobody else changes it meanwhile."""
        known = store.get(("vhost", "known"))
        version = known.version if known is not None else 0
        writes = [Write(("vhost", name), vhost("after")) for name in ("known", "new")]
        commit = store.transact(
            writes,
            [Precondition(("vhost", "known"), version), Precondition(("vhost", "new"), 0)],
        )
        await done(commit)
        assert not commit.refused and not store.unreadable
        await done(store.transact([Write(("vhost", "new"), None)]))

    def test_what_is_there_at_a_start_is_passed_over_and_can_be_written_over(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            first = await cluster.open("b")
            await done(first.transact([Write(("vhost", "v"), vhost())]))
            await first.aclose()
            deep, _ = self.damaged()
            for name in ("known", "new"):
                place = Keys(cluster.prefix).key(("vhost", name))
                await cluster.client().txn(Txn(success=[put(place, deep)]))
            for _ in range(2):
                # A start from the replica has to see them, too.
                async with replica_in(tmp_path) as replica:
                    store = await cluster.open("a", replica=replica)
                    assert keys(store) == [("vhost", "v")]
                    assert len(store.unreadable) == 2
                    await done(store.transact([Write(("vhost", "v"), vhost("changed"))]))
                    await store.aclose()
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica)
                await self.write_over(store)
                await store.aclose()
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica)
                assert keys(store) == [("vhost", "known"), ("vhost", "v")]
                assert not store.unreadable
                await store.aclose()

        in_cluster(shared_etcd, scenario)


class TestOneWriterPerName:
    def test_the_older_of_two_processes_of_one_node_writes_no_more(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            told: list[str] = []
            older = await cluster.open("a", on_superseded=lambda: told.append("superseded"))
            await done(older.transact([Write(("vhost", "1"), vhost())]))
            younger = await cluster.open("a")
            commit = older.transact([Write(("vhost", "2"), vhost())])
            await until(lambda: told)
            assert not commit.done
            with pytest.raises(WriterSuperseded, match="as a"):
                older.transact([Write(("vhost", "3"), vhost())])
            await done(younger.transact([Write(("vhost", "4"), vhost())]))
            await until(lambda: keys(older) == [("vhost", "1"), ("vhost", "4")])
            assert told == ["superseded"]

        in_cluster(shared_etcd, scenario)


class TestOpening:
    def test_an_etcd_that_is_not_there_is_named(
        self, own_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        own_etcd.kill()

        async def scenario(cluster: Cluster) -> None:
            with pytest.raises(EtcdUnreachable, match=rf"{own_etcd.url}.*3 attempts"):
                await cluster.open("a", attempts=3)

        in_cluster(own_etcd, scenario)

    def test_an_etcd_that_comes_late_is_waited_for(
        self, own_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        own_etcd.kill()

        async def scenario(cluster: Cluster) -> None:
            own_etcd.launch()
            store = await cluster.open("a", attempts=200)
            await done(store.transact([Write(("vhost", "v"), vhost())]))

        in_cluster(own_etcd, scenario)

    def test_ten_thousand_definitions_are_there_in_a_moment(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            writer = await cluster.open("a")
            for number in range(10_000):
                commit = writer.transact(
                    [Write(("permission", "bob", f"{number:05}"), PermissionRecord("", "", ".*"))]
                )
            await done(commit)
            before_s = time.process_time()
            cold = await cluster.open("b")
            assert time.process_time() - before_s < 3.0
            assert list(cold.records(())) == list(writer.records(()))
            assert len(keys(cold)) == 10_000

        in_cluster(shared_etcd, scenario)


@asynccontextmanager
async def replica_in(path: Path) -> AsyncIterator[LmdbReplica]:
    loop = asyncio.get_running_loop()
    with DataDirectory.open(path) as directory:
        replica = LmdbReplica(
            directory,
            "a",
            call_on_loop=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            sync_thread=SyncThread("replica", print),
        )
        yield replica
        replica.close()


class TestReplica:
    def test_a_warm_start_reads_only_what_has_changed_since(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            other = await cluster.open("b")
            async with replica_in(tmp_path) as replica:
                cold = await cluster.open("a", replica=replica)
                cold.transact([Write(("vhost", n), vhost()) for n in ("a", "b", "p")])
                await done(cold.transact([Write(("vhost", "b"), None)]))
                await cold.aclose()
            await done(other.transact([Write(("vhost", n), vhost("since")) for n in ("a", "c")]))
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.key[1] for change in kept.definitions] == ["a", "p"]
                warm = await cluster.open("a", replica=replica)
                assert list(warm.records(())) == list(other.records(()))
                warm.transact([Write(("vhost", "p"), None)])
                await settled(warm, other)
                assert keys(other) == [("vhost", "a"), ("vhost", "c")]
                await warm.aclose()
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.stored for change in kept.definitions] == list(other.records(()))

        in_cluster(shared_etcd, scenario)

    def test_a_replica_older_than_etcd_remembers_is_brought_up_to_date(
        self, own_etcd: EtcdServer, in_cluster: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            other = await cluster.open("b")
            await done(other.transact([Write(("vhost", n), vhost()) for n in "ab"]))
            async with replica_in(tmp_path / "node") as replica:
                await (await cluster.open("a", replica=replica)).aclose()
            other.transact([Write(("vhost", "b"), None)])
            await done(other.transact([Write(("vhost", "c"), vhost())]))
            await cluster.compact()
            async with replica_in(tmp_path / "node") as replica:
                warm = await cluster.open("a", replica=replica)
                assert list(warm.records(())) == list(other.records(()))
                await warm.aclose()
            async with replica_in(tmp_path / "node") as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.stored for change in kept.definitions] == list(other.records(()))

        in_cluster(own_etcd, scenario)

    def test_a_replica_whose_versions_are_counts_is_not_used(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], tmp_path: Path
    ) -> None:
        """As earlier versions of Warren left it: nothing could be changed that it says."""
        key: Key = ("vhost", "v")

        async def scenario(cluster: Cluster) -> None:
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica)
                await done(store.transact([Write(key, vhost())]))
                await store.aclose()
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                cluster_id, _, versions = kept.cluster_id.rpartition("/")
                assert versions == "revisions"
                replica.reset(cluster_id)
                replica.save(kept.revision, [Change(key, Stored(key, vhost(), 1))])
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica)
                stored = store.get(key)
                assert stored is not None
                change = store.transact(
                    [Write(key, vhost("changed"))], [Precondition(key, stored.version)]
                )
                await done(change)
                assert change.visible and not change.refused
                await store.aclose()

        in_cluster(shared_etcd, scenario)

    def test_a_replica_of_another_cluster_or_a_damaged_one_is_not_used(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica, cluster_id="one")
                await done(store.transact([Write(("vhost", "one"), vhost())]))
                await store.aclose()
            cluster.prefix += "/other"
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica, cluster_id="two")
                assert keys(store) == []
                await done(store.transact([Write(("vhost", "two"), vhost())]))
                await store.aclose()
            (tmp_path / "cluster-metadata" / "data.mdb").write_bytes(b"x" * 40_000)
            async with replica_in(tmp_path) as replica:
                store = await cluster.open("a", replica=replica, cluster_id="two")
                assert keys(store) == [("vhost", "two")]
                await store.aclose()
            async with replica_in(tmp_path) as replica:
                assert replica.load() is not None

        in_cluster(shared_etcd, scenario)
