"""Which node runs a link: claims, changes, and a node that may count as down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import uvloop

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.field_table import encode_table
from warren.clock import LoopClock
from warren.core.access.access_control import AccessControl, create_defaults
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import ParameterRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.node import Node, default_server_properties
from warren.core.ports import Write
from warren.core.resources.alarms import Alarms
from warren.federation.links import FederationLinks

KEY = ("parameter", "federation-upstream", "/", "u")
VALUE: dict[str, Any] = {"uri": [], "reconnect-delay": 0.05}
"""It never connects, so that nothing but where it runs is looked at."""


class Place:
    def __init__(self, *alive: str) -> None:
        self.nodes = set(alive)
        self.counts = True

    def alive(self) -> set[str]:
        return self.nodes

    def may_run(self) -> bool:
        return self.counts


async def _refuse(*_: object) -> None:
    raise OSError("not here")


class World:
    """Definitions that several nodes share, and the links of each node."""

    def __init__(self) -> None:
        self.store = VolatileMetadataStore()
        create_defaults(self.store, random_bytes=os.urandom)
        self.places: dict[str, Place] = {}
        self.links: dict[str, FederationLinks] = {}
        self.node: Node

    def start(self, name: str, *alive: str) -> FederationLinks:
        clock = LoopClock(asyncio.get_running_loop())
        self.node = Node(
            name,
            clock=clock,
            codec=AmqpContentCodec(),
            metadata=self.store,
            access=AccessControl(self.store, random_bytes=os.urandom),
            alarms=Alarms(name),
            random=Random(1),
            new_token=lambda: "token",
            new_backing_queue=lambda spec: MemoryQueue(),
            server_properties=default_server_properties("0", "test"),
        )
        place = self.places[name] = Place(*alive)
        links = self.links[name] = FederationLinks(
            self.node,
            place=place,
            connect_within=_refuse,
            encode_table=encode_table,
            clock=clock,
            random=Random(1),
        )
        links.start()
        return links

    def set(self, node: str, value: Any = VALUE) -> None:
        self.store.transact([Write(KEY, ParameterRecord(value, "", node))])

    def federate(self, pattern: str = "^amq.fanout$") -> None:
        self.node.policies.set("/", "fed", pattern, {"federation-upstream-set": "all"})

    @property
    def record(self) -> ParameterRecord:
        stored = self.store.get(KEY)
        assert stored is not None and isinstance(stored.record, ParameterRecord)
        return stored.record

    def runs(self) -> list[str]:
        return [name for name, links in self.links.items() if links.rows()]


def run(work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await work(world)
        finally:
            for links in world.links.values():
                await links.stop()

    uvloop.run(whole())


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0)


def test_link_of_an_exchange_runs_where_its_upstream_says() -> None:
    async def work(world: World) -> None:
        for name in "ab":
            world.start(name, "a", "b")
        world.set("b")
        world.federate()
        await until(lambda: world.runs() == ["b"])
        (row,) = world.links["b"].rows()
        assert (row["node"], row["exchange"], row["policy"]) == ("b", "amq.fanout", "fed")
        world.set("a")
        await until(lambda: world.runs() == ["a"])
        assert [one["id"] for one in world.links["a"].rows()] == [row["id"]]

    run(work)


def test_one_survivor_runs_the_links_of_a_node_that_is_down() -> None:
    async def work(world: World) -> None:
        for name in "ab":
            world.start(name, "a", "b", "c")
        world.set("c")
        world.federate()
        for name in "ab":
            world.places[name].nodes.discard("c")
            world.links[name].look_again()
        assert world.record.node == "a"
        await until(lambda: world.runs() == ["a"])

    run(work)


@pytest.mark.parametrize("pattern", ["^amq.fanout$", "^q$"])
def test_node_that_may_count_as_down_stops_its_links(pattern: str) -> None:
    async def work(world: World) -> None:
        links = world.start("a", "a")
        world.node.vhosts["/"].declare_queue(
            "q", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
        )
        world.set("a")
        world.federate(pattern)
        await until(lambda: world.runs() == ["a"])
        world.places["a"].counts = False
        links.look_again()
        await until(lambda: world.runs() == [])
        world.places["a"].counts = True
        links.look_again()
        await until(lambda: world.runs() == ["a"])

    run(work)


def test_link_ends_with_its_policy_and_with_its_upstream() -> None:
    async def work(world: World) -> None:
        world.start("a", "a")
        world.set("a")
        world.federate()
        await until(lambda: world.runs() == ["a"])
        world.store.transact([Write(KEY, None)])
        await until(lambda: world.runs() == [])
        world.set("a")
        await until(lambda: world.runs() == ["a"])
        world.node.policies.clear("/", "fed")
        await until(lambda: world.runs() == [])

    run(work)


def test_counts_are_those_of_the_links_that_run() -> None:
    async def work(world: World) -> None:
        links = world.start("a", "a")
        assert set(links.counts().values()) == {0}
        world.set("a")
        world.federate()
        await until(lambda: links.counts()["exchange", "error"] == 1)
        assert "no broker is named" in links.rows()[0]["error"]

    run(work)


def test_upstream_that_cannot_be_understood_does_not_log_its_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(world: World) -> None:
        world.start("a", "a")
        world.set("a", {**VALUE, "uri": "stomp://user:secret@host"})
        world.federate()
        await until(lambda: "upstream_not_understood" in caplog.text)
        assert world.runs() == []

    run(work)
    assert "secret" not in caplog.text


def test_fault_of_ours_does_not_end_the_node(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        world.start("a", "a")
        world.set("a")
        broken = ("parameter", "federation-upstream-set", "/", "s")
        world.store.transact([Write(broken, ParameterRecord([{"upstream": {}}]))])
        world.node.policies.set("/", "fed", "^amq", {"federation-upstream-set": "s"})
        await until(lambda: "federation_fault" in caplog.text)
        world.federate()
        await until(lambda: world.runs() == ["a"])

    run(work)
