"""Definitions of a cluster, over a real etcd that is cut off, stopped, killed and compacted."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from cutting_proxy import CuttingProxy
from etcd_server import PATIENCE_S, EtcdServer, until
from metadata_contract import MetadataContract, Opened, keys, vhost
from metadata_history import Writers, check, final_table

from warren.core.definitions.definition_table import Change
from warren.core.definitions.records import (
    BindingRecord,
    GlobalParameterRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
)
from warren.core.ports import Commit, Key, Precondition, Stored, Write
from warren.mirror.definitions.batch_writer import WriterSuperseded
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.codec import Keys, UnreadableDefinition
from warren.mirror.definitions.etcd import EtcdClient, EtcdUnreachable
from warren.mirror.definitions.etcd_messages import Txn, put
from warren.mirror.definitions.history import DefinitionHistory
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import SyncThread


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
        """Make etcd forget all but the newest state."""
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


@pytest.fixture
def run(prefix: str) -> Callable[..., None]:
    """Run a scenario with a cluster on an etcd."""

    def run(server: EtcdServer, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with AsyncExitStack() as stack:
                await scenario(Cluster(prefix, stack, server))

        asyncio.run(whole())

    return run


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
    shared_etcd: EtcdServer, run: Callable[..., None]
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

    run(shared_etcd, scenario)


def test_a_broker_without_a_cluster_does_not_load_the_client() -> None:
    program = "import sys, warren.node; sys.exit('warren.mirror.definitions.etcd' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_a_cluster_without_certificates_does_not_load_what_reads_them() -> None:
    program = "import sys, warren.cluster; sys.exit('warren.link_certificates' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_a_definition_that_is_made_anew_is_not_taken_for_the_one_before(
    shared_etcd: EtcdServer, run: Callable[..., None]
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

    run(shared_etcd, scenario)


class TestManyWriters:
    def test_every_store_converges_and_every_outcome_is_true(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
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

        run(shared_etcd, scenario)

    @pytest.mark.parametrize("seed", range(3))
    def test_lost_requests_and_lost_answers_do_nothing_twice(
        self, shared_etcd: EtcdServer, run: Callable[..., None], seed: int
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

        run(shared_etcd, scenario)


class TestBatches:
    """What many transactions of one moment cost etcd."""

    def test_changes_that_nobody_contests_go_together_and_leave_no_marks(
        self, shared_etcd: EtcdServer, run: Callable[..., None], requests: list[Txn]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            requests.clear()
            commits = _made(store, range(480))
            await done(commits[-1])
            assert all(commit.visible for commit in commits)
            assert len(requests) == 4
            assert not any(one.request_txn for request in requests for one in request.success)

        run(shared_etcd, scenario)

    def test_who_was_answered_together_is_written_together_again(
        self, shared_etcd: EtcdServer, run: Callable[..., None], requests: list[Txn]
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

        run(shared_etcd, scenario)

    def test_one_that_is_contested_costs_its_batch_one_more_request(
        self, shared_etcd: EtcdServer, run: Callable[..., None], requests: list[Txn]
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

        run(shared_etcd, scenario)


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
        self, shared_etcd: EtcdServer, run: Callable[..., None]
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

        run(shared_etcd, scenario)

    def test_large_records_are_spread_over_batches(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
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

        run(shared_etcd, scenario)


class TestLosingEtcd:
    def test_a_killed_etcd_delays_and_loses_nothing(
        self, own_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)

        async def scenario(cluster: Cluster) -> None:
            told: list[bool] = []
            store = await cluster.open("a", on_reachable=told.append)
            writers = Writers(2)
            for round_ in range(3):
                for _ in range(100):
                    writers.write("a", store)
                await until(lambda: writers.made[-50].commit.done)
                own_etcd.kill()
                writers.write("a", store)
                await until(lambda: not store.reachable)
                assert list(store.records(())), "reads go on"
                pending = store.uncommitted()
                assert pending is not None and not pending.done
                await asyncio.to_thread(own_etcd.start)
                await settled(store)
                await until(lambda: store.reachable)
                assert told == [False, True] * (round_ + 1)
            outcomes = check(writers.made, await cluster.history())
            assert outcomes["undecided"] == 0
            assert events(caplog) == ["etcd_unreachable", "etcd_reachable"] * 3

        run(own_etcd, scenario)

    def test_a_silent_etcd_is_noticed_even_when_nothing_is_written(
        self, own_etcd: EtcdServer, run: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            told: list[bool] = []
            a = await cluster.open("a", on_reachable=told.append)
            b = await cluster.open("b")
            await done(a.transact([Write(("vhost", "before"), vhost())]))
            own_etcd.stand_still()
            await until(lambda: told == [False])
            writers = Writers(3)
            for _ in range(50):
                writers.write("a", a)
                writers.write("b", b)
            assert keys(a) == [("vhost", "before")]
            own_etcd.go_on()
            await settled(a, b)
            await until(lambda: a.reachable and b.reachable)
            assert told == [False, True]
            history = await cluster.history()
            assert check(writers.made, history)["undecided"] == 0
            assert list(a.records(())) == list(b.records(())) == final_table(history)

        run(own_etcd, scenario)

    def test_an_etcd_that_lost_its_data_is_not_listened_to(
        self, own_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            for number in range(5):
                await done(store.transact([Write(("vhost", f"kept {number}"), vhost())]))
            own_etcd.kill()
            own_etcd.lose_data()
            await asyncio.to_thread(own_etcd.start)
            commit = store.transact([Write(("vhost", "v"), vhost())])
            await until(lambda: not store.reachable)
            caplog.clear()
            # Not before the check and the watch have both met the new etcd.
            await until(lambda: {"check", "transactions", "watch"} <= store._reachability.failing)
            assert not commit.done and len(keys(store)) == 5
            assert store.reachable is False

        run(own_etcd, scenario)

    def test_what_is_under_way_when_a_store_is_closed_is_waited_for(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            commits = [store.transact([Write(("vhost", str(n)), vhost())]) for n in range(500)]
            await store.aclose()
            assert all(commit.visible for commit in commits)

        run(shared_etcd, scenario)


class TestTheWatch:
    def test_a_stalled_watch_is_opened_anew(
        self, shared_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            proxy = await cluster.proxy()
            a, b = await cluster.open("a", proxy.url), await cluster.open("b")
            await done(b.transact([Write(("vhost", "first"), vhost())]))
            await settled(a, b)
            proxy.silence()
            await done(b.transact([Write(("vhost", "second"), vhost())]))
            await settled(a, b)
            assert keys(a) == [("vhost", "first"), ("vhost", "second")]
            assert "cluster_watch_stalled" in events(caplog)

        run(shared_etcd, scenario)

    def test_who_missed_nothing_by_a_compaction_does_not_warn(
        self, shared_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            proxy = await cluster.proxy()
            a, b = await cluster.open("a", proxy.url), await cluster.open("b")
            await done(b.transact([Write(("vhost", "new"), vhost())]))
            await settled(a, b)
            with caplog.at_level(logging.INFO):
                await a._reload()
            assert logged_as(caplog, "cluster_history_compacted") == {logging.INFO}

        run(shared_etcd, scenario)

    def test_a_compaction_during_a_break_costs_a_reload_and_watchers_hear_the_differences(
        self, shared_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            proxy = await cluster.proxy()
            a, b = await cluster.open("a", proxy.url), await cluster.open("b")
            await done(b.transact([Write(("vhost", n), vhost()) for n in ("same", "new", "old")]))
            await settled(a, b)
            heard: list[tuple[Key, object | None]] = []
            a.watch((), lambda key, record: heard.append((key, record)))
            proxy.refuse = True
            proxy.cut()
            in_doubt = a.transact([Write(("vhost", "mine"), vhost())])
            old = a.get(("vhost", "old"))
            assert old is not None
            lost_against = a.transact(
                [Write(old.key, vhost("mine"))], [Precondition(old.key, old.version)]
            )
            await until(lambda: not a.reachable)
            b.transact([Write(("vhost", "new"), vhost("newer"))])
            b.transact([Write(("vhost", "made"), vhost())])
            await done(b.transact([Write(("vhost", "old"), None)]))
            await cluster.compact()
            assert heard == []
            proxy.refuse = False
            await settled(a, b)
            assert in_doubt.visible and lost_against.refused
            assert "cluster_history_compacted" in events(caplog)
            assert logged_as(caplog, "cluster_history_compacted") == {logging.WARNING}
            assert list(a.records(())) == list(b.records(()))
            assert dict(heard) == {
                ("vhost", "made"): vhost(),
                ("vhost", "mine"): vhost(),
                ("vhost", "new"): vhost("newer"),
                ("vhost", "old"): None,
            }
            assert len(heard) == 4

        run(shared_etcd, scenario)

    def test_a_definition_this_version_cannot_read_is_skipped_and_refused_at_start(
        self, shared_etcd: EtcdServer, run: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            place = Keys(cluster.prefix).key(("vhost", "odd"))
            # MessagePack of [9, False, False, nil]: a format of the future.
            await cluster.client().txn(Txn(success=[put(place, b"\x94\x09\xc2\xc2\xc0")]))
            await done(store.transact([Write(("vhost", "v"), vhost())]))
            assert keys(store) == [("vhost", "v")]
            assert "definition_unreadable" in events(caplog)
            with pytest.raises(UnreadableDefinition, match="has format 9"):
                await cluster.open("b")

        run(shared_etcd, scenario)


class TestUnreadable:
    """A value nested 5,000 deep, and one that is no definition at all."""

    def damaged(self) -> list[bytes]:
        head = msgspec.msgpack.encode((1, False, False))[1:]
        return [b"\x94" + head + b"\x91" * 5000 + b"\xc0", b"\xc1"]

    def test_what_comes_is_passed_over_and_can_be_written_over(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
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

        run(shared_etcd, scenario)

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
        self, shared_etcd: EtcdServer, run: Callable[..., None], tmp_path: Path
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

        run(shared_etcd, scenario)


class TestOneWriterPerName:
    def test_the_older_of_two_processes_of_one_node_writes_no_more(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
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

        run(shared_etcd, scenario)


class TestOpening:
    def test_an_etcd_that_is_not_there_is_named(
        self, own_etcd: EtcdServer, run: Callable[..., None]
    ) -> None:
        own_etcd.kill()

        async def scenario(cluster: Cluster) -> None:
            with pytest.raises(EtcdUnreachable, match=rf"{own_etcd.url}.*3 attempts"):
                await cluster.open("a", attempts=3)

        run(own_etcd, scenario)

    def test_an_etcd_that_comes_late_is_waited_for(
        self, own_etcd: EtcdServer, run: Callable[..., None]
    ) -> None:
        own_etcd.kill()

        async def scenario(cluster: Cluster) -> None:
            own_etcd.launch()
            store = await cluster.open("a", attempts=200)
            await done(store.transact([Write(("vhost", "v"), vhost())]))

        run(own_etcd, scenario)

    def test_ten_thousand_definitions_are_there_in_a_moment(
        self, shared_etcd: EtcdServer, run: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            writer = await cluster.open("a")
            for number in range(10_000):
                commit = writer.transact(
                    [Write(("permission", "bob", f"{number:05}"), PermissionRecord("", "", ".*"))]
                )
            await done(commit)
            started = time.perf_counter()
            cold = await cluster.open("b")
            assert time.perf_counter() - started < 3.0
            assert list(cold.records(())) == list(writer.records(()))
            assert len(keys(cold)) == 10_000

        run(shared_etcd, scenario)


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
        self, shared_etcd: EtcdServer, run: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            other = await cluster.open("b")
            async with replica_in(tmp_path) as replica:
                cold = await cluster.open("a", replica=replica)
                cold.transact([Write(("vhost", n), vhost(), n == "p") for n in ("a", "b", "p")])
                await done(cold.transact([Write(("vhost", "b"), None)]))
                await cold.aclose()
            await done(other.transact([Write(("vhost", n), vhost("since")) for n in ("a", "c")]))
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.key[1] for change in kept.definitions] == ["a", "p"]
                warm = await cluster.open("a", replica=replica)
                assert list(warm.records(())) == list(other.records(()))
                warm.drop_transient()
                await settled(warm, other)
                assert keys(other) == [("vhost", "a"), ("vhost", "c")]
                await warm.aclose()
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.stored for change in kept.definitions] == list(other.records(()))

        run(shared_etcd, scenario)

    def test_a_replica_older_than_etcd_remembers_is_brought_up_to_date(
        self, shared_etcd: EtcdServer, run: Callable[..., None], tmp_path: Path
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            other = await cluster.open("b")
            await done(other.transact([Write(("vhost", n), vhost()) for n in "ab"]))
            async with replica_in(tmp_path) as replica:
                await (await cluster.open("a", replica=replica)).aclose()
            other.transact([Write(("vhost", "b"), None)])
            await done(other.transact([Write(("vhost", "c"), vhost())]))
            await cluster.compact()
            async with replica_in(tmp_path) as replica:
                warm = await cluster.open("a", replica=replica)
                assert list(warm.records(())) == list(other.records(()))
                await warm.aclose()
            async with replica_in(tmp_path) as replica:
                kept = replica.load()
                assert kept is not None
                assert [change.stored for change in kept.definitions] == list(other.records(()))

        run(shared_etcd, scenario)

    def test_a_replica_whose_versions_are_counts_is_not_used(
        self, shared_etcd: EtcdServer, run: Callable[..., None], tmp_path: Path
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

        run(shared_etcd, scenario)

    def test_a_replica_of_another_cluster_or_a_damaged_one_is_not_used(
        self, shared_etcd: EtcdServer, run: Callable[..., None], tmp_path: Path
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

        run(shared_etcd, scenario)
