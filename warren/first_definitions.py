"""The definitions that a node without a cluster brings into the cluster that it begins.

They are in the shared definitions before the data directory is noted as that of a member
(`cluster.json`), and a node can end in between. Until then `cluster.begun` says that the
directory's own definitions still hold, so that the next start can go on.
"""

from __future__ import annotations

from warren.core.definitions.records import QueueRecord
from warren.core.ports import MetadataStore, Stored, Write
from warren.mirror.members.membership import Membership
from warren.node_refused import ClusterRefused
from warren.persist.disk.cluster_file import KnownCluster, note_beginning, read_beginning
from warren.persist.disk.data_directory import DataDirectory


class FirstDefinitions:
    """The definitions of one node, on their way into a cluster; there may be none.

    A node without a data directory has no definitions when it starts.
    """

    def __init__(
        self, definitions: list[Stored], directory: DataDirectory | None, node_name: str
    ) -> None:
        self._definitions = definitions if directory is not None else []
        self._directory = directory
        self._node_name = node_name
        self._goes_on = False

    def begin(self, membership: Membership) -> None:
        """Note that this node begins the cluster. Raises `ClusterRefused`, OSError.

        There may be no other members, unless an earlier start was cut off after it had joined.
        """
        directory = self._directory
        if directory is None or not self._definitions:
            return
        known = KnownCluster(membership.identity.cluster_id, self._node_name)
        own = membership.members().get(self._node_name)
        self._goes_on = (
            read_beginning(directory.path) == known
            and own is not None
            and own.node_id == directory.node_id
        )
        if membership.members() and not self._goes_on:
            raise self._refusal()
        note_beginning(directory.path, known)

    async def joined(self, membership: Membership, *, first: bool) -> None:
        """Leave again if another node has joined in the same moment. Raises `ClusterRefused`.

        `first`: no other node was up.
        """
        if self._definitions and not self._goes_on and not first:
            await membership.leave(for_good=True)
            raise self._refusal()

    def writes(self, shared: MetadataStore) -> list[Write]:
        """The writes of the definitions that the shared ones lack. This node leads the queues."""
        return [
            Write(key, _led_by(record, self._node_name))
            for key, record, _ in self._definitions
            if shared.get(key) is None
        ]

    def _refusal(self) -> ClusterRefused:
        return ClusterRefused(
            f"node {self._node_name} has definitions of its own, and the cluster has others; to"
            " join it, start with an empty data directory"
        )


def _led_by(record: object, node_name: str) -> object:
    if not isinstance(record, QueueRecord):
        return record
    return QueueRecord(
        record.auto_delete,
        record.arguments,
        record.queue_id,
        durable=record.durable,
        exclusive=record.exclusive,
        leader=node_name,
    )
