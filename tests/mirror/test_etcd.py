"""The client of etcd: endpoints, time-outs, logins, TLS, and how calls fail."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp.helpers import TimerContext
from cutting_proxy import CuttingProxy
from etcd_server import PATIENCE_S, EtcdServer, find_etcd

from warren.core.definitions.records import VirtualHostRecord
from warren.core.ports import Write
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.ending import end_tasks
from warren.mirror.definitions.etcd import (
    EtcdClient,
    EtcdCompacted,
    EtcdError,
    EtcdNotAllowed,
    EtcdOutcomeUnknown,
    EtcdRefused,
    EtcdUnreachable,
)
from warren.mirror.definitions.etcd_messages import Range, Txn, WatchCreate, get, put

NOBODY = "http://127.0.0.1:9"


def run(scenario: Callable[[EtcdClient], Awaitable[None]], *endpoints: str, **options: Any) -> None:
    async def whole() -> None:
        etcd = EtcdClient(endpoints, **options)
        try:
            await scenario(etcd)
        finally:
            await etcd.close()

    asyncio.run(whole())


class TestEndpoints:
    def test_one_that_is_down_is_passed_over(self, shared_etcd: EtcdServer) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            written = await etcd.txn(Txn(success=[put(b"/k\0\xff", b"\0\xfe")]))
            found = await etcd.range(Range(b"/k\0\xff"))
            assert found.kvs[0].value == b"\0\xfe"
            assert found.kvs[0].mod_revision == written.header.revision
            since = written.header.revision
            async with await etcd.watch(WatchCreate(b"/k", b"/l", since)) as stream:
                assert (await stream.next_answer()).events[0].kv.key == b"/k\0\xff"

        run(scenario, NOBODY, shared_etcd.url, NOBODY)

    def test_nothing_can_be_asked_of_a_client_that_is_closed(self) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            await etcd.close()
            with pytest.raises(EtcdUnreachable, match="stopping"):
                await etcd.range(Range(b"/k"))
            with pytest.raises(EtcdUnreachable, match="stopping"):
                await etcd.watch(WatchCreate(b"/k", b"/l", 1))
            with pytest.raises(EtcdUnreachable, match="stopping"):
                await etcd.txn(Txn(success=[put(b"/k", b"")]))

        run(scenario, NOBODY)

    def test_all_are_named_when_none_can_be_reached(self) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            with pytest.raises(EtcdUnreachable, match=r"127\.0\.0\.1:9:.*127\.0\.0\.1:10:"):
                await etcd.txn(Txn(success=[put(b"/k", b"")]))
            with pytest.raises(EtcdUnreachable, match=r"127\.0\.0\.1:9"):
                await etcd.watch(WatchCreate(b"/k", b"/l", 1))

        run(scenario, NOBODY, "http://127.0.0.1:10/")

    def test_one_that_is_silent_costs_a_read_its_time_out_and_the_next_one_answers(
        self, shared_etcd: EtcdServer, own_etcd: EtcdServer
    ) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            await etcd.range(Range(b"/k"))
            own_etcd.stand_still()
            assert (await etcd.range(Range(b"/k"))).header.revision
            own_etcd.go_on()

        run(scenario, own_etcd.url, shared_etcd.url, request_timeout_s=0.2)

    def test_no_endpoint_at_all_is_an_error(self) -> None:
        async def make() -> None:
            EtcdClient([])

        with pytest.raises(ValueError, match="no endpoint"):
            asyncio.run(make())


class TestFailures:
    def test_a_write_without_an_answer_may_have_been_done(self, shared_etcd: EtcdServer) -> None:
        async def whole() -> None:
            async with CuttingProxy(shared_etcd.port) as proxy:
                etcd = EtcdClient([proxy.url, shared_etcd.url])
                proxy.lose_answer = 1.0
                with pytest.raises(EtcdOutcomeUnknown):
                    await etcd.txn(Txn(success=[put(b"/maybe", b"done")]))
                # The other endpoint is asked first now.
                assert (await etcd.range(Range(b"/maybe"))).kvs[0].value == b"done"
                await etcd.close()

        asyncio.run(whole())

    def test_a_silent_etcd_is_given_up_in_time(self, own_etcd: EtcdServer) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            own_etcd.stand_still()
            with pytest.raises(EtcdUnreachable, match="no answer in time"):
                await etcd.range(Range(b"/k"))
            with pytest.raises(EtcdOutcomeUnknown, match="no answer in time"):
                await etcd.txn(Txn())
            with pytest.raises(EtcdUnreachable):
                await etcd.watch(WatchCreate(b"/k", b"/l", 1))
            own_etcd.go_on()

        run(scenario, own_etcd.url, request_timeout_s=0.2)

    def test_what_etcd_says_no_to_is_refused_with_its_words(self, shared_etcd: EtcdServer) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            with pytest.raises(EtcdRefused, match="duplicate key"):
                await etcd.txn(Txn(success=[put(b"/k", b""), put(b"/k", b"")]))
            with pytest.raises(EtcdRefused, match="too many operations"):
                await etcd.txn(Txn(success=[get(b"/k")] * 129))
            with pytest.raises(EtcdRefused, match="lease not found"):
                await etcd.revoke_lease(1)
            assert await etcd.keep_alive(1, 1.0) == 0

        run(scenario, shared_etcd.url)

    def test_history_that_is_gone_is_told_as_such(self, own_etcd: EtcdServer) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            for _ in range(3):
                revision = (await etcd.txn(Txn(success=[put(b"/k", b"")]))).header.revision
            await etcd._call("/v3/kv/compaction", {"revision": revision}, dict)
            with pytest.raises(EtcdCompacted):
                await etcd.range(Range(b"/k", revision=revision - 1))
            async with await etcd.watch(WatchCreate(b"/k", b"/l", 1)) as stream:
                with pytest.raises(EtcdCompacted) as compacted:
                    await stream.next_answer()
            assert compacted.value.compact_revision == revision

        run(scenario, own_etcd.url)

    def test_something_else_than_etcd_is_not_mistaken_for_it(self) -> None:
        async def whole() -> None:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n{")
                await reader.readuntil(b"}")
                writer.write(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
                )
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            etcd = EtcdClient([f"http://127.0.0.1:{port}"])
            try:
                with pytest.raises(EtcdUnreachable, match="malformed"):
                    await etcd.range(Range(b"/k"))
                with pytest.raises(EtcdUnreachable, match=r"not etcd's|ended"):
                    await etcd.watch(WatchCreate(b"/k", b"/l", 1))
            finally:
                await etcd.close()
                server.close()
                await server.wait_closed()

        asyncio.run(whole())


async def require_passwords(etcd: EtcdClient) -> None:
    """As `etcdctl` would: a root, and a user bob who may touch what is below /warren/."""
    rights = {"permType": "READWRITE", "key": b"/warren/", "range_end": b"/warren0"}
    for path, request in (
        ("user/add", {"name": "root", "password": "r"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "bob", "password": "secret"}),
        ("role/add", {"name": "warren"}),
        ("role/grant", {"name": "warren", "perm": rights}),
        ("user/grant", {"user": "bob", "role": "warren"}),
    ):
        if path == "user/grant" and request["role"] == "root":
            await etcd._call("/v3/auth/role/add", {"name": "root"}, dict)
        await etcd._call(f"/v3/auth/{path}", request, dict)
    await etcd._call("/v3/auth/enable", {}, dict)


class TestPasswords:
    def test_the_right_one_opens_a_store_and_others_do_not(self, own_etcd: EtcdServer) -> None:
        run(require_passwords, own_etcd.url)

        async def allowed(etcd: EtcdClient) -> None:
            store = await ClusterMetadata.open(etcd, "/warren/c", "a")
            store.transact([Write(("vhost", "v"), VirtualHostRecord())])
            await store.aclose()
            assert store.get(("vhost", "v")) is not None
            with pytest.raises(EtcdNotAllowed, match="permission denied"):
                await etcd.txn(Txn(success=[put(b"/elsewhere", b"")]))
            with pytest.raises(EtcdNotAllowed):
                await etcd.watch(WatchCreate(b"/elsewhere", b"/f", 1))

        async def not_allowed(etcd: EtcdClient) -> None:
            with pytest.raises(EtcdNotAllowed):
                await ClusterMetadata.open(etcd, "/warren/c", "a", attempt_pause_s=60)

        run(allowed, own_etcd.url, user="bob", password="secret")
        run(not_allowed, own_etcd.url, user="bob", password="wrong")
        run(not_allowed, own_etcd.url, user="nobody", password="secret")
        run(not_allowed, own_etcd.url)

    def test_a_token_that_etcd_has_forgotten_is_asked_for_anew(self, own_etcd: EtcdServer) -> None:
        run(require_passwords, own_etcd.url)

        async def scenario(etcd: EtcdClient) -> None:
            await etcd.range(Range(b"/warren/k"))
            # Simple tokens do not outlive a restart of etcd.
            own_etcd.kill()
            await asyncio.to_thread(own_etcd.start)
            assert not (await etcd.range(Range(b"/warren/k"))).kvs
            etcd._token = "stale.1"
            async with await etcd.watch(WatchCreate(b"/warren/", b"/warren0", 1)):
                pass

        run(scenario, own_etcd.url, user="bob", password="secret")

    def test_a_password_is_not_needed_where_none_is_asked_for(
        self, shared_etcd: EtcdServer
    ) -> None:
        async def scenario(etcd: EtcdClient) -> None:
            await etcd.range(Range(b"/k"))

        run(scenario, shared_etcd.url, user="bob", password="secret")


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    find_etcd()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "server.pem"
    )
    tls = ("--cert-file", "server.pem", "--key-file", "server.pem", "--client-cert-auth")
    tls = (*tls, "--trusted-ca-file", "ca.pem")

    async def scenario(etcd: EtcdClient) -> None:
        store = await ClusterMetadata.open(etcd, "/warren/c", "a")
        store.transact([Write(("vhost", "v"), VirtualHostRecord())])
        await store.aclose()
        assert store.get(("vhost", "v")) is not None

    async def stranger(etcd: EtcdClient) -> None:
        with pytest.raises(EtcdUnreachable):
            await etcd.range(Range(b"/k"))

    with EtcdServer(tmp_path, tls) as server:
        known = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        run(stranger, server.url, tls=known)
        authority.issue_cert("node").configure_cert(known)
        run(scenario, server.url, tls=known)
        run(stranger, server.url)


def test_a_task_ends_though_its_question_times_out_as_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """aiohttp takes the cancellation for its own."""
    asked = 0

    async def scenario(etcd: EtcdClient) -> None:
        ending: list[asyncio.Task[None]] = []

        async def ask() -> None:
            nonlocal asked
            while True:
                asked += 1
                try:
                    await etcd.range(get(b"key"))
                except EtcdError:
                    await asyncio.sleep(3600)

        task = asyncio.create_task(ask())
        timeout = TimerContext.timeout

        def timeout_and_end(timer: TimerContext) -> None:
            # It runs when the timer has cancelled the task, and the task has not run yet.
            ending.append(asyncio.create_task(end_tasks([task])))
            timeout(timer)

        monkeypatch.setattr(TimerContext, "timeout", timeout_and_end)
        while not ending:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE_S):
            await ending[0]
        assert task.done()

    # It takes the connection, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        run(scenario, url, request_timeout_s=0.1)
    assert asked == 1
