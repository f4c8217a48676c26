"""The members of the cluster and which of them are up, and this node's own place among them.

Answerable for one node per name, for a lease that its holder gives up in time, and for reporting
nodes that come up and go down. The rules are in `presence.py`; the state in etcd, and its changes,
in `directory.py`.

When a watch reports a change, and with every keep-alive, all members and presences are read anew.
There are few of them, so a change that a watch has missed does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from warren.core.log_line import log_event, log_fault
from warren.core.ports import Clock, Timer
from warren.mirror.definitions.cluster_log import logger
from warren.mirror.definitions.ending import end_tasks
from warren.mirror.definitions.etcd import EtcdClient, EtcdError, EtcdRefused, WatchStream
from warren.mirror.members.directory import (
    FoundMembers,
    MemberDirectory,
    NameState,
    UnreadableMembership,
)
from warren.mirror.members.presence import (
    RENEWALS_PER_TTL,
    ClusterIdentity,
    ClusterMember,
    LeaseDeadline,
    Presence,
    presence_changes,
)

FORMAT = 1
"""The format of all that Warren keeps in etcd, definitions included."""
LEASE_TTL_S = 10
RETRY_S = 0.25
TRIES_MAX = 10
"""Tries of a change that others are faster to make; ten times in a row is no accident."""


class MembershipRefused(Exception):
    """The cluster refuses an operation; the text says why and what to do."""


class DuplicateName(MembershipRefused):
    """The name belongs to another node."""


class ForgottenMember(MembershipRefused):
    """The cluster has forgotten this node; the node must begin anew."""


class IncompatibleCluster(MembershipRefused):
    """The cluster is another one than expected, or this version of Warren cannot join it."""


class MemberIsUp(MembershipRefused):
    """A running node cannot be forgotten."""


class UnknownMember(MembershipRefused):
    """The cluster has no member with this name."""


class JoinedCluster(NamedTuple):
    """`first`: no node was up, nor an earlier process of this one, so transient definitions are
    left over."""

    presence: Presence
    first: bool


class Membership:
    """One node's view of its cluster, and its own place in it. Made by `open`.

    `on_node_up` and `on_node_down` report other nodes; a node that is back under a new incarnation
    is reported down first. `on_lease_lost` is called once for each `join` whose lease ended without
    `leave`: from then on other nodes may count this node as down.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        directory: MemberDirectory,
        node_name: str,
        node_id: str,
        clock: Clock,
        identity: ClusterIdentity,
        lease_ttl_s: int,
    ) -> None:
        self.identity = identity
        self.on_node_up: Callable[[str, Presence], None] = _ignore
        self.on_node_down: Callable[[str, Presence], None] = _ignore
        self.on_lease_lost: Callable[[], None] = _ignore
        self._etcd = etcd
        self._directory = directory
        self._name = node_name
        self._node_id = node_id
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._found = FoundMembers(0, {}, {})
        self._own: Presence | None = None
        self._up_since = 0
        self._lease = 0
        self._deadline: LeaseDeadline | None = None
        self._deadline_timer: Timer | None = None
        self._stream: WatchStream | None = None
        self._joined = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        etcd: EtcdClient,
        prefix: str,
        node_name: str,
        node_id: str,
        *,
        clock: Clock,
        new_cluster_id: str,
        protocol: int,
        expected_cluster_id: str | None = None,
        lease_ttl_s: int = LEASE_TTL_S,
    ) -> Membership:
        """Read a cluster, without joining it; make it with `new_cluster_id` if there is none.

        `protocol` is that of the links between nodes; `expected_cluster_id` is the id of the
        cluster that the node was in when it last ran. Raises `IncompatibleCluster`, `EtcdError`,
        `UnreadableMembership`.
        """
        directory = MemberDirectory(etcd, prefix)
        own = ClusterIdentity(expected_cluster_id or new_cluster_id, FORMAT, protocol)
        identity = await directory.identity(own)
        _expect_compatible(identity, own, expected_cluster_id)
        membership = cls(etcd, directory, node_name, node_id, clock, identity, lease_ttl_s)
        membership._see(await directory.look())
        loop = asyncio.get_running_loop()
        works = (membership._watch(), membership._keep())
        membership._tasks += [loop.create_task(work) for work in works]
        for task in membership._tasks:
            task.add_done_callback(_raise_fault)
        return membership

    def members(self) -> Mapping[str, ClusterMember]:
        """All members by name, as last seen."""
        return self._found.members

    def machine_of(self, name: str) -> str:
        """The machine of a node: the same for processes of one broker, different for all others."""
        member = self._found.members.get(name)
        return (member.machine if member is not None else "") or name

    def is_beside(self, name: str) -> bool:
        """Whether a node is another process of this node's broker."""
        return name != self._name and self.machine_of(name) == self.machine_of(self._name)

    def running(self) -> Mapping[str, Presence]:
        """The nodes that are up, by name, including this one; as last seen."""
        return self._found.running

    def expected(self) -> set[str]:
        """The other nodes that are up, and the other processes of this broker: these are started
        together with this one."""
        beside = {name for name in self._found.members if self.is_beside(name)}
        return beside | (self._found.running.keys() - {self._name})

    def holds_lease(self) -> bool:
        """Whether other nodes must still count this node as up; asks the clock at each call."""
        return self._deadline is not None and self._deadline.held(self._clock.now())

    async def join(
        self, link_host: str, link_port: int, version: str, machine: str = ""
    ) -> JoinedCluster:
        """Become a member, if this node is none yet, and be up.

        The node takes over the presence that an earlier process of it has left. Raises
        `DuplicateName`, `ForgottenMember`, `EtcdError`, `UnreadableMembership`.
        """
        assert not self.holds_lease(), "joined already"
        self._end_lease()
        sent_at = self._clock.now()
        lease = await self._etcd.grant_lease(self._lease_ttl_s)
        now = self._clock.wall_time()
        for _ in range(TRIES_MAX):
            state = await self._directory.state_of(self._name, self._node_id)
            self._expect_may_join(state)
            member = state.member or ClusterMember(self._node_id, now)
            member = msgspec.structs.replace(
                member, incarnation=member.incarnation + 1, machine=machine
            )
            presence = Presence(
                self._node_id, member.incarnation, link_host, link_port, version, now
            )
            claimed = await self._directory.claim(self._name, state, member, presence, lease.ID)
            if claimed is not None:
                self._own, self._up_since = presence, claimed.revision
                self._begin_lease(lease.ID, LeaseDeadline(lease.TTL, sent_at))
                self._see(await self._directory.look())
                return JoinedCluster(presence, claimed.first)
        raise DuplicateName(f"others keep claiming the name {self._name} of this node")

    async def leave(self, *, for_good: bool = False) -> None:
        """Go down in order; `for_good` also ends the membership of this node."""
        lease = self._lease
        self._end_lease()
        if for_good:
            state = await self._directory.state_of(self._name, self._node_id)
            if state.member is not None and state.member.node_id == self._node_id:
                await self._directory.remove(self._name, state)
        if lease:
            # If etcd refuses, the lease has expired already.
            with suppress(EtcdRefused):
                await self._etcd.revoke_lease(lease)

    async def forget(self, name: str) -> ClusterMember:
        """Remove a member that is down, so that it cannot come back.

        Raises `MemberIsUp`, `UnknownMember`, `EtcdError`.
        """
        for _ in range(TRIES_MAX):
            state = await self._directory.state_of(name, self._node_id)
            if state.up is not None:
                break
            if state.member is None:
                raise UnknownMember(f"the cluster has no member {name}")
            if await self._directory.forget(name, state):
                self._see(await self._directory.look())
                return state.member
        raise MemberIsUp(f"node {name} is running; stop it before it is forgotten")

    async def cluster_name(self) -> str | None:
        """The name that users gave the cluster; None if it has none."""
        return await self._directory.name()

    async def set_cluster_name(self, name: str) -> None:
        await self._directory.set_name(name)

    async def aclose(self) -> None:
        """Stop watching. The lease ends by itself, unless `leave` was called before."""
        self._end_lease()
        await end_tasks(self._tasks)

    def _expect_may_join(self, state: NameState) -> None:
        if state.forgotten:
            raise ForgottenMember(
                f"the cluster has forgotten node {self._name} ({self._node_id}); to join as a new"
                " one, start with an empty data directory"
            )
        if state.up is not None and state.up.node_id != self._node_id:
            raise DuplicateName(
                f"duplicate name: a node {self._name} is up at"
                f" {state.up.link_host}:{state.up.link_port}; give this one another name"
            )
        if state.member is not None and state.member.node_id != self._node_id:
            raise DuplicateName(
                f"duplicate name: {self._name} belongs to another node, which is down; give this"
                " one another name, or forget that one first"
            )

    # This node's lease

    def _begin_lease(self, lease: int, deadline: LeaseDeadline) -> None:
        self._lease, self._deadline = lease, deadline
        self._joined.set()
        self._set_deadline_timer(deadline)

    def _set_deadline_timer(self, deadline: LeaseDeadline) -> None:
        delay_s = max(0.0, deadline.expires_at - self._clock.now())
        self._deadline_timer = self._clock.call_later(
            delay_s, lambda: self._deadline_passed(deadline)
        )

    def _deadline_passed(self, deadline: LeaseDeadline) -> None:
        """Lose the lease, unless keep-alives have moved the deadline meanwhile."""
        if deadline.held(self._clock.now()):
            self._set_deadline_timer(deadline)
        else:
            self._lose_lease("no keep-alive was answered in time")

    def _lose_lease(self, reason: str) -> None:
        self._end_lease()
        log_event(logger, logging.ERROR, "cluster_lease_lost", node=self._name, reason=reason)
        _call(self.on_lease_lost)

    def _end_lease(self) -> None:
        self._lease = 0
        self._deadline = None
        self._joined.clear()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    async def _keep(self) -> None:
        """Keep the lease alive, and read members and presences as often."""
        while True:
            await self._pause()
            try:
                await self._keep_alive()
                # The next keep-alive is due then, and must not wait for an answer to this.
                async with asyncio.timeout(self._lease_ttl_s / RENEWALS_PER_TTL):
                    found = await self._directory.look()
            except (EtcdError, TimeoutError):
                # Only try again: the node learns from its lease that etcd is lost, or earlier from
                # its definitions.
                await asyncio.sleep(RETRY_S)
            except UnreadableMembership as error:
                log_event(logger, logging.ERROR, "cluster_members_unreadable", error=error)
            else:
                if self._see(found) and self._stream is not None:
                    # The watch has missed this change: close it, so that another one begins.
                    self._stream.close()

    async def _pause(self) -> None:
        """Wait until the next keep-alive is due, or, without a lease, until one begins."""
        deadline = self._deadline
        if deadline is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), self._lease_ttl_s / RENEWALS_PER_TTL)
        else:
            await asyncio.sleep(max(0.0, deadline.renew_at - self._clock.now()))

    async def _keep_alive(self) -> None:
        lease, deadline = self._lease, self._deadline
        if deadline is None:
            return
        sent_at = self._clock.now()
        ttl_s = await self._etcd.keep_alive(lease, self._lease_ttl_s / RENEWALS_PER_TTL)
        if self._deadline is not deadline:
            return
        deadline.answered(sent_at, ttl_s, self._clock.now())
        if not self.holds_lease():
            self._lose_lease("etcd says that it has expired")

    # Other nodes

    async def _watch(self) -> None:
        while True:
            try:
                wanted = self._directory.changes_after(self._found.revision)
                async with await self._etcd.watch(wanted) as stream:
                    self._stream = stream
                    while True:
                        if (await stream.next_answer()).events:
                            self._see(await self._directory.look())
            except EtcdError:
                # Also for a compacted revision: reading everything anew needs no history.
                pass
            except UnreadableMembership as error:
                log_event(logger, logging.ERROR, "cluster_members_unreadable", error=error)
            finally:
                self._stream = None
            await asyncio.sleep(RETRY_S)
            with suppress(EtcdError, UnreadableMembership):
                self._see(await self._directory.look())

    def _see(self, found: FoundMembers) -> bool:
        """Take over a newer state and report what has changed; return whether any presence has."""
        if found.revision < self._found.revision:
            return False
        before, self._found = self._found, found
        changes = presence_changes(before.running, found.running)
        for name, presence, up in changes:
            if name == self._name:
                continue
            event = "cluster_node_up" if up else "cluster_node_down"
            log_event(logger, logging.INFO, event, node=name, incarnation=presence.incarnation)
            _call(self.on_node_up if up else self.on_node_down, name, presence)
        is_up = found.running.get(self._name) == self._own
        if self._deadline is not None and found.revision >= self._up_since and not is_up:
            self._lose_lease("etcd does not have this node as running")
        return bool(changes)


def _expect_compatible(
    identity: ClusterIdentity, own: ClusterIdentity, expected_cluster_id: str | None
) -> None:
    if expected_cluster_id not in (None, identity.cluster_id):
        raise IncompatibleCluster(
            f"this node belongs to cluster {expected_cluster_id}, etcd holds {identity.cluster_id};"
            " check the endpoints and the prefix, or start with an empty data directory"
        )
    if identity.format != own.format or identity.protocol != own.protocol:
        raise IncompatibleCluster(
            f"the cluster has format {identity.format} and link protocol {identity.protocol}, this"
            f" version of Warren has {own.format} and {own.protocol}; start the version it was"
            " made with"
        )


def _ignore(*arguments: object) -> None:
    """The callback until another one is set."""


def _call(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log_fault(logger, "membership_callback_failed")


def _raise_fault(task: asyncio.Task[None]) -> None:
    """Raise the error that ended a task, so that the loop reports it: no task ends by itself."""
    if not task.cancelled():
        task.result()
