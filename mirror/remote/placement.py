"""The choice of the node that leads a new queue, and of the members of a quorum queue or a stream
(policies_and_parameters.md section 1.5, "default location")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

from warren.core.definitions.records import QueueRecord
from warren.core.errors import InternalFault
from warren.core.messages.settlement import PENDING, REJECTED
from warren.core.ports import Commit, Key, MetadataStore
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.moving import Moving, Unanswered
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.core.queues.queue_type import STREAM, majority_of
from warren.mirror.remote.remote_queue import RemoteQueue
from warren.mirror.remote.remote_queues import RemoteQueues
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.mirroring import Mirroring

QUORUM_SIZE = 3
"""Members of a quorum queue whose declaration does not say how many."""


class ClusterPlacement:
    """Implements `core.queues.placement.Placement`."""

    def __init__(
        self,
        nodes: Nodes,
        metadata: MetadataStore,
        remote_queues: RemoteQueues,
        random: Random,
        mirroring: Mirroring,
        locator: str = "client-local",
    ) -> None:
        self._nodes = nodes
        self._node = nodes.name
        self._metadata = metadata
        self._remote_queues = remote_queues
        self._random = random
        self._mirroring = mirroring
        self._locator = locator
        self._leaders: dict[Key, str] = {}
        self._led: Counter[str] = Counter()
        # By leader, the queues that this node is declaring.
        self._declaring: Counter[str] = Counter()
        for stored in metadata.records(("queue",)):
            self._queue_changed(stored.key, stored.record)
        metadata.watch(("queue",), self._queue_changed)

    def leader_of_new(self, vhost: str, settings: QueueSettings, exclusive: bool) -> str:
        locator = settings.queue_master_locator or self._locator
        nodes = sorted(node for node in self._nodes.running() if self._nodes.may_lead(node))
        if locator == "client-local":
            # To a client, all processes of a broker are one node.
            here = self._nodes.machine_of(self._node)
            nodes = [node for node in nodes if self._nodes.machine_of(node) == here] or nodes
        if exclusive or not nodes or nodes == [self._node]:
            return self._node
        if locator == "random":
            return self._random.choice(nodes)
        # The node that leads the fewest queues; among equals, the client's own.
        return min(
            nodes,
            key=lambda node: (
                self._led[node] + self._declaring[node],
                node != self._node,
                node,
            ),
        )

    def members_of_new(
        self, described: str, settings: QueueSettings, leader: str, *, may_wait: bool = False
    ) -> Sequence[str]:
        """The leader, then other nodes chosen at random, those that are up first (quorum_queues.md
        sections 1 and 6). A stream is at all nodes unless it says otherwise (streams.md)."""
        running = set(self._nodes.running())
        others = sorted({*self._nodes.members(), *running} - {leader})
        self._random.shuffle(others)
        others.sort(key=lambda node: node not in running)
        others = self._on_other_machines(leader, others)
        size = settings.initial_members
        if size is None:
            size = 1 + len(others) if settings.type is STREAM else QUORUM_SIZE
        members = [leader, *others[: size - 1]]
        has_majority = sum([node in running for node in members]) >= majority_of(members)
        if not has_majority and not may_wait:
            raise InternalFault(
                f"Cannot declare {settings.type} {described} on node '{self._node}' with leader on "
                f"node '{leader}': too few of the nodes {', '.join(members)} are up"
            )
        return members

    def _on_other_machines(self, leader: str, others: Sequence[str]) -> list[str]:
        """The first of the nodes on each machine, without the leader's machine."""
        machine_of = self._nodes.machine_of
        first = {machine_of(leader): leader}
        for node in others:
            first.setdefault(machine_of(node), node)
        return [node for node in first.values() if node != leader]

    def declaring(self, leader: str, commit: Commit) -> None:
        if not commit.visible:
            self._declaring[leader] += 1
            commit.then(partial(self._declared, leader))

    def _declared(self, leader: str) -> None:
        self._declaring[leader] -= 1

    def is_here(self, record: QueueRecord) -> bool:
        return record.leader == self._node

    def storage_id(self, record: QueueRecord) -> int:
        return record.storage_id(self._node)

    def remote_queue(
        self,
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> Queue:
        return self._remote_queues.queue(vhost, declared, settings)

    def move_in(self, queue: Queue, moving: Moving) -> None:
        if isinstance(queue, RemoteQueue):
            queue.go_on(moving)
            return
        assert isinstance(queue, LocalQueue)
        queue.move_in(moving.consumers)
        origin = self._remote_queues.origin
        received = self._mirroring.from_afar.received_from(queue.queue_id, origin)
        refused = frozenset(self._mirroring.from_afar.refused_of(queue.queue_id, origin))
        if refused:
            self._mirroring.from_afar.note_heard(queue.queue_id, origin, max(refused))
        known: list[Unanswered] = []
        for publish in moving.unanswered:
            if publish.number in refused:
                _settle([publish], False)
            elif received is None or publish.number <= received:
                known.append(publish)
            else:
                self._publish(queue, publish.for_leader(self._node, -1))
        self._mirroring.when_mirrors_have_all(
            queue, lambda safe: _settle(known, safe and received is not None)
        )

    async def placed(self, queue: Queue) -> None:
        if isinstance(queue, LocalQueue):
            await self._mirroring.mirrored(queue)

    def _publish(self, queue: Queue, publish: Unanswered) -> None:
        """Publish a message that the leader before this node never got."""
        confirms, seq = publish.confirms, publish.publish_seq
        queue.published += 1
        send = queue.publish_again if publish.may_be_delivered else queue.publish
        answer = send(publish.envelope, publish.body, confirms, seq)
        if confirms is not None and answer is not PENDING:
            # The publisher was told to wait for a confirm.
            (confirms.refuse if answer is REJECTED else confirms.settle)(seq)

    def leaders(self, node: str) -> int:
        """The number of queues that a node leads."""
        return self._led[node]

    def _queue_changed(self, key: Key, record: object | None) -> None:
        before = self._leaders.pop(key, None)
        if before is not None:
            self._led[before] -= 1
        if isinstance(record, QueueRecord):
            self._leaders[key] = record.leader
            self._led[record.leader] += 1


def _settle(publishes: list[Unanswered], arrived: bool) -> None:
    """Confirm publishes that are in the queue; refuse those that may not have arrived."""
    for publish in publishes:
        if publish.confirms is not None:
            (publish.confirms.settle if arrived else publish.confirms.refuse)(publish.publish_seq)
