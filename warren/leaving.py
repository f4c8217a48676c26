"""Leaving a cluster for good, and checking one that is to be joined, while the node is stopped.

A node becomes a member when it starts (`warren/cluster.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from warren.clock import LoopClock
from warren.cluster import written
from warren.config import ClusterConfig
from warren.etcd_access import etcd_client
from warren.mgmt.waiting import through
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.etcd import EtcdClient, EtcdError
from warren.mirror.definitions.etcd_messages import Txn, delete, end_of
from warren.mirror.links.ports import PROTOCOL_VERSION
from warren.mirror.members import leftovers
from warren.mirror.members.directory import MemberDirectory, UnreadableMembership
from warren.mirror.members.membership import Membership, MembershipRefused
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.queue_members import QueueMembers
from warren.node_refused import ClusterRefused
from warren.persist.disk.cluster_file import known_cluster
from warren.persist.disk.data_directory import DataDirectory

NO_ETCD = (
    "the configuration of this node does not say where the cluster's etcd is: set"
    " cluster_formation.etcd.endpoints.1 and cluster.secret_file as at the other nodes, and start"
    " it anew"
)


async def leave_for_good(config: ClusterConfig, name: str, directory: DataDirectory) -> None:
    """Leave the cluster, delete the definitions of queues that only this node has, and be no member
    of any queue.

    The last member deletes the whole cluster from etcd. Does nothing for a node that is not a
    member. Raises `ClusterRefused`; then it may be tried again.
    """
    cluster_id = known_cluster(directory)
    if cluster_id is None:
        return
    async with _etcd(config, name) as etcd:
        members = (await MemberDirectory(etcd, config.etcd_prefix).look()).members
        own = members.get(name)
        if own is None or own.node_id != directory.node_id:
            return
        if len(members) == 1:
            prefix = config.etcd_prefix.rstrip("/").encode() + b"/"
            await etcd.txn(Txn(success=[delete(prefix, end_of(prefix))]))
            return
        await _leave_queues(config, etcd, name, members.keys() - {name})
        await _leave(config, etcd, name, directory, cluster_id)


async def _leave_queues(
    config: ClusterConfig, etcd: EtcdClient, name: str, left: Collection[str]
) -> None:
    metadata = await ClusterMetadata.open(etcd, config.etcd_prefix, name, attempts=1)
    try:
        clock = LoopClock(asyncio.get_running_loop())
        members = QueueMembers(QueueDefinitions(metadata, clock))
        await through(members.forget(name, left))
        await written(metadata, leftovers.of_forgotten(metadata, name))
    finally:
        await metadata.aclose()


async def _leave(
    config: ClusterConfig, etcd: EtcdClient, name: str, directory: DataDirectory, cluster_id: str
) -> None:
    membership = await Membership.open(
        etcd,
        config.etcd_prefix,
        name,
        directory.node_id,
        clock=LoopClock(asyncio.get_running_loop()),
        new_cluster_id=secrets.token_urlsafe(16),
        protocol=PROTOCOL_VERSION,
        expected_cluster_id=cluster_id,
    )
    try:
        await membership.leave(for_good=True)
    finally:
        await membership.aclose()


async def expect_may_join(
    config: ClusterConfig | None, name: str, directory: DataDirectory, member: str
) -> bool:
    """Whether this node is in the cluster of `member` already; if not, its next start joins it.

    The cluster is the one in the etcd that this node's own configuration names. Raises
    `ClusterRefused` if `member` is not in it, or if this node has data of its own that it would
    lose.
    """
    if config is None:
        raise ClusterRefused(NO_ETCD)
    if member == name:
        raise ClusterRefused(f"cannot cluster node with itself: {name}")
    async with _etcd(config, name) as etcd:
        members = (await MemberDirectory(etcd, config.etcd_prefix).look()).members
    if member not in members:
        raise ClusterRefused(
            f"node {member} is no member of the cluster below {config.etcd_prefix} in the etcd at"
            f" {', '.join(config.etcd_endpoints)}; its members: {', '.join(members) or 'none'}"
        )
    own = members.get(name)
    if own is not None and own.node_id == directory.node_id:
        return True
    if known_cluster(directory) is not None or directory.holds_data:
        raise ClusterRefused(
            f"node {name} has definitions or messages of its own; `warren ctl reset` empties it"
        )
    return False


@asynccontextmanager
async def _etcd(config: ClusterConfig, name: str) -> AsyncIterator[EtcdClient]:
    etcd = etcd_client(config)
    try:
        yield etcd
    except EtcdError as error:
        raise ClusterRefused(f"node {name} cannot use the etcd of its cluster: {error}") from error
    except (MembershipRefused, UnreadableMembership) as error:
        raise ClusterRefused(f"node {name} cannot leave or join: {error}") from error
    finally:
        await etcd.close()
