"""Builds the parts of a node that is a member of a cluster: shared definitions, membership, links.

Loaded only if a cluster is configured: other nodes do not pay for the client of etcd.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple

from warren import __version__
from warren.addresses import Purpose, refusal
from warren.clock import EndingClock, LoopClock
from warren.cluster_news import tell_others
from warren.cluster_secret import cluster_secret
from warren.config import ClusterConfig, Listener, SslOptions
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Commit, MetadataStore, Stored, Write
from warren.core.queues.placement import Placement
from warren.core.resources.alarms import Alarms
from warren.core.scheduling.periodic import Periodic
from warren.etcd_access import etcd_client
from warren.first_definitions import FirstDefinitions
from warren.mgmt.waiting import done, through
from warren.mirror.definitions.cluster_metadata import ClusterMetadata
from warren.mirror.definitions.ending import end_tasks
from warren.mirror.definitions.etcd import EtcdClient, EtcdError
from warren.mirror.definitions.secret_proof import is_secret_of
from warren.mirror.links.links import Links
from warren.mirror.links.ports import PROTOCOL_VERSION, EndReason, Identity, LinkSettings
from warren.mirror.links.traffic import LinkTraffic
from warren.mirror.members import leftovers
from warren.mirror.members.abreast import Abreast
from warren.mirror.members.client_news import ClientNews
from warren.mirror.members.directory import MemberDirectory, UnreadableMembership
from warren.mirror.members.maintenance import Maintenance
from warren.mirror.members.membership import (
    MemberIsUp,
    Membership,
    MembershipRefused,
    UnknownMember,
)
from warren.mirror.members.ownerless import Ownerless, bindings_to_queues_of
from warren.mirror.members.presence import Presence
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.origin import origin_name
from warren.mirror.messages.post import Post
from warren.mirror.remote.placement import ClusterPlacement
from warren.mirror.remote.queue_host import QueueHost
from warren.mirror.remote.remote_queues import RemoteQueues
from warren.mirror.replication.copies.copy_cards import CardFiles, NoCards, leftover_rule
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.replicas import SyncLimits
from warren.mirror.replication.mirroring import Mirroring
from warren.node_refused import ClusterRefused, StoreLost
from warren.open_files import descriptors
from warren.persist.definitions.deleted_queues import DeletedQueues, no_notes, storage_ids
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.cluster_file import KnownCluster, known_cluster, write_known_cluster
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import OnFault, SyncThread

if TYPE_CHECKING:
    from warren.link_certificates import LinkCertificates

log = logging.getLogger("warren.cluster")

STOP_PATIENCE_S = 2.0
"""How long a stopping node waits until its last changes are in the shared definitions."""

JOIN_AGAIN_S = 0.5

FOUND_S = 10.0
"""The time for which a starting node waits until others dial it: they try at least every 5 s."""

LOST_ETCD = "the node has lost etcd and waits for it"
"""The reason of a pause, as told to clients and shown with the state of the node."""

CERTIFICATE_CHECK_S = 30.0
"""The time between checks whether the certificate files of links were renewed."""

DRAIN_S = 30.0
"""The longest time that an operator waits until queues are handed over."""
DRAIN_POLL_S = 0.05


class NotForgotten(NamedTuple):
    """Why a member is not forgotten; `status` is an HTTP status."""

    status: int
    reason: str


class Cluster:
    """This node's part in its cluster, from `open` to `close`."""

    def __init__(
        self,
        config: ClusterConfig,
        node_name: str,
        clock: LoopClock,
        etcd: EtcdClient,
        membership: Membership,
        replica: LmdbReplica | None,
        certificates: LinkCertificates | None,
    ) -> None:
        self.metadata: ClusterMetadata
        self.membership = membership
        self.post = Post()
        self.calls = Calls(self.post)
        self.maintenance = Maintenance(node_name, self.post)
        self.must_pause = asyncio.Event()
        self.pause_reason = ""
        self.on_nodes_changed: Callable[[], None] = lambda: None
        """Called when nodes have come or gone, and when this node has lost its lease."""
        self._joining_again: asyncio.Task[None] | None = None
        # Nodes whose presence has ended, until this node has tidied up after them or they are back.
        self._ended: set[str] = set()
        self._stopping = False
        self._certificates = certificates
        self._certificate_check = Periodic(clock, self._look_for_renewal)
        self._config = config
        self._node_name = node_name
        self._clock = clock
        self._queues_clock = EndingClock(clock)
        self._etcd = etcd
        self._replica = replica
        self._links: Links
        self._abreast: Abreast
        self._remote_queues: RemoteQueues
        self._flow: dict[str, bool] = {}

    @classmethod
    async def open(
        cls,
        config: ClusterConfig,
        node_name: str,
        loop: asyncio.AbstractEventLoop,
        clock: LoopClock,
        directory: DataDirectory | None,
        own_definitions: list[Stored],
        on_fault: OnFault,
    ) -> Cluster:
        """Join the cluster, or begin it.

        A new cluster begins with the node's `own_definitions`; a node that has any does not join
        another cluster. Raises `ClusterRefused`, `StoreLost`, OSError.
        """
        secret = cluster_secret(config)
        certificates = _link_certificates(config.link_ssl)
        etcd = etcd_client(config)
        replica: LmdbReplica | None = None
        membership: Membership | None = None
        try:
            expected = known_cluster(directory, node_name)
            membership = await _open_membership(config, etcd, node_name, clock, directory, expected)
            await _expect_secret(config, etcd, secret, node_name)
            brought = FirstDefinitions(
                own_definitions if expected is None else [], directory, node_name
            )
            brought.begin(membership)
            if directory is not None:
                replica = LmdbReplica(
                    directory,
                    node_name,
                    call_on_loop=loop.call_soon_threadsafe,
                    call_later=clock.call_later,
                    sync_thread=SyncThread("definitions-sync", on_fault),
                    on_fault=on_fault,
                )
            cluster = cls(config, node_name, clock, etcd, membership, replica, certificates)
            await cluster._join(secret, directory, brought)
        except BaseException as error:
            await _abandon(etcd, membership, replica)
            if isinstance(error, EtcdError):
                problem = f"node {node_name} cannot use the etcd of its cluster: {error}"
                raise StoreLost(problem) from error
            if isinstance(error, MembershipRefused | UnreadableMembership):
                problem = f"node {node_name} cannot be part of its cluster: {error}"
                raise ClusterRefused(problem) from error
            raise
        return cluster

    async def _join(
        self, secret: bytes, directory: DataDirectory | None, brought: FirstDefinitions
    ) -> None:
        config = self._config
        identity = Identity(
            self._node_name,
            directory.node_id if directory is not None else secrets.token_hex(16),
            # A later start has a higher number; links compare it, deliveries are numbered from it.
            time.time_ns(),
            self.membership.identity.cluster_id,
            software=__version__,
        )
        certificates = self._certificates
        # Peers may dial as soon as they know this node; they are answered once there is a node.
        listening = _bound(config.listener)
        self._links = Links(
            identity,
            secret,
            self.post.user(),
            clock=self._clock,
            rng=random.Random(),
            listen=listening,
            settings=LinkSettings(
                strangers_max=descriptors().strangers,
                interval_s=min(0.5, config.link_timeout_s / 5),
                timeout_s=config.link_timeout_s,
            ),
            server_tls=certificates.server if certificates is not None else None,
            client_tls=certificates.client if certificates is not None else None,
        )
        try:
            host = config.advertised_host or _host_of(self._node_name)
            port = listening.getsockname()[1]
            joined = await self.membership.join(host, port, __version__, config.machine)
            await brought.joined(self.membership, first=joined.first)
            self.membership.on_lease_lost = self._lease_lost
            self.metadata = await ClusterMetadata.open(
                self._etcd,
                config.etcd_prefix,
                self._node_name,
                replica=self._replica,
                cluster_id=identity.cluster_id,
                attempts=config.start_attempts,
                attempt_pause_s=config.start_pause_s,
            )
            self._abreast = Abreast(self.metadata, self.calls, self._clock, self.post.peers)
            await written(self.metadata, brought.writes(self.metadata))
            store, name = self.metadata, self._node_name
            left = leftovers.of_cluster(store) if joined.first else leftovers.of_node(store, name)
            await written(store, left)
        except BaseException:
            listening.close()
            raise
        if directory is not None:
            write_known_cluster(directory.path, KnownCluster(identity.cluster_id, self._node_name))
        log_event(log, logging.INFO, "cluster_joined", node=self._node_name, first=joined.first)

    # Parts that the node is built with

    def placement(self, alarms: Alarms, card_files: CardFiles | None) -> Placement:
        self._remote_queues = RemoteQueues(
            self.post,
            self.calls,
            self._queues_clock,
            lambda flow: alarms.set_flow(flow, "nodes"),
            origin_name(self._node_name, self._links.identity.incarnation),
        )
        nodes = Nodes(
            self._node_name,
            running=self.running,
            present=self.alive,
            members=lambda: self.membership.members().keys(),
            may_lead=self.maintenance.may_lead,
            machine_of=self.membership.machine_of,
            silent=self._abreast.silent,
        )
        self.mirroring = Mirroring(
            nodes,
            self.post,
            self.calls,
            self.metadata,
            self._queues_clock,
            SystemRandom(),
            card_files or NoCards(),
            SyncLimits(self._config.sync_batch, self._config.sync_rate),
        )
        return ClusterPlacement(
            nodes,
            self.metadata,
            self._remote_queues,
            SystemRandom(),
            self.mirroring,
            self._config.queue_master_locator,
        )

    def backing_queues(
        self, new: Callable[[BackingSpec], BackingQueue]
    ) -> Callable[[BackingSpec], BackingQueue]:
        """A function that makes backing queues; a mirror that takes the lead has its own."""
        self._new_backing = new
        return lambda spec: self.mirroring.backing(spec) or new(spec)

    def with_own_notes(self, own: DeletedQueues) -> DeletedQueues:
        """The notes of deleted queues, also from before the node had a cluster."""
        notes = self._replica.deleted_queues if self._replica is not None else no_notes()
        notes.former |= own.noted
        return notes

    def find_former_copies(
        self, node: Node, card_files: CardFiles, deleted_queues: DeletedQueues, *, is_damaged: bool
    ) -> tuple[Callable[[int], bool], Commit]:
        """Find the copies of an earlier process, before storages that are not open are dropped.

        `is_damaged`: the storage was found damaged, so that any copy may lack messages. Returns a
        predicate of storage ids: true for storages of deleted queues and for useless copies; and a
        commit, done when the damage is noted.
        """
        deleted_queues.copies_of = self.mirroring.copies.storages_of
        named: set[int] = set()
        for stored in self.metadata.records(("queue",)):
            named |= storage_ids(stored.record)
        is_leftover = leftover_rule(named, card_files.read(), deleted_queues.__contains__)
        of_disk = (node, self._new_backing, is_leftover)
        return is_leftover, self.mirroring.find_former_copies(*of_disk, is_damaged=is_damaged)

    async def serve(self, node: Node) -> None:
        """Answer the other nodes from now on, and connect to them."""
        node.global_parameters.name_cluster(node.cluster_name)
        tell_others(node, self._node_name, self.post, self.calls)
        ClientNews(node.vhost_limits.elsewhere, self.post, self.calls)
        Ownerless(self.metadata, self._is_first, bindings_to_queues_of(node))
        node.vhost_limits.elsewhere.is_beside = self.membership.is_beside
        self.mirroring.attach(node, self._new_backing)
        self.post.watch(on_up=lambda name: None, on_down=self._link_down)
        # After `attach`: answers depend on the messages that mirrors here have. The first delivery
        # has the number of the incarnation, a time in ns, which grows faster than nodes deliver.
        QueueHost(node, self.post, self.calls, self.mirroring, self._links.identity.incarnation)
        await self._links.start()
        self.post.open(self._links)
        if self._certificates is not None:
            self._certificate_check.start()
        self.membership.on_node_up = self._node_up
        self.membership.on_node_down = self._node_down
        for name, presence in self.membership.running().items():
            if name != self._node_name:
                self._node_up(name, presence)
        if self._going_on():
            # Nodes that go on without etcd need a while to find this node, or etcd.
            self._clock.call_later(FOUND_S, self._look_for_ended)
        else:
            self._look_for_ended()
        await self._abreast.linked(self.membership.expected)

    @property
    def link_port(self) -> int:
        return self._links.port

    def reload_certificates(self) -> None:
        """Use the present certificates of the links; files that cannot be used are logged."""
        certificates = self._certificates
        if certificates is not None and certificates.reload():
            self._links.use_certificates(certificates.server, certificates.client)

    def _look_for_renewal(self, _now: float) -> float:
        assert self._certificates is not None
        if self._certificates.renewed:
            self.reload_certificates()
        return CERTIFICATE_CHECK_S

    def running(self) -> Collection[str]:
        """The nodes that are up and can be reached, this one included."""
        return {self._node_name, *self.post.peers()}

    def traffic(self, node: str) -> LinkTraffic:
        """The traffic on the links with another node."""
        return self._links.traffic(node)

    def paused(self) -> Collection[str]:
        """The nodes that ended their links with this one because they pause."""
        return self._links.paused

    def _going_on(self) -> Collection[str]:
        """The nodes that serve although their presence may have ended: if the partition handling
        lets nodes go on without etcd, this node and those it is linked with."""
        return () if self._config.partition_handling == "pause_minority" else self.running()

    def may_run(self) -> bool:
        """Whether the others count this node as up, so that no other node takes over its work."""
        return self.membership.holds_lease()

    def alive(self) -> set[str]:
        """The nodes that have a presence or go on without one."""
        return {*self.membership.running(), *self._going_on()}

    def _node_up(self, name: str, presence: Presence) -> None:
        self._ended.discard(name)
        self._links.connect(name, presence.link_host, presence.link_port)

    def _node_down(self, name: str, _presence: Presence) -> None:
        self._ended.add(name)
        if name not in self._going_on():
            self._links.forget(name)
        self._tidy_up()
        self.on_nodes_changed()

    def _look_for_ended(self) -> None:
        """Notice the nodes whose presence ended before this node could see it."""
        self._ended |= self.membership.members().keys() - self.membership.running().keys()
        self._tidy_up()

    def _link_down(self, _name: str) -> None:
        # In the next turn a link that replaces this one is up.
        self._clock.call_soon(self._tidy_up)

    def _tidy_up(self) -> None:
        """Delete objects that do not outlive dead nodes; the first node that is up does it.

        To be called when a presence or a link has ended, and when this node has joined.
        """
        if self._stopping:
            return
        for name in sorted(self._ended - self.alive()):
            self._links.forget(name)
            if not self._is_first():
                # The node stays in `_ended`: the first node may die before it has tidied up.
                continue
            self._ended.discard(name)
            writes = leftovers.of_node(self.metadata, name)
            if writes:
                log_event(
                    log, logging.INFO, "cluster_node_tidied_up", node=name, deleted=len(writes)
                )
                self.metadata.transact(writes)

    def _is_first(self) -> bool:
        return self.may_run() and min(self.membership.running(), default="") == self._node_name

    async def forget(self, name: str) -> NotForgotten | None:
        """Remove a member that is down for good, and the queues that only it has."""
        if name in self._going_on():
            return NotForgotten(409, f"node {name} is running; stop it before it is forgotten")
        try:
            await self.membership.forget(name)
        except UnknownMember as error:
            # A node that was killed while it forgot the member has left its queues to this call.
            if not self.mirroring.queue_members.any_has(name):
                return NotForgotten(404, str(error))
        except (MemberIsUp, EtcdError) as error:
            return NotForgotten(503 if isinstance(error, EtcdError) else 409, str(error))
        await through(self.mirroring.queue_members.forget(name, self.membership.members()))
        await written(self.metadata, leftovers.of_forgotten(self.metadata, name))
        return None

    async def drain(self) -> None:
        """Lead no queue that another node can lead, until `revive`.

        Returns when the queues that can be handed over now have gone, or after `DRAIN_S`.
        """
        self.maintenance.begin()
        deadline = self._clock.now() + DRAIN_S
        # An operator may revive the node while it is being drained.
        while not self.maintenance.may_lead(self._node_name) and self._clock.now() < deadline:
            if not self.mirroring.hand_overs.drain():
                return
            await asyncio.sleep(DRAIN_POLL_S)

    def revive(self) -> None:
        """Queues may be led here again; they do not come back by themselves."""
        self.maintenance.end()

    def _lease_lost(self) -> None:
        """Pause, or go on alone and join again: the others may count this node as down."""
        self.on_nodes_changed()
        if not self._may_go_on():
            self._pause(LOST_ETCD)
            return
        mode = self._config.partition_handling
        log_event(log, logging.WARNING, "cluster_lost_going_on", node=self._node_name, mode=mode)
        self._joining_again = asyncio.get_running_loop().create_task(self._join_again())

    def _may_go_on(self) -> bool:
        mode = self._config.partition_handling
        if mode == "pause_if_all_down":
            return not set(self._config.pause_unless_reached).isdisjoint(self.running())
        return mode != "pause_minority"

    async def _join_again(self) -> None:
        host = self._config.advertised_host or _host_of(self._node_name)
        while True:
            await asyncio.sleep(JOIN_AGAIN_S)
            if not self._may_go_on():
                self._pause(LOST_ETCD)
                return
            try:
                port, machine = self._links.port, self._config.machine
                await self.membership.join(host, port, __version__, machine)
            except EtcdError:
                continue
            except (MembershipRefused, UnreadableMembership) as reason:
                log_event(log, logging.ERROR, "cluster_not_joined_again", reason=reason)
                # A new start reports the reason, and serves no clients meanwhile.
                self._pause(str(reason))
            else:
                self._tidy_up()
            return

    def _pause(self, reason: str) -> None:
        self.pause_reason = reason
        self.must_pause.set()

    async def stop_serving(self) -> None:
        """Let the mirrors of this node's queues take the lead: its clients are gone."""
        # The end of these links does not mean that the nodes at their other ends are down.
        self._stopping = True
        self.mirroring.stop_leading()
        commit = self.metadata.uncommitted()
        if commit is not None and self.metadata.reachable:
            decided = asyncio.Event()
            commit.then(decided.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(decided.wait(), STOP_PATIENCE_S)
        # Changes that the end of the links causes still belong in the node's storage.
        pauses = self.must_pause.is_set()
        await self._links.stop(EndReason.PAUSED if pauses else EndReason.STOPPED)
        self._queues_clock.end()

    async def close(self) -> None:
        """Leave the cluster, so that the others need not detect the end of this node."""
        self._stopping = True
        self._certificate_check.stop()
        if self._joining_again is not None:
            await end_tasks([self._joining_again])
        try:
            await self.membership.leave()
        except EtcdError as error:
            log_event(log, logging.WARNING, "cluster_not_left", reason=error)
        await self._links.stop()
        await self.metadata.aclose()
        await _abandon(self._etcd, self.membership, self._replica)


async def _abandon(
    etcd: EtcdClient, membership: Membership | None, replica: LmdbReplica | None
) -> None:
    if membership is not None:
        await membership.aclose()
    if replica is not None:
        replica.close()
    await etcd.close()


async def _open_membership(
    config: ClusterConfig,
    etcd: EtcdClient,
    node_name: str,
    clock: LoopClock,
    directory: DataDirectory | None,
    expected: str | None,
) -> Membership:
    """Open the membership, with several attempts. Raises `EtcdError` if all of them fail."""
    for attempt in range(1, config.start_attempts + 1):
        try:
            if expected is not None:
                await _expect_members(config, etcd, node_name, expected)
            return await Membership.open(
                etcd,
                config.etcd_prefix,
                node_name,
                directory.node_id if directory is not None else secrets.token_hex(16),
                clock=clock,
                new_cluster_id=f"rabbitmq-cluster-id-{secrets.token_urlsafe(16)}",
                protocol=PROTOCOL_VERSION,
                expected_cluster_id=expected,
                lease_ttl_s=config.lease_ttl_s,
            )
        except EtcdError as error:
            if attempt == config.start_attempts:
                raise
            if attempt == 1:
                log_event(log, logging.WARNING, "cluster_store_unreachable", reason=error)
            await asyncio.sleep(config.start_pause_s)
    raise AssertionError("at least one attempt is made")


async def _expect_members(
    config: ClusterConfig, etcd: EtcdClient, node_name: str, expected: str
) -> None:
    """Refuse an etcd without members: all definitions and messages would be lost."""
    if not (await MemberDirectory(etcd, config.etcd_prefix).look()).members:
        raise ClusterRefused(
            f"node {node_name} is a member of cluster {expected}, and etcd has no cluster below"
            f" {config.etcd_prefix}: check the endpoints, the key prefix and the cluster name."
            " If etcd has lost its data, restore it, or start with an empty data directory"
        )


async def _expect_secret(
    config: ClusterConfig, etcd: EtcdClient, secret: bytes, node_name: str
) -> None:
    if not await is_secret_of(etcd, config.etcd_prefix, secret, secrets.token_hex(16)):
        raise ClusterRefused(
            f"node {node_name} has another secret than the nodes of the cluster that are up;"
            " give it theirs"
        )


async def written(metadata: MetadataStore, writes: list[Write]) -> None:
    """Write these to the shared definitions; returns when they are durable."""
    if writes:
        await done(metadata.transact(writes))


def _link_certificates(options: SslOptions | None) -> LinkCertificates | None:
    """The certificates of the links. Raises `ClusterRefused` if they cannot be used."""
    if options is None:
        return None
    module = import_module("warren.link_certificates")
    try:
        certificates: LinkCertificates = module.LinkCertificates(options)
    except (OSError, ValueError) as error:
        raise ClusterRefused(
            f"the links of this node cannot be encrypted: cluster.links.ssl.certfile"
            f" {options.certfile}, keyfile {options.keyfile}, cacertfile {options.cacertfile}:"
            f" {error}"
        ) from error
    return certificates


def _bound(listener: Listener) -> socket.socket:
    """A socket bound to the address for links. Raises OSError."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    try:
        bound = socket.create_server(listener, family=family)
    except OSError as error:
        raise refusal(Purpose.LINKS, listener, error) from error
    bound.setblocking(False)
    return bound


def _host_of(node_name: str) -> str:
    return node_name.rpartition("@")[2]
