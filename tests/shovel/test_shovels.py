"""Which node runs a shovel: claims, changes, and a node that may count as down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import uvloop

from warren.clock import LoopClock
from warren.core.access.access_control import AccessControl
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.records import ParameterRecord, VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.ports import Commit, Conflict, Precondition, Write
from warren.shovel.shovels import Shovels

KEY = ("parameter", "shovel", "/", "s")
VALUE: dict[str, Any] = {"src-uri": [], "src-queue": "a", "dest-uri": [], "reconnect-delay": 0.01}
"""It never connects, so that nothing but where it runs is looked at."""


class Place:
    def __init__(self, *alive: str) -> None:
        self.nodes = set(alive)
        self.counts = True

    def alive(self) -> set[str]:
        return self.nodes

    def may_run(self) -> bool:
        return self.counts


class SlowStore(VolatileMetadataStore):
    """Definitions of a cluster: while `held` is a list, transactions are decided later."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], Commit]] | None = None

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        if self.held is None:
            return super().transact(writes, preconditions)
        self.held.append(lambda: super(SlowStore, self).transact(writes, preconditions))
        return CompletedCommit()

    def decide(self) -> int:
        """Carry out what is held, in order; returns how many transactions were refused."""
        held, self.held = self.held or [], None
        refused = 0
        for transaction in held:
            try:
                transaction()
            except Conflict:
                refused += 1
        return refused


class World:
    """Definitions that several nodes share, and the shovels of each node."""

    def __init__(self) -> None:
        self.store = SlowStore()
        self.store.transact([Write(("vhost", "/"), VirtualHostRecord())])
        self.places: dict[str, Place] = {}
        self.nodes: dict[str, Shovels] = {}

    def node(self, name: str, *alive: str) -> Shovels:
        place = self.places[name] = Place(*alive)
        shovels = self.nodes[name] = Shovels(
            name,
            store=self.store,
            access=AccessControl(self.store, random_bytes=os.urandom),
            place=place,
            connect_within=_refuse,
            cluster_name=lambda: "here",
            clock=LoopClock(asyncio.get_running_loop()),
            random=Random(1),
        )
        shovels.start()
        return shovels

    def set(self, node: str, value: Any = VALUE, user: str = "") -> Commit:
        return self.store.transact([Write(KEY, ParameterRecord(value, user, node))])

    @property
    def record(self) -> ParameterRecord:
        stored = self.store.get(KEY)
        assert stored is not None and isinstance(stored.record, ParameterRecord)
        return stored.record

    def runs(self) -> list[str]:
        return [name for name, shovels in self.nodes.items() if shovels.counts()["starting"]]


async def _refuse(*_: object) -> None:
    raise OSError("not here")


def run(work: Callable[[World], Any]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await work(world)
        finally:
            for shovels in world.nodes.values():
                await shovels.stop()

    uvloop.run(whole())


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0)


def test_shovel_runs_where_its_record_says() -> None:
    async def work(world: World) -> None:
        world.node("a", "a", "b")
        world.node("b", "a", "b")
        world.set("b")
        assert world.runs() == ["b"]
        assert [row["node"] for row in world.nodes["b"].rows()] == ["b"]
        assert world.nodes["a"].rows() == []
        assert [row["node"] for row in world.nodes["a"].all_rows()] == ["b"]

    run(work)


def test_one_survivor_claims_the_shovel_of_a_node_that_is_down() -> None:
    async def work(world: World) -> None:
        for name in "ab":
            world.node(name, "a", "b", "c")
        world.set("c")
        assert world.runs() == []
        for name in "ab":
            world.places[name].nodes.discard("c")
            world.nodes[name].look_again()
        assert world.record.node == "a"
        assert world.runs() == ["a"]

    run(work)


def test_of_two_claims_at_once_the_first_counts() -> None:
    async def work(world: World) -> None:
        for name in "ab":
            world.node(name, "a", "b", "c")
        world.set("c")
        world.store.held = []
        for name in "ab":
            world.places[name].nodes.discard("c")
            world.nodes[name].look_again()
        assert world.store.decide() == 1
        assert (world.record.node, world.runs()) == ("a", ["a"])

    run(work)


def test_node_that_may_count_as_down_stops_its_shovels_and_claims_none() -> None:
    async def work(world: World) -> None:
        shovels = world.node("a", "a")
        world.set("a")
        world.places["a"].counts = False
        shovels.look_again()
        assert world.runs() == []
        world.set("gone")
        shovels.look_again()
        assert world.record.node == "gone"
        world.places["a"].counts = True
        shovels.look_again()
        await until(lambda: world.runs() == ["a"])

    run(work)


def test_shovel_that_was_claimed_by_another_node_stops() -> None:
    async def work(world: World) -> None:
        world.node("a", "a", "b")
        world.set("a")
        world.set("b")
        assert world.runs() == []

    run(work)


@pytest.mark.parametrize(
    ("value", "user", "restarts"),
    [(VALUE, "", False), ({**VALUE, "src-queue": "b"}, "", True), (VALUE, "poli", True)],
    ids=["same", "value", "user"],
)
def test_changed_shovel_restarts_after_the_old_one_has_ended(
    value: Any, user: str, restarts: bool
) -> None:
    async def work(world: World) -> None:
        shovels = world.node("a", "a")
        world.set("a")
        before = shovels._running[KEY].worker
        world.set("a", value, user)
        assert (world.runs() == []) is restarts
        await until(lambda: world.runs() == ["a"])
        assert (shovels._running[KEY].worker is not before) is restarts

    run(work)


def test_parameter_that_cannot_be_understood_is_shown_and_its_password_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(world: World) -> None:
        shovels = world.node("a", "a")
        world.set("a", {**VALUE, "src-uri": "stomp://user:secret@host"})
        assert world.runs() == []
        assert [row["state"] for row in shovels.all_rows()] == ["starting"]

    run(work)
    assert "shovel_not_understood" in caplog.text
    assert "secret" not in caplog.text
