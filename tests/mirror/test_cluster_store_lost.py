"""Definitions of a cluster while etcd is away, and what a watch misses meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from etcd_server import EtcdServer, until
from metadata_cluster import Cluster, done, events, logged_as, settled
from metadata_contract import keys, vhost
from metadata_history import Writers, check, final_table

from warren.core.ports import Key, Precondition, Write
from warren.mirror.definitions.codec import Keys, UnreadableDefinition
from warren.mirror.definitions.etcd_messages import Txn, put


class TestLosingEtcd:
    def test_a_killed_etcd_delays_and_loses_nothing(
        self,
        own_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
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
            assert events(caplog) == ["definitions_unreachable", "definitions_reachable"] * 3

        in_cluster(own_etcd, scenario)

    def test_a_silent_etcd_is_noticed_even_when_nothing_is_written(
        self, own_etcd: EtcdServer, in_cluster: Callable[..., None]
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

        in_cluster(own_etcd, scenario)

    def test_an_etcd_that_lost_its_data_is_not_listened_to(
        self,
        own_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
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

        in_cluster(own_etcd, scenario)

    def test_what_is_under_way_when_a_store_is_closed_is_waited_for(
        self, shared_etcd: EtcdServer, in_cluster: Callable[..., None]
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            store = await cluster.open("a")
            commits = [store.transact([Write(("vhost", str(n)), vhost())]) for n in range(500)]
            await store.aclose()
            assert all(commit.visible for commit in commits)

        in_cluster(shared_etcd, scenario)


class TestTheWatch:
    def test_a_stalled_watch_is_opened_anew(
        self,
        shared_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
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

        in_cluster(shared_etcd, scenario)

    def test_who_missed_nothing_by_a_compaction_does_not_warn(
        self,
        shared_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def scenario(cluster: Cluster) -> None:
            proxy = await cluster.proxy()
            a, b = await cluster.open("a", proxy.url), await cluster.open("b")
            await done(b.transact([Write(("vhost", "new"), vhost())]))
            await settled(a, b)
            with caplog.at_level(logging.INFO):
                await a._reload()
            assert logged_as(caplog, "cluster_history_compacted") == {logging.INFO}

        in_cluster(shared_etcd, scenario)

    def test_a_compaction_during_a_break_costs_a_reload_and_watchers_hear_the_differences(
        self,
        own_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
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

        in_cluster(own_etcd, scenario)

    def test_a_definition_this_version_cannot_read_is_skipped_and_refused_at_start(
        self,
        shared_etcd: EtcdServer,
        in_cluster: Callable[..., None],
        caplog: pytest.LogCaptureFixture,
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

        in_cluster(shared_etcd, scenario)
