"""A store that replaces etcd for the processes of one machine: keys, revisions, leases, history.

Answerable for answering ranges, transactions and leases as etcd does, as far as Warren uses them,
and for the events since a revision. Not for disks, sockets or clocks: the caller passes the time,
and takes the changes that are to be written down with `take_changed` (`key_gateway.py`).

Theory. Each transaction that changes something makes one revision. All comparisons of a
transaction, including those of nested ones, are made before any operation of it is done. Before
that a transaction is checked as a whole, so one that is declined has changed nothing. A lease that
ends deletes its keys at one revision.

History is kept for `HISTORY_MAX` changes. It has the value of a key before and after each change,
so an earlier state is the present one with the later changes taken back. A request for an older
state is told that it was compacted, as by etcd; its node then reads everything anew.

`tests/mirror/test_key_store.py` gives the same requests to this store and to an etcd.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from warren.mirror.definitions.etcd_messages import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    OUT_OF_RANGE,
    Compare,
    DeleteRange,
    Header,
    KeyValue,
    LeaseAnswer,
    Operation,
    OperationAnswer,
    Put,
    Range,
    RangeAnswer,
    Txn,
    TxnAnswer,
    WatchEvent,
)

HISTORY_MAX = 20_000
"""Changes that are kept: some 10 MB of definitions, and minutes for a node to catch up."""
OPERATIONS_MAX = 128
"""Operations of one transaction, at each level; etcd's default."""
LEASE_TTL_MIN_S = 2

EVERYTHING_AFTER = b"\0"
"""A `range_end` that stands for all keys from `key` on."""


class Declined(Exception):
    """The store refuses a request; text and code are etcd's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Compacted(Exception):
    """The wanted history is gone; what is left begins at `revision`."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the history before revision {revision} is gone")
        self.revision = revision


class Replaced(NamedTuple):
    """One change: the key's value `before` and `after`; None where it did not exist."""

    revision: int
    key: bytes
    before: KeyValue | None
    after: KeyValue | None


class KeyLease:
    """A lease, which ends at `expires_at` unless it is kept alive."""

    __slots__ = ("expires_at", "keys", "ttl_s")

    def __init__(self, ttl_s: int, now: float) -> None:
        self.ttl_s = ttl_s
        self.expires_at = now + ttl_s
        self.keys: set[bytes] = set()


class KeyStore:
    """The present state, some of its history, and the leases.

    `kept` are the keys of an earlier life of the store, which ended at `revision`. Those with a
    lease are deleted at once, because no lease outlives the process.
    """

    def __init__(self, cluster_id: int, revision: int = 1, kept: Iterable[KeyValue] = ()) -> None:
        self.cluster_id = cluster_id
        self.revision = revision
        self._values = {value.key: value for value in kept}
        self._keys = sorted(self._values)
        self._history: deque[Replaced] = deque()
        # Ranges at earlier revisions and watches from them are declined.
        self._compacted = revision
        self._first = revision + 1
        self._leases: dict[int, KeyLease] = {}
        self._changed: dict[bytes, KeyValue | None] = {}
        self._delete_all([key for key, value in self._values.items() if value.lease])

    @property
    def header(self) -> Header:
        return Header(self.cluster_id, self.revision)

    # Requests

    def range(self, wanted: Range) -> RangeAnswer:
        """Read a range of keys. Raises `Declined`."""
        _expect_key(wanted.key)
        if wanted.revision > self.revision:
            raise Declined("etcdserver: mvcc: required revision is a future revision", OUT_OF_RANGE)
        if 0 < wanted.revision < self._compacted:
            raise Declined("etcdserver: mvcc: required revision has been compacted", OUT_OF_RANGE)
        return self._read(wanted, wanted.revision or self.revision)

    def txn(self, txn: Txn) -> TxnAnswer:
        """Do a transaction. Raises `Declined`; then nothing was done."""
        _expect_sound(txn)
        for operation in _all_operations(txn):
            lease = operation.request_put.lease if operation.request_put is not None else 0
            if lease and lease not in self._leases:
                raise Declined("etcdserver: requested lease not found", NOT_FOUND)
        changes: list[Replaced] = []
        answer = self._carry_out(self._decided(txn), changes)
        self._commit(changes)
        return msgspec.structs.replace(answer, header=self.header)

    def grant(self, ttl_s: int, lease_id: int, now: float) -> LeaseAnswer:
        """A new lease; very short leases last longer than asked."""
        assert lease_id not in self._leases and lease_id > 0, lease_id
        lease = self._leases[lease_id] = KeyLease(max(ttl_s, LEASE_TTL_MIN_S), now)
        return LeaseAnswer(self.header, lease_id, lease.ttl_s)

    def keep_alive(self, lease_id: int, now: float) -> LeaseAnswer:
        """Begin the time of the lease anew; the answer has a TTL of 0 if there is no such lease."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return LeaseAnswer(self.header, lease_id, 0)
        lease.expires_at = now + lease.ttl_s
        return LeaseAnswer(self.header, lease_id, lease.ttl_s)

    def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. Raises `Declined`."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            raise Declined("etcdserver: requested lease not found", NOT_FOUND)
        self._delete_all(sorted(lease.keys))

    def expire(self, now: float) -> float | None:
        """End the leases whose time is over; returns when the next one ends, None without any."""
        for lease_id in [one for one, lease in self._leases.items() if lease.expires_at <= now]:
            self.revoke(lease_id)
        return min((lease.expires_at for lease in self._leases.values()), default=None)

    def end_lease_of(self, key: bytes) -> bool:
        """End the lease that keeps a key, as its holder is known to be gone; False without one."""
        value = self._values.get(key)
        if value is None or value.lease not in self._leases:
            return False
        self.revoke(value.lease)
        return True

    # History

    def events(self, start: int, key: bytes, range_end: bytes) -> list[WatchEvent]:
        """The changes of a range's keys from a revision on, oldest first. Raises `Compacted`."""
        if start < self._first:
            raise Compacted(self._first)
        events = [
            _event(change) for change in self._since(start) if _is_in(change.key, key, range_end)
        ]
        events.reverse()
        return events

    def compact(self, revision: int) -> None:
        """Forget the history before a revision."""
        assert revision <= self.revision, (revision, self.revision)
        while self._history and self._history[0].revision < revision:
            self._history.popleft()
        self._compacted = max(self._compacted, revision)
        self._first = max(self._first, revision)

    def take_changed(self) -> list[tuple[bytes, KeyValue | None]]:
        """The keys that have changed since the last call, with their present values."""
        changed = list(self._changed.items())
        self._changed.clear()
        return changed

    def _since(self, revision: int) -> Iterator[Replaced]:
        """Changes at and after a revision, the newest first."""
        for change in reversed(self._history):
            if change.revision < revision:
                return
            yield change

    # Reading

    def _read(self, wanted: Range, revision: int, pending: Sequence[Replaced] = ()) -> RangeAnswer:
        """`pending` are the changes that the transaction has made so far."""
        found = self._found(wanted.key, wanted.range_end)
        if revision < self.revision:
            found = self._as_of(revision, found, wanted.key, wanted.range_end)
        if pending:
            found = _replaced(found, pending, wanted.key, wanted.range_end)
        if wanted.sort_target == "MOD":
            found.sort(key=attrgetter("mod_revision"), reverse=wanted.sort_order == "DESCEND")
        elif wanted.sort_order == "DESCEND":
            found.reverse()
        more = 0 < wanted.limit < len(found)
        if more:
            del found[wanted.limit :]
        if wanted.keys_only:
            found = [msgspec.structs.replace(value, value=b"") for value in found]
        return RangeAnswer(self.header, found, more)

    def _found(self, key: bytes, range_end: bytes | None) -> list[KeyValue]:
        if not range_end:
            value = self._values.get(key)
            return [value] if value is not None else []
        first = bisect_left(self._keys, key)
        last = len(self._keys)
        if range_end != EVERYTHING_AFTER:
            last = bisect_left(self._keys, range_end, first)
        return [self._values[one] for one in self._keys[first:last]]

    def _as_of(
        self, revision: int, found: list[KeyValue], key: bytes, range_end: bytes | None
    ) -> list[KeyValue]:
        taken_back = [
            Replaced(change.revision, change.key, change.after, change.before)
            for change in self._since(revision + 1)
        ]
        return _replaced(found, taken_back, key, range_end)

    # Transactions

    def _decided(self, txn: Txn) -> Decided:
        holds = all(self._holds(compare) for compare in txn.compare)
        return Decided(
            holds,
            [
                operation if operation.request_txn is None else self._decided(operation.request_txn)
                for operation in (txn.success if holds else txn.failure)
            ],
        )

    def _holds(self, compare: Compare) -> bool:
        found = self._found(compare.key, compare.range_end)
        return all(_fits(compare, value) for value in found or (KeyValue(compare.key),))

    def _carry_out(self, decided: Decided, changes: list[Replaced]) -> TxnAnswer:
        answers = [
            OperationAnswer(response_txn=self._carry_out(one, changes))
            if isinstance(one, Decided)
            else self._do(one, changes)
            for one in decided.operations
        ]
        return TxnAnswer(succeeded=decided.holds, responses=answers)

    def _do(self, operation: Operation, changes: list[Replaced]) -> OperationAnswer:
        if operation.request_put is not None:
            self._put(operation.request_put, changes)
        elif operation.request_delete_range is not None:
            wanted = operation.request_delete_range
            read = self._read(Range(wanted.key, wanted.range_end), self.revision, changes)
            changes += [Replaced(self.revision + 1, one.key, one, None) for one in read.kvs]
        elif operation.request_range is not None:
            read = self._read(operation.request_range, self.revision, changes)
            return OperationAnswer(response_range=read)
        return OperationAnswer()

    def _put(self, wanted: Put, changes: list[Replaced]) -> None:
        revision = self.revision + 1
        found = self._read(Range(wanted.key), self.revision, changes).kvs
        before = found[0] if found else None
        after = KeyValue(
            wanted.key,
            wanted.value,
            version=before.version + 1 if before is not None else 1,
            create_revision=before.create_revision if before is not None else revision,
            mod_revision=revision,
            lease=wanted.lease,
        )
        changes.append(Replaced(revision, wanted.key, before, after))

    def _delete_all(self, keys: Iterable[bytes]) -> None:
        revision = self.revision + 1
        self._commit([Replaced(revision, key, self._values[key], None) for key in keys])

    def _commit(self, changes: list[Replaced]) -> None:
        if not changes:
            return
        self.revision += 1
        for change in changes:
            self._apply(change.key, change.before, change.after)
        self._history += changes
        if len(self._history) > HISTORY_MAX:
            # Only whole revisions are dropped, and never the newest, however large it is.
            surplus = self._history[len(self._history) - HISTORY_MAX].revision
            self.compact(min(surplus, self.revision))

    def _apply(self, key: bytes, before: KeyValue | None, after: KeyValue | None) -> None:
        if before is not None and before.lease in self._leases:
            self._leases[before.lease].keys.discard(key)
        if after is None:
            del self._values[key]
            del self._keys[bisect_left(self._keys, key)]
        else:
            if before is None:
                insort(self._keys, key)
            self._values[key] = after
            if after.lease:
                self._leases[after.lease].keys.add(key)
        self._changed[key] = after


class Decided(NamedTuple):
    """The branch of a transaction that has to be done, with those of its nested transactions."""

    holds: bool
    operations: list[Operation | Decided]


def _replaced(
    found: Sequence[KeyValue], changes: Iterable[Replaced], key: bytes, range_end: bytes | None
) -> list[KeyValue]:
    """The values found in a range, with these changes applied."""
    values = {value.key: value for value in found}
    for change in changes:
        if not _is_in(change.key, key, range_end):
            continue
        if change.after is None:
            values.pop(change.key, None)
        else:
            values[change.key] = change.after
    return [values[one] for one in sorted(values)]


def _is_in(key: bytes, start: bytes, range_end: bytes | None) -> bool:
    if not range_end:
        return key == start
    return key >= start and (range_end == EVERYTHING_AFTER or key < range_end)


def _fits(compare: Compare, value: KeyValue) -> bool:
    match compare.target:
        case "VERSION":
            return value.version == (compare.version or 0)
        case "CREATE":
            return value.create_revision == (compare.create_revision or 0)
        case "MOD":
            return value.mod_revision == (compare.mod_revision or 0)


def _event(change: Replaced) -> WatchEvent:
    if change.after is None:
        return WatchEvent(KeyValue(change.key, mod_revision=change.revision), "DELETE")
    return WatchEvent(change.after)


# Checks of transactions


def _expect_sound(txn: Txn) -> None:
    """Raises `Declined`."""
    if max(len(txn.compare), len(txn.success), len(txn.failure)) > OPERATIONS_MAX:
        raise Declined("etcdserver: too many operations in txn request", INVALID_ARGUMENT)
    for compare in txn.compare:
        _expect_key(compare.key)
    for operation in (*txn.success, *txn.failure):
        for one in (
            operation.request_put,
            operation.request_range,
            operation.request_delete_range,
        ):
            if one is not None:
                _expect_key(one.key)
        if operation.request_txn is not None:
            _expect_sound(operation.request_txn)
    for branch in (txn.success, txn.failure):
        _expect_distinct(branch)


def _expect_distinct(operations: Sequence[Operation]) -> tuple[set[bytes], list[DeleteRange]]:
    """The keys put and the ranges deleted. Raises `Declined` if a key is put twice, or both put and
    deleted.

    Only one branch of a nested transaction is done, so its two branches may have keys in common.
    (etcd accepts some combinations of nested deletions that this refuses; Warren uses none.)
    """
    puts: set[bytes] = set()
    deletes: list[DeleteRange] = []
    for operation in operations:
        branches: list[tuple[set[bytes], list[DeleteRange]]] = []
        if operation.request_put is not None:
            branches = [({operation.request_put.key}, [])]
        elif operation.request_delete_range is not None:
            branches = [(set(), [operation.request_delete_range])]
        elif operation.request_txn is not None:
            nested = operation.request_txn
            branches = [_expect_distinct(one) for one in (nested.success, nested.failure)]
        for own_puts, own_deletes in branches:
            if own_puts & puts or _meet(own_puts, deletes) or _meet(puts, own_deletes):
                raise Declined("etcdserver: duplicate key given in txn request", INVALID_ARGUMENT)
        for own_puts, own_deletes in branches:
            puts |= own_puts
            deletes += own_deletes
    return puts, deletes


def _meet(puts: set[bytes], deletes: Sequence[DeleteRange]) -> bool:
    return any(_is_in(key, one.key, one.range_end) for one in deletes for key in puts)


def _expect_key(key: bytes) -> None:
    if not key:
        raise Declined("etcdserver: key is not provided", INVALID_ARGUMENT)


def _all_operations(txn: Txn) -> Iterator[Operation]:
    for operation in (*txn.success, *txn.failure):
        yield operation
        if operation.request_txn is not None:
            yield from _all_operations(operation.request_txn)
