"""Members and presences in etcd: keys, reading, and conditional changes.

Answerable for making each change as one etcd transaction that checks the state it builds on. This
file keeps no state; `mirror/members/membership.py` decides when to make which change.

Keys, below the prefix of the cluster; all values are JSON, except names:

- `cluster/identity`: id, format and protocol of the cluster; created once.
- `cluster/name`: the name that users gave the cluster.
- `members/<node name>`: a `ClusterMember`, permanent.
- `up/<node name>`: a `Presence`, under the node's lease.
- `forgotten/<node id>`: the name of a member that was forgotten and may not come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.etcd_messages import (
    KeyValue,
    Operation,
    Range,
    Txn,
    TxnAnswer,
    WatchCreate,
    delete,
    end_of,
    get,
    modified_at,
    none_exists,
    put,
)
from warren.mirror.members.presence import ClusterIdentity, ClusterMember, Presence

Record = TypeVar("Record")


class UnreadableMembership(Exception):
    """A value in etcd that this version of Warren does not understand; the text says why."""


class FoundMembers(NamedTuple):
    """Members and presences, by name, at a revision."""

    revision: int
    members: Mapping[str, ClusterMember]
    running: Mapping[str, Presence]


class NameState(NamedTuple):
    """The state that decides whether a node may have a name; revisions are 0 for missing keys."""

    up: Presence | None
    up_revision: int
    member: ClusterMember | None
    member_revision: int
    forgotten: bool


class Claimed(NamedTuple):
    """The revision at which a node came up; `first` if no node was up just before."""

    revision: int
    first: bool


def identity_key(prefix: str) -> bytes:
    """The key of the cluster's identity."""
    return _root(prefix) + b"cluster/identity"


def member_key(prefix: str, name: str) -> bytes:
    """The key of the member with this name."""
    return _root(prefix) + b"members/" + name.encode()


def presence_key(prefix: str, name: str) -> bytes:
    """The key of the presence of the node with this name."""
    return _root(prefix) + b"up/" + name.encode()


def _root(prefix: str) -> bytes:
    return prefix.rstrip("/").encode() + b"/"


class MemberDirectory:
    """The keys of one cluster's membership. Every method that talks to etcd raises `EtcdError`."""

    def __init__(self, etcd: EtcdClient, prefix: str) -> None:
        root = _root(prefix)
        self._etcd = etcd
        self._identity = identity_key(prefix)
        self._name = root + b"cluster/name"
        self._members = member_key(prefix, "")
        self._up = presence_key(prefix, "")
        self._forgotten = root + b"forgotten/"

    async def identity(self, new: ClusterIdentity) -> ClusterIdentity:
        """The identity of the cluster; if it has none yet, the new one is written and returned."""
        answer = await self._etcd.txn(
            Txn(
                compare=[none_exists(self._identity)],
                success=[put(self._identity, msgspec.json.encode(new))],
                failure=[get(self._identity)],
            )
        )
        if answer.succeeded:
            return new
        return _read(_kvs(answer, 0)[0], ClusterIdentity)

    async def name(self) -> str | None:
        answer = await self._etcd.range(Range(self._name))
        return answer.kvs[0].value.decode() if answer.kvs else None

    async def set_name(self, name: str) -> None:
        await self._etcd.txn(Txn(success=[put(self._name, name.encode())]))

    async def look(self) -> FoundMembers:
        members, up = self._members, self._up
        answer = await self._etcd.txn(
            Txn(success=[get(members, end_of(members)), get(up, end_of(up))])
        )
        return FoundMembers(
            answer.header.revision,
            {_name_in(kv, members): _read(kv, ClusterMember) for kv in _kvs(answer, 0)},
            {_name_in(kv, up): _read(kv, Presence) for kv in _kvs(answer, 1)},
        )

    def changes_after(self, revision: int) -> WatchCreate:
        """The request for a watch that reports every change of members and presences."""
        return WatchCreate(self._members, end_of(self._up), revision + 1)

    async def state_of(self, name: str, node_id: str) -> NameState:
        keys = (self._up + name.encode(), self._members + name.encode())
        forgotten = self._forgotten + node_id.encode()
        answer = await self._etcd.txn(Txn(success=[get(key) for key in (*keys, forgotten)]))
        up, member = _kvs(answer, 0), _kvs(answer, 1)
        return NameState(
            _read(up[0], Presence) if up else None,
            up[0].mod_revision if up else 0,
            _read(member[0], ClusterMember) if member else None,
            member[0].mod_revision if member else 0,
            bool(_kvs(answer, 2)),
        )

    async def claim(
        self, name: str, state: NameState, member: ClusterMember, presence: Presence, lease: int
    ) -> Claimed | None:
        """Write the node's member and presence; None when something has changed since `state`."""
        up, permanent = self._up + name.encode(), self._members + name.encode()
        nobody_up = Txn(compare=[none_exists(self._up, end_of(self._up))])
        answer = await self._etcd.txn(
            Txn(
                compare=[
                    modified_at(up, state.up_revision),
                    modified_at(permanent, state.member_revision),
                    none_exists(self._forgotten + member.node_id.encode()),
                ],
                success=[
                    Operation(request_txn=nobody_up),
                    put(permanent, msgspec.json.encode(member)),
                    put(up, msgspec.json.encode(presence), lease),
                ],
            )
        )
        if not answer.succeeded:
            return None
        nested = answer.responses[0].response_txn
        first = nested is not None and nested.succeeded
        return Claimed(answer.header.revision, first)

    async def remove(self, name: str, state: NameState) -> None:
        """Remove the node's member and presence, if the member has not changed since `state`."""
        permanent = self._members + name.encode()
        await self._etcd.txn(
            Txn(
                compare=[modified_at(permanent, state.member_revision)],
                success=[delete(permanent), delete(self._up + name.encode())],
            )
        )

    async def forget(self, name: str, state: NameState) -> bool:
        """Remove a member that is down, for ever; False if something has changed since `state`."""
        assert state.member is not None
        permanent = self._members + name.encode()
        answer = await self._etcd.txn(
            Txn(
                compare=[
                    none_exists(self._up + name.encode()),
                    modified_at(permanent, state.member_revision),
                ],
                success=[
                    delete(permanent),
                    put(self._forgotten + state.member.node_id.encode(), name.encode()),
                ],
            )
        )
        return answer.succeeded


def _kvs(answer: TxnAnswer, place: int) -> Sequence[KeyValue]:
    found = answer.responses[place].response_range
    return found.kvs if found is not None else ()


def _name_in(kv: KeyValue, prefix: bytes) -> str:
    return kv.key[len(prefix) :].decode()


def _read(kv: KeyValue, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(kv.value, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableMembership(f"{kv.key!r} in etcd is no {kind.__name__}: {error}") from None
