"""Membership of a cluster, over a real etcd."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from etcd_server import EtcdServer, until

from warren.clock import LoopClock
from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.members.membership import (
    DuplicateName,
    ForgottenMember,
    IncompatibleCluster,
    MemberIsUp,
    Membership,
    UnknownMember,
)

LEASE_TTL_S = 60
"""No lease ends by itself, however long the machine stands still."""

SHORT_LEASE_TTL_S = 2
"""Where a lease is to run out."""


class Nodes:
    """Memberships by node name, with what each was told."""

    def __init__(self, server: EtcdServer, prefix: str) -> None:
        self._prefix = prefix
        self._clients: list[EtcdClient] = []
        self._memberships: list[Membership] = []
        self._server = server
        self.told: dict[str, list[tuple[str, str]]] = {}

    async def look(self, name: str, node_id: str | None = None, **options: object) -> Membership:
        etcd = EtcdClient([self._server.url], request_timeout_s=1)
        self._clients.append(etcd)
        membership = await Membership.open(
            etcd,
            self._prefix,
            name,
            node_id or f"id of {name}",
            **{  # type: ignore[arg-type]
                "clock": LoopClock(asyncio.get_running_loop()),
                "new_cluster_id": f"made by {name}",
                "protocol": 1,
                "lease_ttl_s": LEASE_TTL_S,
                **options,
            },
        )
        self._memberships.append(membership)
        told = self.told.setdefault(name, [])
        membership.on_node_up = lambda other, presence: told.append(("up", other))
        membership.on_node_down = lambda other, presence: told.append(("down", other))
        membership.on_lease_lost = lambda: told.append(("lost", name))
        return membership

    async def start(self, name: str, node_id: str | None = None, **options: object) -> Membership:
        membership = await self.look(name, node_id, **options)
        await membership.join("10.0.0.1", 25672, "1.0")
        return membership

    async def close(self) -> None:
        for membership in self._memberships:
            await membership.aclose()
        for client in self._clients:
            await client.close()


@pytest.fixture
def on_loop(shared_etcd: EtcdServer, prefix: str) -> Callable[..., None]:
    def run(scenario: Callable[[Nodes], Awaitable[None]], server: EtcdServer = shared_etcd) -> None:
        async def whole() -> None:
            nodes = Nodes(server, prefix)
            try:
                await scenario(nodes)
            finally:
                await nodes.close()

        asyncio.run(whole())

    return run


class TestComingAndGoing:
    def test_nodes_see_each_other_come_and_go(self, on_loop: Callable[..., None]) -> None:
        async def scenario(nodes: Nodes) -> None:
            a = await nodes.start("a")
            b = await nodes.start("b")
            await until(lambda: nodes.told["a"] == [("up", "b")])
            assert a.running() == b.running()
            assert a.running()["b"].link_port == 25672
            await b.leave()
            await until(lambda: nodes.told["a"] == [("up", "b"), ("down", "b")])
            assert set(a.members()) == {"a", "b"}, "down, but a member"
            assert not b.holds_lease() and nodes.told["b"] == []
            await b.join("10.0.0.2", 1, "1.1")
            await until(lambda: nodes.told["a"][2:] == [("up", "b")])
            assert a.running()["b"].incarnation == 2
            await b.leave(for_good=True)
            await until(lambda: set(a.members()) == {"a"})

        on_loop(scenario)

    def test_only_the_first_node_up_is_told_that_it_is(self, on_loop: Callable[..., None]) -> None:
        async def scenario(nodes: Nodes) -> None:
            a, b = await nodes.look("a"), await nodes.look("b")
            first = [(await node.join("h", 1, "1")).first for node in (a, b)]
            assert first == [True, False]
            await a.leave()
            assert not (await a.join("h", 1, "1")).first
            await a.leave()
            await b.leave()
            assert (await b.join("h", 1, "1")).first

        on_loop(scenario)

    def test_a_node_killed_and_started_again_takes_its_presence_over(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            a = await nodes.start("a")
            killed = await nodes.start("b")
            await until(lambda: nodes.told["a"] == [("up", "b")])
            lease = killed._lease
            await killed.aclose()
            again = await nodes.start("b")
            await until(lambda: nodes.told["a"] == [("up", "b"), ("down", "b"), ("up", "b")])
            # What etcd does when the lease of the killed one has run out.
            await again._etcd.revoke_lease(lease)
            await nodes.look("c")
            assert again.holds_lease() and a.running()["b"].incarnation == 2
            assert len(nodes.told["a"]) == 3

        on_loop(scenario)

    def test_a_process_whose_node_was_started_elsewhere_loses_its_lease(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            first = await nodes.start("a")
            second = await nodes.start("a")
            await until(lambda: nodes.told["a"] == [("lost", "a")])
            assert not first.holds_lease() and second.holds_lease()

        on_loop(scenario)


class TestRefusals:
    def test_a_name_that_is_up_is_refused_to_another_node(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            await nodes.start("a")
            with pytest.raises(DuplicateName, match=r"a node a is up at 10\.0\.0\.1:25672"):
                await nodes.start("a", "another id")

        on_loop(scenario)

    def test_the_name_of_a_member_that_is_down_is_refused_until_it_is_forgotten(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            a, b = await nodes.start("a"), await nodes.start("b")
            with pytest.raises(MemberIsUp, match="b is running"):
                await a.forget("b")
            await b.leave()
            with pytest.raises(DuplicateName, match="forget that one first"):
                await nodes.start("b", "another id")
            assert (await a.forget("b")).node_id == "id of b"
            assert set(a.members()) == {"a"}
            with pytest.raises(ForgottenMember, match="empty data directory"):
                await b.join("h", 1, "1")
            await nodes.start("b", "another id")
            with pytest.raises(UnknownMember):
                await a.forget("c")

        on_loop(scenario)

    def test_a_cluster_of_another_format_or_protocol_is_refused(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            await nodes.look("a")
            with pytest.raises(IncompatibleCluster, match="link protocol 1"):
                await nodes.look("b", protocol=2)
            with pytest.raises(IncompatibleCluster, match="belongs to cluster xyz"):
                await nodes.look("b", expected_cluster_id="xyz")

        on_loop(scenario)


class TestTheCluster:
    def test_of_nodes_that_start_together_one_makes_the_cluster(
        self, on_loop: Callable[..., None]
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            looks = await asyncio.gather(*(nodes.look(f"n{number}") for number in range(8)))
            ids = {membership.identity.cluster_id for membership in looks}
            assert len(ids) == 1
            assert ids.pop() in {f"made by n{number}" for number in range(8)}
            joined = await asyncio.gather(*(node.join("h", 1, "1") for node in looks))
            assert [each.first for each in joined].count(True) == 1

        on_loop(scenario)

    def test_its_name_can_be_set_and_is_seen_by_all(self, on_loop: Callable[..., None]) -> None:
        async def scenario(nodes: Nodes) -> None:
            a, b = await nodes.look("a"), await nodes.look("b")
            assert await a.cluster_name() is None
            await a.set_cluster_name("käfig")
            assert await b.cluster_name() == "käfig"

        on_loop(scenario)


KEEPER = """
import asyncio, sys
from warren.clock import LoopClock
from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.members.membership import Membership

async def main():
    etcd = EtcdClient([sys.argv[1]], request_timeout_s=1)
    node = await Membership.open(
        etcd, sys.argv[2], "keeper", "keeper's id", clock=LoopClock(asyncio.get_running_loop()),
        new_cluster_id="c", protocol=1, lease_ttl_s=int(sys.argv[3]),
    )
    lost = asyncio.Event()
    node.on_lease_lost = lost.set
    await node.join("h", 1, "1")
    print("up", flush=True)
    await lost.wait()
    print("lost", node.holds_lease(), flush=True)

asyncio.run(main())
"""


class TestLosingTheLease:
    def test_a_stopped_node_is_down_for_the_others_and_knows_it_when_it_goes_on(
        self, on_loop: Callable[..., None], shared_etcd: EtcdServer, prefix: str
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            await nodes.start("a")
            arguments = [shared_etcd.url, prefix, str(SHORT_LEASE_TTL_S)]
            with subprocess.Popen(
                [sys.executable, "-P", "-c", KEEPER, *arguments], stdout=subprocess.PIPE, text=True
            ) as keeper:
                try:
                    assert keeper.stdout is not None
                    assert await asyncio.to_thread(keeper.stdout.readline) == "up\n"
                    await until(lambda: nodes.told["a"] == [("up", "keeper")])
                    os.kill(keeper.pid, signal.SIGSTOP)
                    await until(lambda: ("down", "keeper") in nodes.told["a"])
                    os.kill(keeper.pid, signal.SIGCONT)
                    assert await asyncio.to_thread(keeper.stdout.readline) == "lost False\n"
                finally:
                    keeper.kill()

        on_loop(scenario)

    def test_a_node_gives_its_lease_up_in_time_when_etcd_is_silent(
        self, on_loop: Callable[..., None], own_etcd: EtcdServer
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            node = await nodes.start("a", lease_ttl_s=SHORT_LEASE_TTL_S)
            own_etcd.stand_still()
            stopped_at = held_at = time.monotonic()

            def is_lost() -> bool:
                nonlocal held_at
                now = time.monotonic()
                held_at = now if node.holds_lease() else held_at
                return nodes.told["a"] == [("lost", "a")]

            await until(is_lost)
            assert held_at - stopped_at < SHORT_LEASE_TTL_S
            own_etcd.go_on()
            assert (await node.join("h", 1, "1")).presence.incarnation == 2
            assert node.holds_lease()

        on_loop(scenario, own_etcd)

    def test_a_lease_that_etcd_ends_is_lost_at_once(
        self, on_loop: Callable[..., None], prefix: str
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            node = await nodes.start("a")
            await nodes.start("b")
            await node._etcd.revoke_lease(node._lease)
            await until(lambda: ("lost", "a") in nodes.told["a"])
            await until(lambda: ("down", "a") in nodes.told["b"])

        on_loop(scenario)

    def test_presence_outlives_a_restart_of_etcd(
        self, on_loop: Callable[..., None], own_etcd: EtcdServer
    ) -> None:
        async def scenario(nodes: Nodes) -> None:
            a, b = await nodes.start("a"), await nodes.start("b")
            await until(lambda: "b" in a.running())
            own_etcd.kill()
            await asyncio.to_thread(own_etcd.start)
            c = await nodes.start("c")
            await until(lambda: set(a.running()) == set(b.running()) == {"a", "b", "c"})
            assert c.holds_lease()

        on_loop(scenario, own_etcd)
