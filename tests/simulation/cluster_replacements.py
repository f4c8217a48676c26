"""Nodes of a history that are lost with their disks, forgotten by the others, and replaced.

A new node has the name of the lost one, and nothing on its disk. Until the lost one is forgotten no
node of that name may join.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import cluster_checks as checks
from cluster_client import ADMIN
from cluster_faults import LEASE_S
from pamqp import commands

from warren.core.definitions.records import QueueRecord, forgotten
from warren.core.scheduling.waiting import run as run_to_end
from warren.mirror.members import leftovers
from warren.mirror.replication.definition.former_nodes import (
    has_only_former_copies,
    nodes_with_former_copies,
)

if TYPE_CHECKING:
    from cluster_history import History

FORGET_AGAIN_S = 3.0
"""An operator repeats what was interrupted."""

NEVER_S = 1e6

REPLACED_AFTER_S = (0.01, 0.5, 3.0, 8.0)

ELECTED_S = 20.0
"""After so long a queue has a leader if it can have one."""


class Replacements:
    """Loses nodes of a history, and replaces them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster

    def begin(self, name: str) -> None:
        """A node dies, and its disk with it."""
        history = self._history
        if name in self._cluster.dead or len(self._cluster.alive) < 2:
            return
        history.seen["lost with its disk"] += 1
        history.lost.add(name)
        history.ledger.node_lost(name)
        history._kill(name, NEVER_S)
        history.lose_disk(name)
        self._cluster.cards.pop(name, None)
        history.after(LEASE_S + history.random.uniform(0.01, 2.0), lambda: self._forget(name))

    def _forget(self, name: str) -> None:
        history, cluster = self._history, self._cluster
        if name not in self._history.lost:
            return
        history.after(FORGET_AGAIN_S, lambda: self._forget(name))
        able = [node for node in cluster.working if not cluster.is_store_cut(node)]
        if not able or name in cluster.present:
            return
        at = cluster[history.random.choice(able)]
        cluster.forgotten.add(name)
        for queue, record in checks.queue_records(cluster).items():
            if record.leader in (name, forgotten(name)) and not history.ledger.has_former(queue):
                # It is deleted if no node has a copy of it.
                history.ledger.deletable.add(queue)

        def members_changed(result: Callable[[], None]) -> None:
            result()
            at.metadata.transact(leftovers.of_forgotten(at.metadata, name)).then(over)

        def over() -> None:
            if name in self._history.lost:
                history.seen["forgotten"] += 1
                self._history.lost.discard(name)
                delay_s = history.random.choice(REPLACED_AFTER_S)
                history.after(delay_s, lambda: history._restart(name))

        left = cluster.nodes.keys() - cluster.forgotten
        run_to_end(at.mirroring.queue_members.forget(name, left), members_changed)

    def end(self) -> None:
        """All nodes that are not lost are up. Forget those that are, and delete what cannot be led
        any more."""
        history = self._history
        for name in sorted(self._history.lost):
            until = history.now + 10 * FORGET_AGAIN_S
            self._cluster.tidy_after(name)
            self._forget(name)
            while name in self._history.lost and history.now < until:
                history._rest(1.0)
            assert name not in self._history.lost, f"{name} is not forgotten"
        history._rest(ELECTED_S)
        for queue, record in checks.queue_records(self._cluster).items():
            if record.leader_is_forgotten:
                history.seen["deleted, as no node could lead it"] += 1
                able = [node for node in record.in_sync if self._has_copy(node, record.queue_id)]
                if has_only_former_copies(record):
                    able = self._had_copies(record)
                assert not able, f"{able} do not lead {queue}: {record}"
                self._delete(queue)
        if history.lettered and checks.record_of(self._cluster, checks.DEAD) is None:
            history._declare(checks.DEAD, history._connect(history._node()))

    def _has_copy(self, node: str, queue_id: int) -> bool:
        """Whether it has a copy with which it could lead: not one that has not begun, in the place
        of one that ended with the life of its node, or whose card was of an earlier epoch."""
        copy = self._cluster[node].mirroring.copies.by_queue.get(queue_id)
        return copy is not None and copy.mirror.started

    def _had_copies(self, record: QueueRecord) -> list[str]:
        """The nodes that have former copies with which they could lead."""
        had = []
        for node in nodes_with_former_copies(record):
            forgotten_leaders = self._cluster[node].mirroring._forgotten_leaders
            if forgotten_leaders.best_copy(record.queue_id) is not None:
                had.append(node)
        return had

    def _delete(self, queue: str) -> None:
        history = self._history
        history.ledger.deletable.add(queue)
        session = history._connect(history._node())
        session.channel(ADMIN).asks(commands.Queue.Delete, queue=queue)
        history._rest(3.0)
        # A client may have declared it again.
        record = checks.record_of(self._cluster, queue)
        assert record is None or not record.leader_is_forgotten, f"{queue} is not deleted"
