"""Why a queue has no leader that serves it, and what it waits for, in words for operators."""

from __future__ import annotations

from collections.abc import Sequence

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.ports import CarrierKind
from warren.mirror.replication.definition.former_nodes import nodes_with_former_copies
from warren.mirror.replication.definition.replicas import WHEN_SYNCED
from warren.mirror.replication.elections.election import votes_wanted

_ALL_LOST = "its leader is forgotten, and no copy that is left has all its messages"
_A_POLICY = "a policy with ha-promote-on-failure: always, by which a mirror leads with what it has"


def waits_for(record: QueueRecord, promote: str) -> str:
    """Return what has to happen before a node leads the queue; `promote` is the policy's
    `ha-promote-on-failure`."""
    awaited = [] if record.leader_is_forgotten else [f"its leader {record.leader}"]
    if record.in_sync:
        needed = votes_wanted(record) if CarrierKind.of(record) is CarrierKind.LOG else 1
        nodes = ", ".join(record.in_sync)
        awaited.append(f"{needed} of the nodes that have all its messages: {nodes}")
    if awaited:
        return ", or ".join(awaited)
    nodes = ", ".join(nodes_with_former_copies(record))
    if nodes:
        return f"all nodes that had a copy, of which the one that has most will lead: {nodes}"
    if promote == WHEN_SYNCED:
        return f"its deletion, or {_A_POLICY}: {_ALL_LOST}"
    return f"a mirror to take the lead: {_ALL_LOST}"


def damaged_leader_waits_for(record: QueueRecord, mirrors: Sequence[str]) -> str:
    """Return what a queue waits for if only a copy with all messages may lead it, and its leader
    has found damage on its disk."""
    awaited = f"nodes that may have what the damaged disk of {record.leader} lacks"
    way_on = "" if record.members else f", or {_A_POLICY}"
    return f"{awaited}: {', '.join(mirrors)}{way_on}"
