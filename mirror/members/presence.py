"""The rules of members, presences and leases, without I/O.

- A `ClusterMember` is permanent, under the name of its node. A node is identified by its id, which
  is in its data directory; the name belongs to that id until the member leaves or is forgotten.
- A `Presence` exists while its node keeps a lease alive. `incarnation` counts the times that the
  member has joined. So a node that was down and is up again differs from one that was up all the
  time, however quickly it came back.
- A `LeaseDeadline` is the moment from which a node must take its own lease for lost. etcd counts
  from the moment it gets a keep-alive, the node from the moment it sent it, so the node never holds
  on for longer than etcd does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

RENEWALS_PER_TTL = 3
"""Keep-alives in the time of a lease: two may get lost before the lease is lost."""


class ClusterMember(msgspec.Struct, frozen=True):
    """`machine` is the same for nodes that are processes of one broker, else it is empty."""

    node_id: str
    added_at: float
    type: str = "disc"
    incarnation: int = 0
    machine: str = ""


class Presence(msgspec.Struct, frozen=True):
    """The facts that a running node publishes. `started_at` is in seconds since 1970."""

    node_id: str
    incarnation: int
    link_host: str
    link_port: int
    version: str
    started_at: float


class ClusterIdentity(msgspec.Struct, frozen=True):
    """Written by the first node and never changed. `format` is the format of the values in etcd,
    `protocol` that of the links between nodes."""

    cluster_id: str
    format: int
    protocol: int


class PresenceChange(NamedTuple):
    """A node that went down (`up` is False) or came up."""

    name: str
    presence: Presence
    up: bool


class LeaseDeadline:
    """The time at which a lease is lost, as far as its holder can know. A lost lease stays lost."""

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
        """Note the answer to a keep-alive sent at `sent_at`; a TTL of 0 says the lease is gone."""
        if ttl_s <= 0:
            self._lost = True
        if self.held(now) and sent_at > self._sent_at:
            self._sent_at = sent_at
            self._ttl_s = ttl_s


def presence_changes(
    before: Mapping[str, Presence], after: Mapping[str, Presence]
) -> list[PresenceChange]:
    """The changes between two snapshots: first nodes that went down, then nodes that came up."""
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
