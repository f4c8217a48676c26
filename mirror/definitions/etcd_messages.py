"""The messages of etcd's JSON gateway that Warren sends and reads, as typed structs.

Names are etcd's own (rpc.proto). The gateway writes octets as base64, as msgspec does for `bytes`,
and 64-bit integers as strings, which are read leniently; it leaves out fields that are zero.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# The gRPC status codes that it reports.
INVALID_ARGUMENT = 3
NOT_FOUND = 5
PERMISSION_DENIED = 7
FAILED_PRECONDITION = 9
OUT_OF_RANGE = 11
UNAUTHENTICATED = 16

Target = Literal["VERSION", "CREATE", "MOD"]


class Header(msgspec.Struct):
    """`revision` is that of the whole store when the answer was made."""

    cluster_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct):
    """`version` counts the writes of the key since it was created; it is 0 for a deleted key."""

    key: bytes
    value: bytes = b""
    version: int = 0
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class RangeAnswer(msgspec.Struct):
    header: Header = msgspec.field(default_factory=Header)
    kvs: list[KeyValue] = []
    more: bool = False


class OperationAnswer(msgspec.Struct):
    """The part of an answer that belongs to one operation of a transaction."""

    response_range: RangeAnswer | None = None
    response_txn: TxnAnswer | None = None


class TxnAnswer(msgspec.Struct):
    header: Header = msgspec.field(default_factory=Header)
    succeeded: bool = False
    responses: list[OperationAnswer] = []


class LeaseAnswer(msgspec.Struct):
    """The answer to a grant or a keep-alive; a TTL of 0 says that the lease is gone."""

    header: Header = msgspec.field(default_factory=Header)
    ID: int = 0
    TTL: int = 0


class KeepAliveAnswer(msgspec.Struct):
    result: LeaseAnswer


class TokenAnswer(msgspec.Struct):
    token: str


class WatchEvent(msgspec.Struct):
    kv: KeyValue
    type: Literal["PUT", "DELETE"] = "PUT"


class WatchAnswer(msgspec.Struct):
    header: Header = msgspec.field(default_factory=Header)
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: list[WatchEvent] = []


class Failure(msgspec.Struct):
    """An error; `code` is the gRPC status code."""

    message: str = ""
    code: int = 0
    grpc_code: int = 0


class WatchLine(msgspec.Struct):
    result: WatchAnswer | None = None
    error: Failure | None = None


class Compare(msgspec.Struct, omit_defaults=True):
    """One condition of a transaction; with a `range_end`, on every key of the range.

    On a key that does not exist, version and revisions are 0.
    """

    key: bytes
    target: Target
    version: int | None = None
    create_revision: int | None = None
    mod_revision: int | None = None
    range_end: bytes | None = None


class Put(msgspec.Struct, omit_defaults=True):
    key: bytes
    value: bytes
    lease: int = 0


class Range(msgspec.Struct, omit_defaults=True):
    """The keys from `key` to before `range_end`, or only `key`. Revision 0 is the newest state."""

    key: bytes
    range_end: bytes | None = None
    limit: int = 0
    revision: int = 0
    sort_order: Literal["NONE", "ASCEND", "DESCEND"] = "NONE"
    sort_target: Literal["KEY", "MOD"] = "KEY"
    keys_only: bool = False


class DeleteRange(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes | None = None


class Operation(msgspec.Struct, omit_defaults=True):
    """One operation: exactly one of the fields is set."""

    request_put: Put | None = None
    request_range: Range | None = None
    request_delete_range: DeleteRange | None = None
    request_txn: Txn | None = None


class Txn(msgspec.Struct, omit_defaults=True):
    """Does `success` if all of `compare` hold, else `failure`; atomically."""

    compare: list[Compare] = []
    success: list[Operation] = []
    failure: list[Operation] = []


class WatchCreate(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes
    start_revision: int


def put(key: bytes, value: bytes, lease: int = 0) -> Operation:
    return Operation(request_put=Put(key, value, lease))


def get(key: bytes, range_end: bytes | None = None) -> Operation:
    return Operation(request_range=Range(key, range_end))


def delete(key: bytes, range_end: bytes | None = None) -> Operation:
    return Operation(request_delete_range=DeleteRange(key, range_end))


def modified_at(key: bytes, revision: int) -> Compare:
    """The condition that the key was last written at this revision; 0: that it does not exist."""
    return Compare(key, "MOD", mod_revision=revision)


def none_exists(key: bytes, range_end: bytes | None = None) -> Compare:
    """The condition that the key, or every key of the range, does not exist."""
    return Compare(key, "CREATE", create_revision=0, range_end=range_end)


def end_of(prefix: bytes) -> bytes:
    """The `range_end` of all keys with this prefix, which is text and so does not end in FF."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
