"""Definitions as the metadata store keeps them: one struct per kind of entity.

Keys: ("vhost", name) · ("user", name) · ("permission", user, vhost) ·
("topic_permission", user, vhost, exchange) · ("exchange", vhost, name) · ("queue", vhost, name) ·
("binding", vhost, source, kind, destination, routing_key, fingerprint) ·
("policy", vhost, name) · ("operator_policy", vhost, name) · ("parameter", component, vhost, name) ·
("global_parameter", name) · ("group", name).

`arguments` are tables in the plain form of `field.to_plain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class VirtualHostRecord(msgspec.Struct, frozen=True):
    description: str = ""
    tags: list[str] = []
    default_queue_type: str | None = None


class UserRecord(msgspec.Struct, frozen=True):
    password_hash: bytes
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: list[str] = []
    limits: dict[str, int] = {}


class PermissionRecord(msgspec.Struct, frozen=True):
    configure: str
    write: str
    read: str


class TopicPermissionRecord(msgspec.Struct, frozen=True):
    write: str
    read: str


class ExchangeRecord(msgspec.Struct, frozen=True):
    type: str
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    durable: bool = True
    # The name of the user; empty where that is not known.
    declared_by: str = ""


_FORGOTTEN = " (forgotten)"


def forgotten(leader: str) -> str:
    """The name of a leader in definitions once its node was forgotten; no node can have it."""
    return leader + _FORGOTTEN


def is_forgotten(leader: str) -> bool:
    """Whether a leader has a name of `forgotten`."""
    return leader.endswith(_FORGOTTEN)


class QueueRecord(msgspec.Struct, frozen=True):
    """`queue_id` is what the storage knows the queue by, `declared_by` the name of the user, empty
    where that is not known.

    `leader` is the node that has it; empty where there is but one, and `forgotten(node)` when the
    cluster has forgotten it: a new node may have its name. `mirrors` are the nodes that
    have a copy, the oldest first, and `in_sync` those whose copy is whole. `epoch` counts how
    often it was given another leader, and `promoted` says why the last time, which was at
    `promoted_at`, in seconds since 1970. `down`: its leader has stopped in order, and only a mirror
    in sync may take its place. `stores` says under which id a node has its copy on disk, where that
    is not `queue_id`. `carrier` is what brings the leader's batches to mirrors: `log`, or gm
    where it is empty. `members` are the nodes that a quorum queue or stream is to be on. With
    `log`, `acks` is how many of the copies that are whole, the leader's
    among them, have a publish before it is confirmed (0: all), `ballot` counts how
    often the votes of elections were made void, and `missing` the copies that are not named any
    more and still count, since the others may lack what they had. `former` are the nodes that had a
    whole copy of a classic queue, and have none now (`former_nodes.py` of `mirror`).
    """

    auto_delete: bool
    arguments: dict[str, Any]
    queue_id: int = 0
    durable: bool = True
    exclusive: bool = False
    leader: str = ""
    mirrors: list[str] = []
    in_sync: list[str] = []
    epoch: int = 0
    promoted: str = ""
    down: bool = False
    stores: dict[str, int] = {}
    promoted_at: float = 0.0
    carrier: str = ""
    acks: int = 0
    ballot: int = 0
    missing: int = 0
    members: list[str] = []
    declared_by: str = ""
    former: list[str] = []

    @property
    def leader_is_forgotten(self) -> bool:
        return is_forgotten(self.leader)

    @property
    def whole_copies(self) -> int:
        """How many copies an election counts with, the leader's among them."""
        return 1 + len(self.in_sync) + self.missing

    @property
    def can_move(self) -> bool:
        """Whether another node may take the place of the leader, if only later: members of a queue
        may have no copies at the moment."""
        return bool(self.mirrors) or len(self.members) > 1

    def storage_id(self, node: str) -> int:
        """The id by which the storage of a node that has the queue, or a copy, knows it."""
        return self.stores.get(node) or self.queue_id


class BindingRecord(msgspec.Struct, frozen=True):
    arguments: dict[str, Any]


class PolicyRecord(msgspec.Struct, frozen=True):
    """`age` numbers the policies of a virtual host as they were first set; it breaks ties."""

    pattern: str
    apply_to: str
    definition: dict[str, Any]
    priority: int | float
    age: int = 0


class ParameterRecord(msgspec.Struct, frozen=True):
    """`user` is who set it, whose rights count for what is done because of it; empty for an
    operator, who may do everything. `node` is the node that carries out what it asks for."""

    value: Any
    user: str = ""
    node: str = ""


class GlobalParameterRecord(msgspec.Struct, frozen=True):
    value: Any


class GroupMemberRecord(msgspec.Struct, frozen=True):
    """One member of a group that multicasts; `incarnation` tells its lives on one node apart."""

    node: str
    incarnation: int
    alive: bool = True


class GroupRecord(msgspec.Struct, frozen=True):
    """The members of a group, in the order of its ring. `version` counts the changes, from 1."""

    version: int
    members: tuple[GroupMemberRecord, ...]


def group_key(queue_id: int) -> tuple[str, str]:
    """The key of the group of a queue's copies."""
    return ("group", str(queue_id))


RECORD_TYPES: Mapping[str, type[msgspec.Struct]] = {
    "vhost": VirtualHostRecord,
    "user": UserRecord,
    "permission": PermissionRecord,
    "topic_permission": TopicPermissionRecord,
    "exchange": ExchangeRecord,
    "queue": QueueRecord,
    "binding": BindingRecord,
    "policy": PolicyRecord,
    "operator_policy": PolicyRecord,
    "parameter": ParameterRecord,
    "global_parameter": GlobalParameterRecord,
    "group": GroupRecord,
}
