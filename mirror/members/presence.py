"""Who is a member of the cluster and who is up: the rules, without I/O.

- A `Member` is permanent, under the name of its node. A node is known by its id, which stands in
  its data directory; the name belongs to that id until the member leaves or is forgotten.
- A `Presence` is there while its node keeps a lease alive. `incarnation` counts the times the
  member has joined, so that a node that was down and is up again is told apart from one that was
  up all the time, however quickly it came back.
- A `LeaseDeadline` is the moment from which a node must take its own lease for lost. etcd counts
  from when it gets a keep-alive, the node from when it sent it, so the node never holds on for
  longer than etcd does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

RENEWALS_PER_TTL = 3
"""Two keep-alives may get lost before the lease does."""


class Member(msgspec.Struct, frozen=True):
    """`machine` is the same for nodes that are processes of one broker, and empty for others."""

    node_id: str
    added_at: float
    type: str = "disc"
    incarnation: int = 0
    machine: str = ""


class Presence(msgspec.Struct, frozen=True):
    """What a running node tells of itself. `started_at` is in seconds since 1970."""

    node_id: str
    incarnation: int
    link_host: str
    link_port: int
    version: str
    started_at: float


class ClusterIdentity(msgspec.Struct, frozen=True):
    """Written by the first node, never changed. `format` is that of what is in etcd, `protocol`
    that of the links between nodes."""

    cluster_id: str
    format: int
    protocol: int


class PresenceChange(NamedTuple):
    """A node that went down (`up` is False) or came up."""

    name: str
    presence: Presence
    up: bool


class LeaseDeadline:
    """When a lease is lost, as far as its holder can know. Lost once is lost."""

    def __init__(self, ttl_s: float, sent_at: float) -> None:
        self._ttl_s = ttl_s
        self._sent_at = sent_at
        self._lost = False

    @property
    def expires_at(self) -> float:
        return self._sent_at + self._ttl_s

    @property
    def renew_at(self) -> float:
        """When to send the next keep-alive."""
        return self._sent_at + self._ttl_s / RENEWALS_PER_TTL

    def held(self, now: float) -> bool:
        self._lost = self._lost or now >= self.expires_at
        return not self._lost

    def answered(self, sent_at: float, ttl_s: float, now: float) -> None:
        """A keep-alive sent at that time was answered; a TTL of 0 says that the lease is gone."""
        if ttl_s <= 0:
            self._lost = True
        if self.held(now) and sent_at > self._sent_at:
            self._sent_at = sent_at
            self._ttl_s = ttl_s


def presence_changes(
    before: Mapping[str, Presence], after: Mapping[str, Presence]
) -> list[PresenceChange]:
    """What happened between two snapshots: first who went down, then who came up."""
    gone = [
        PresenceChange(name, presence, False)
        for name, presence in sorted(before.items())
        if not _same_run(after.get(name), presence)
    ]
    come = [
        PresenceChange(name, presence, True)
        for name, presence in sorted(after.items())
        if not _same_run(before.get(name), presence)
    ]
    return gone + come


def _same_run(one: Presence | None, other: Presence) -> bool:
    return one is not None and (one.node_id, one.incarnation) == (other.node_id, other.incarnation)
