"""What many mirrored queues have to do at the same moment is done in several turns of the loop."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mirrored import declare_mirrored, ha_cluster, record

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
