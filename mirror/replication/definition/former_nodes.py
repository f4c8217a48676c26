"""Which nodes have former copies of a queue that count when its leader is lost for good.

The copy of a mirror that stops, dies or is cut off is whole no more, and the leader goes on without
it; so does a leader that is back after a start of the whole cluster, until its mirrors have caught
up. What such a node has on disk is less than what the leader has, but more than nothing: if the
leader is forgotten while no other copy is whole, the former copy that has most leads
(`forgotten_leaders.py`). The definition names these nodes. Those of a quorum queue or stream are
its members.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.mirror.replication.definition.confirm_rule import ALL
from warren.mirror.replication.definition.promotion import leader_is_lost


def nodes_with_former_copies(record: QueueRecord) -> Sequence[str]:
    """The nodes that may have former copies: those to ask when no node has a whole copy."""
    return record.members or record.former


def has_only_former_copies(record: QueueRecord) -> bool:
    """Whether a queue has lost its leader for good, and there are at most former copies of it."""
    is_lost = record.leader_is_forgotten and not record.in_sync
    return is_lost and bool(nodes_with_former_copies(record))


def may_have_confirmed(record: QueueRecord, epoch: int) -> bool:
    """Whether a copy of this epoch that was not whole may have messages which the leader confirmed,
    and which the next leader lacks: the leader was lost for good. Of queues with members only whole
    copies count for confirms."""
    is_replaced = epoch < record.epoch and leader_is_lost(record.promoted)
    return not record.members and (is_replaced or has_only_former_copies(record))


def without_copies(record: QueueRecord, gone: Collection[str]) -> QueueRecord:
    """The definition without the mirrors of these nodes, which are lost, or cannot lead."""
    mirrors = [mirror for mirror in record.mirrors if mirror not in gone]
    # An election counts with these copies: they may have had what the others lack.
    lost = 0 if record.acks == ALL else sum([mirror in gone for mirror in record.in_sync])
    has_votes = bool(record.carrier) and mirrors != record.mirrors
    return with_mirrors(record, mirrors, lost, has_votes=has_votes)


def with_mirrors(
    record: QueueRecord, mirrors: list[str], missing: int, *, has_votes: bool
) -> QueueRecord:
    """The definition with these mirrors only, and so many more copies that are missing. If mirrors
    vote it has another ballot: one that is dropped may be a mirror again before an election is
    over, and its vote is void."""
    return msgspec.structs.replace(
        record,
        mirrors=mirrors,
        in_sync=[mirror for mirror in record.in_sync if mirror in mirrors],
        ballot=record.ballot + has_votes,
        missing=record.missing + missing,
    )


def is_former_needed(record: QueueRecord, node: str) -> bool:
    """Whether the former copy of this node is kept, as only the leader has a whole one."""
    return node in record.former and not record.in_sync


def former_without(record: QueueRecord, leader: str, in_sync: Collection[str]) -> list[str]:
    """Return the value of `former` for a definition in which only the copies of `leader` and of the
    mirrors `in_sync` are whole; `record` is the definition before."""
    if record.members or not record.durable:
        return []
    before = [] if record.leader_is_forgotten else [record.leader]
    had_one = dict.fromkeys([*record.former, *record.in_sync, *before])
    return [node for node in had_one if node != leader and node not in in_sync]


def without_former(record: QueueRecord) -> QueueRecord | None:
    """Return the definition without the nodes named for former copies, when these copies are not
    wanted or are gone; None if it names none."""
    return msgspec.structs.replace(record, former=[]) if record.former else None
