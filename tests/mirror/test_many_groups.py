"""What many mirrored queues have to do at the same moment is done in several turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrored import declare_mirrored, ha_cluster, record
from pamqp import commands

from warren.mirror.carriers.ports import MemberId
from warren.mirror.definitions.cluster_metadata import APPLYING_S, ClusterMetadata
from warren.mirror.gm import shell
from warren.mirror.gm.shell import GroupMember

QUEUES = [f"ha{number}" for number in range(20)]
AT_ONCE = 4


def test_members_hear_of_the_end_of_a_node_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "TOLD_AT_ONCE", AT_ONCE)
    cluster = ha_cluster()
    client = cluster["a"].connects()
    client.opens_channel(1)
    for queue in QUEUES:
        declare_mirrored(cluster, client, queue)
    told: list[int] = []
    peer_gone = GroupMember.peer_gone

    def noted(member: GroupMember, peer: MemberId) -> None:
        told.append(member.queue_id)
        peer_gone(member, peer)

    monkeypatch.setattr(GroupMember, "peer_gone", noted)
    cluster["b"].mirroring._groups._node_down("a")
    at_once = len(told)
    cluster.settle()
    assert 0 < at_once <= AT_ONCE
    assert len(set(told)) == len(QUEUES)


def test_all_queues_of_a_node_that_ends_get_another_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "TOLD_AT_ONCE", AT_ONCE)
    cluster = ha_cluster()
    client = cluster["a"].connects()
    client.opens_channel(1)
    for queue in QUEUES:
        declare_mirrored(cluster, client, queue)
    cluster.kill("a")
    cluster.clock.advance(30)
    assert {record(cluster, queue).leader for queue in QUEUES} <= {"b", "c"}


def test_second_member_waits_while_its_node_has_much_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one has, too, and two that write the same record cost more than twice as much."""
    cluster = ha_cluster()
    clients = {name: cluster[name].connects() for name in "abc"}
    for client in clients.values():
        client.opens_channel(1)
    for queue in QUEUES:
        declare_mirrored(cluster, clients["a"], queue)
    decided: list[bool] = []
    decide = cluster.history.decide
    monkeypatch.setattr(cluster.history, "decide", lambda batch: note(decided, decide(batch)))
    for name in "bc":
        cluster.cut_store(name)
        clients[name].sends(commands.Queue.Declare, queue=f"of {name}", arguments={})
    cluster.kill("a")
    cluster.clock.advance(6)
    for name in "bc":
        cluster.restore_store(name)
    cluster.clock.advance(10)
    assert {record(cluster, queue).leader for queue in QUEUES} <= {"b", "c"}
    assert len(decided) >= 3 * len(QUEUES) and all(decided)


def note(noted: list[bool], taken: Sequence[bool]) -> Sequence[bool]:
    noted += taken
    return taken


def test_others_have_their_turn_between_revisions_that_take_long() -> None:
    applied: list[str] = []

    def slowly(revision: str) -> None:
        time.sleep(2 * APPLYING_S)
        applied.append(revision)

    async def work() -> list[int]:
        seen: list[int] = []

        async def others() -> None:
            while len(applied) < 5:
                seen.append(len(applied))
                await asyncio.sleep(0)

        store = cast(ClusterMetadata, SimpleNamespace(_apply_revision=slowly))
        revisions = cast(Any, list("12345"))
        await asyncio.gather(ClusterMetadata._apply_all(store, revisions), others())
        return seen

    assert asyncio.run(work()) == [1, 2, 3, 4]
