"""Draining a node of a cluster, as the node itself sees it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from warren.clock import LoopClock
from warren.cluster import Cluster
from warren.config import ClusterConfig


def test_a_node_that_is_revived_while_it_is_drained_hands_over_no_more() -> None:
    async def drained_and_revived() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        no: Any = None
        cluster = Cluster(ClusterConfig((), b""), "a", clock, no, no, None, None)
        asked = []

        def drain() -> int:
            asked.append(cluster.maintenance.may_lead("a"))
            return 1

        cluster.mirroring = cast(Any, SimpleNamespace(hand_overs=SimpleNamespace(drain=drain)))
        draining = asyncio.create_task(cluster.drain())
        while not asked:
            await asyncio.sleep(0)
        cluster.revive()
        await asyncio.wait_for(draining, 10)
        assert not any(asked)

    asyncio.run(drained_and_revived())
