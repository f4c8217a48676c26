"""The store of one machine answers as etcd does: both are given the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest
from aiohttp import web
from etcd_server import EtcdServer

from warren.clock import MovableClock
from warren.mirror.definitions.etcd import (
    EtcdClient,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    EtcdUnreachable,
)
from warren.mirror.definitions.etcd_messages import (
    Compare,
    Operation,
    Put,
    Range,
    RangeAnswer,
    Txn,
    TxnAnswer,
    WatchCreate,
    WatchEvent,
    delete,
    get,
    modified_at,
    none_exists,
    put,
)
from warren.mirror.definitions.key_gateway import KeyGateway
from warren.mirror.definitions.key_store import HISTORY_MAX, Compacted, Declined, KeyStore
from warren.persist.definitions.database import DamagedMetadata
from warren.persist.definitions.key_file import KeyFile
from warren.persist.disk.group_commit import SyncThread

SEEDS = range(6)
STEPS = 60
KEYS = [b"/a", b"/a/1", b"/a/2", b"/b", b"/b\0\xff", b"/c/" + b"long" * 200]
ENDS = [None, b"/b", b"/c", b"/z", b"\0"]


class Served:
    """A gateway over TCP, with its file and a clock that can be set forward."""

    def __init__(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self.clock = MovableClock(loop)
        self.file = KeyFile(
            path,
            call_on_loop=loop.call_soon_threadsafe,
            call_later=self.clock.call_later,
            sync_thread=SyncThread("test", lambda error: pytest.fail(repr(error))),
        )
        self.gateway = KeyGateway(self.file, self.clock)
        app = web.Application()
        self.gateway.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> EtcdClient:
        self.gateway.start()
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        _, port = self._runner.addresses[0]
        return EtcdClient([f"http://127.0.0.1:{port}"])

    async def stop(self) -> None:
        self.gateway.stop()
        await self._runner.cleanup()
        self.file.close()


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[Served, EtcdClient]]:
    server = Served(path)
    client = await server.start()
    try:
        yield server, client
    finally:
        await client.close()
        await server.stop()


class Requests:
    """Random ones, about few keys, so that they meet.

    No transaction puts what another part of it deletes: what etcd says to that depends on the
    order of its parts.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._deleted: list[bytes] = []
        self.revision = 1

    def __next__(self) -> Txn | Range:
        self._deleted = self._random.sample(KEYS, 3)
        if self._random.random() < 0.4:
            return self._range(self._random.choice([0, 0, self._random.randint(1, self.revision)]))
        return self._txn(2)

    def _txn(self, depth: int) -> Txn:
        return Txn(
            [self._compare() for _ in range(self._random.randint(0, 2))],
            [self._operation(depth) for _ in range(self._random.randint(0, 4))],
            [self._operation(depth) for _ in range(self._random.randint(0, 2))],
        )

    def _compare(self) -> Compare:
        key, end = self._key_and_end()
        number = self._random.choice([0, 1, self._random.randint(1, self.revision + 1)])
        return self._random.choice(
            [
                none_exists(key, end),
                modified_at(key, number),
                Compare(key, "VERSION", version=number, range_end=end),
                Compare(key, "CREATE", create_revision=number, range_end=end),
            ]
        )

    def _operation(self, depth: int) -> Operation:
        key = self._random.choice(KEYS)
        kinds: list[Callable[[], Operation]] = [
            lambda: delete(key) if key in self._deleted else put(key, self._random.randbytes(3)),
            lambda: delete(key) if key in self._deleted else put(key, b""),
            lambda: Operation(request_range=self._range(0)),
        ]
        if depth:
            kinds += [lambda: Operation(request_txn=self._txn(depth - 1))] * 2
        return self._random.choice(kinds)()

    def _range(self, revision: int) -> Range:
        key, end = self._key_and_end()
        order, target = self._random.choice(
            [("NONE", "KEY"), ("ASCEND", "KEY"), ("DESCEND", "KEY"), ("DESCEND", "MOD")]
        )
        limit = 1 if target == "MOD" else self._random.choice([0, 0, 1, 2])
        keys_only = self._random.random() < 0.2
        return Range(key, end, limit, revision, order, target, keys_only)  # type: ignore[arg-type]

    def _key_and_end(self) -> tuple[bytes, bytes | None]:
        key = self._random.choice(KEYS)
        end = self._random.choice(ENDS)
        return key, end if end == b"\0" or (end or b"") > key else None


async def outcome(client: EtcdClient, request: Txn | Range) -> object:
    """What a client gets, without what may differ: whose store it was, and how it says no."""
    try:
        if isinstance(request, Range):
            answer: RangeAnswer | TxnAnswer = await client.range(request)
        else:
            answer = await client.txn(request)
    except EtcdRefused as refused:
        return type(refused), refused.code, str(refused)
    return plain(answer)


def plain(answer: RangeAnswer | TxnAnswer) -> object:
    revision = answer.header.revision
    if isinstance(answer, RangeAnswer):
        return revision, ranged(answer)
    return revision, branch(answer)


def ranged(answer: RangeAnswer) -> object:
    # Among keys of one revision etcd's order by revision is anything.
    return [msgspec.structs.astuple(value) for value in answer.kvs], answer.more


def branch(answer: TxnAnswer) -> object:
    return answer.succeeded, [
        branch(one.response_txn)
        if one.response_txn is not None
        else None
        if one.response_range is None
        else ranged(one.response_range)
        for one in answer.responses
    ]


async def events_until(client: EtcdClient, wanted: WatchCreate, revision: int) -> list[WatchEvent]:
    """What a watch sends up to a revision that changed something it watches."""
    events: list[WatchEvent] = []
    async with await client.watch(wanted) as stream:
        while not events or events[-1].kv.mod_revision < revision:
            events += (await stream.next_answer()).events
    return events


class TestAsEtcd:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_requests_are_answered_as_etcd_answers_them(
        self, seed: int, own_etcd: EtcdServer, tmp_path: Path
    ) -> None:
        async def whole() -> None:
            etcd = EtcdClient([own_etcd.url])
            async with served(tmp_path / "keys") as (server, ours):
                requests = Requests(seed)
                for step in range(STEPS):
                    request = next(requests)
                    theirs = await outcome(etcd, request)
                    assert await outcome(ours, request) == theirs, (step, request)
                    requests.revision = server.gateway.store.revision
                for last in (Txn(success=[delete(b"/b", b"/z")]), Txn(success=[put(b"/z", b"")])):
                    assert await outcome(ours, last) == await outcome(etcd, last)
                everything = WatchCreate(b"/", b"\0", 2)
                revision = server.gateway.store.revision
                expected = await events_until(etcd, everything, revision)
                assert await events_until(ours, everything, revision) == expected
            await etcd.close()

        asyncio.run(whole())

    def test_leases_are_as_etcd_s(self, own_etcd: EtcdServer, tmp_path: Path) -> None:
        async def told(client: EtcdClient) -> list[object]:
            lease = await client.grant_lease(30)
            story: list[object] = [lease.TTL, await client.keep_alive(lease.ID, 1.0)]
            held = Operation(request_put=Put(b"/held", b"", lease.ID))
            freed = Operation(request_put=Put(b"/freed", b"", lease.ID))
            await client.txn(Txn(success=[held, freed]))
            await client.txn(Txn(success=[put(b"/freed", b"")]))
            await client.revoke_lease(lease.ID)
            story.append(await outcome(client, Range(b"/", b"0")))
            story.append(await client.keep_alive(lease.ID, 1.0))
            for failing in (
                client.revoke_lease(lease.ID),
                client.txn(Txn(success=[put(b"/k", b"", lease.ID)])),
            ):
                with pytest.raises(EtcdRefused) as refused:
                    await failing
                story.append((str(refused.value), refused.value.code))
            return story

        async def whole() -> None:
            etcd = EtcdClient([own_etcd.url])
            async with served(tmp_path / "keys") as (_, ours):
                assert await told(ours) == await told(etcd)
            await etcd.close()

        asyncio.run(whole())

    @pytest.mark.parametrize(
        "request_",
        [
            Txn(success=[put(b"", b"")]),
            Txn(success=[get(b"/k")] * 129),
            Txn(success=[put(b"/k", b""), put(b"/k", b"")]),
            Txn(success=[delete(b"/a", b"/z"), put(b"/k", b"")]),
            Txn(success=[put(b"/k", b""), Operation(request_txn=Txn(failure=[put(b"/k", b"")]))]),
            Range(b"/k", revision=10**9),
        ],
    )
    def test_what_etcd_says_no_to_is_refused_in_its_words(
        self, request_: Txn | Range, shared_etcd: EtcdServer, tmp_path: Path
    ) -> None:
        async def whole() -> None:
            etcd = EtcdClient([shared_etcd.url])
            async with served(tmp_path / "keys") as (_, ours):
                assert await outcome(ours, request_) == await outcome(etcd, request_)
            await etcd.close()

        asyncio.run(whole())


class TestLeases:
    def test_a_lease_that_is_not_kept_alive_takes_its_keys_along(self) -> None:
        store = KeyStore(7)
        store.grant(10, 1, now=100.0)
        store.txn(Txn(success=[put(b"/up/a", b"", 1), put(b"/up/b", b"", 1), put(b"/c", b"")]))
        assert store.keep_alive(1, now=105.0).TTL == 10
        assert store.expire(now=114.9) == 115.0
        assert store.expire(now=115.0) is None
        assert [value.key for value in store.range(Range(b"/", b"0")).kvs] == [b"/c"]
        assert store.keep_alive(1, now=115.0).TTL == 0
        deleted = store.events(3, b"/", b"0")
        assert [(one.type, one.kv.key, one.kv.mod_revision) for one in deleted] == [
            ("DELETE", b"/up/a", 3),
            ("DELETE", b"/up/b", 3),
        ]

    def test_that_of_a_holder_known_to_be_gone_can_be_ended(self) -> None:
        store = KeyStore(7)
        store.grant(10, 1, now=0.0)
        store.txn(Txn(success=[put(b"/up/a", b"", 1)]))
        assert store.end_lease_of(b"/up/a")
        assert not store.end_lease_of(b"/up/a")
        assert not store.range(Range(b"/up/a")).kvs

    def test_the_gateway_ends_leases_when_their_time_is_over(self, tmp_path: Path) -> None:
        async def whole() -> None:
            async with served(tmp_path / "keys") as (server, client):
                lease = await client.grant_lease(5)
                await client.txn(Txn(success=[put(b"/up/a", b"", lease.ID)]))
                async with await client.watch(WatchCreate(b"/up/", b"/up0", 3)) as stream:
                    server.clock.advance(5.5)
                    assert (await stream.next_answer()).events[0].type == "DELETE"

        asyncio.run(whole())


class TestHistory:
    def test_an_earlier_state_can_be_read_until_it_is_compacted(self) -> None:
        store = KeyStore(7)
        for value in (b"1", b"2", b"3"):
            store.txn(Txn(success=[put(b"/k", value)]))
        assert store.range(Range(b"/k", revision=2)).kvs[0].value == b"1"
        assert not store.range(Range(b"/k", revision=1)).kvs
        store.compact(3)
        assert store.range(Range(b"/k", revision=3)).kvs[0].value == b"2"
        with pytest.raises(Declined, match="compacted"):
            store.range(Range(b"/k", revision=2))
        assert len(store.events(3, b"/k", b"/l")) == 2
        with pytest.raises(Compacted):
            store.events(2, b"/k", b"/l")

    def test_no_more_is_kept_than_allowed(self) -> None:
        store = KeyStore(7)
        for number in range(0, HISTORY_MAX + 500, 100):
            keys = [b"/%d" % (number + one) for one in range(100)]
            store.txn(Txn(success=[put(key, b"") for key in keys]))
        with pytest.raises(Compacted) as gone:
            store.events(2, b"/", b"0")
        assert len(store.events(gone.value.revision, b"/", b"0")) <= HISTORY_MAX + 100

    def test_a_watch_from_before_the_start_hears_that_it_must_read_anew(
        self, tmp_path: Path
    ) -> None:
        async def whole() -> None:
            async with served(tmp_path / "keys") as (_, client):
                await client.txn(Txn(success=[put(b"/k", b"1")]))
                await client.txn(Txn(success=[put(b"/k", b"2")]))
            async with served(tmp_path / "keys") as (_, client):
                async with await client.watch(WatchCreate(b"/", b"0", 2)) as stream:
                    with pytest.raises(EtcdCompacted):
                        await stream.next_answer()
                async with await client.watch(WatchCreate(b"/", b"0", 4)) as stream:
                    await client.txn(Txn(success=[put(b"/k", b"3")]))
                    assert (await stream.next_answer()).events[0].kv.value == b"3"

        asyncio.run(whole())


class TestDisk:
    def test_everything_but_what_had_a_lease_is_there_after_a_start(self, tmp_path: Path) -> None:
        long = b"/" + b"k" * 900

        async def whole() -> None:
            async with served(tmp_path / "keys") as (_, client):
                lease = await client.grant_lease(60)
                await client.txn(Txn(success=[put(long, b"1"), put(b"/gone", b"")]))
                await client.txn(Txn(success=[put(b"/up", b"", lease.ID), delete(b"/gone")]))
                before = await client.range(Range(b"/", b"0"))
            async with served(tmp_path / "keys") as (_, client):
                after = await client.range(Range(b"/", b"0"))
            assert after.kvs == [value for value in before.kvs if value.key == long]
            assert after.header.cluster_id == before.header.cluster_id
            # That the keys of leases are gone is a change as any other.
            assert after.header.revision == before.header.revision + 1

        asyncio.run(whole())

    def test_no_answer_leaves_before_its_revision_is_on_disk(self, tmp_path: Path) -> None:
        async def whole() -> None:
            async with served(tmp_path / "keys") as (server, client):
                lease = await client.grant_lease(5)
                async with await client.watch(WatchCreate(b"/", b"0", 2)) as stream:
                    held: list[Sequence[object]] = []
                    group = server.file._writer._group
                    write, group._write_batch = group._write_batch, held.append
                    run, group._run = group._run, lambda job: None
                    writing = asyncio.create_task(client.txn(Txn(success=[put(b"/k", b"")])))
                    reading = asyncio.create_task(client.range(Range(b"/k")))
                    hearing = asyncio.create_task(stream.next_answer())
                    while not (batch := group._writing):
                        await asyncio.sleep(0)
                    done, _ = await asyncio.wait((writing, reading, hearing), timeout=0.1)
                    assert not done and not held
                    # A lease changes nothing on disk, and its node must not lose it.
                    assert await asyncio.wait_for(client.keep_alive(lease.ID, 9.0), 9.0) == 5
                    group._write_batch, group._run = write, run
                    group._start(batch)
                    await asyncio.gather(writing, reading, hearing)

        asyncio.run(whole())

    def test_a_damaged_value_is_not_served(self, tmp_path: Path) -> None:
        async def whole() -> None:
            async with served(tmp_path / "keys") as (_, client):
                await client.txn(Txn(success=[put(b"/k", b"the value")]))
            data = tmp_path / "keys" / "data.mdb"
            octets = data.read_bytes()
            assert b"the value" in octets
            data.write_bytes(octets.replace(b"the value", b"the valve"))
            with pytest.raises(DamagedMetadata, match="checksum"):
                Served(tmp_path / "keys")

        asyncio.run(whole())


class TestSocket:
    def test_the_client_goes_through_a_socket_whose_path_is_too_long(self, tmp_path: Path) -> None:
        async def whole() -> None:
            directory = tmp_path / ("d" * 120)
            directory.mkdir()
            client = EtcdClient(["http://processes"], socket=directory / "store.sock")
            with pytest.raises(EtcdUnreachable):
                await client.range(Range(b"/k"))
            async with served(directory / "keys") as (server, _):
                inside = web.UnixSite(server._runner, f"/proc/self/fd/{client._directory_fd}/s")
                await inside.start()
                again = EtcdClient(["http://processes"], socket=directory / "s")
                await again.txn(Txn(success=[put(b"/k", b"v")]))
                assert (await again.range(Range(b"/k"))).kvs[0].value == b"v"
                await again.close()
            await client.close()
            with pytest.raises(EtcdError):
                await client.range(Range(b"/k"))

        asyncio.run(whole())
