"""Definitions that several nodes share: what one node knows of them, and what it has under way.

Answerable for what a transaction of a cluster goes through, whatever carries it: queued here,
sent in batches, decided by the shared store, visible when the history has come to it. Not for
sending (`cluster_metadata.py`) and not for durability, which is the shared store's.

Theory. The shared store has one history; each of its revisions is a set of changes. This table
is that history applied up to `revision`, never more and never out of order. A transaction is
decided at a revision: taken, or refused because a precondition did not hold just before it. In
both cases its commit is done when the table has come to that revision, so whoever was refused
sees why, and whoever was not sees what it wrote.

Order. Transactions of one node are decided in the order of the `transact` calls, so commits are
done in that order. A batch is a run of transactions that the shared store can decide at one
revision with the same outcome as one after the other: no transaction writes or relies on a key
that an earlier one of the batch writes. One batch is under way at a time.

What is atomic. All preconditions and the first `OPERATIONS_MAX` writes of a transaction, or the
first `PIECE_BYTES_MAX` octets of them. What is more follows in pieces of that size, in order,
each atomic for itself; nothing follows when the first was refused. The commit is done with the
last piece. Others may see, and write, between the pieces; a node that dies between them leaves
the first ones.

Of several writes of one key in a transaction only the last is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from warren.core.definitions.definition_table import (
    Change,
    CompletedCommit,
    DefinitionTable,
    Watcher,
)
from warren.core.definitions.record_format import encode_path
from warren.core.log_line import log_fault
from warren.core.ports import Commit, Key, Precondition, Unreadable, Write
from warren.mirror.definitions.cluster_log import logger
from warren.mirror.definitions.codec import encode_definition

OPERATIONS_MAX = 124
"""Writes of a piece. etcd takes 128 operations in a transaction at its defaults, of which a batch
of one needs three."""

PRECONDITIONS_MAX = 124
"""Counted by etcd like operations."""

PIECE_BYTES_MAX = 512 << 10
"""etcd takes requests of 1.5 MiB at its defaults."""

BATCH_TRANSACTIONS_MAX = 120
BATCH_OPERATIONS_MAX = 127
"""Transactions of a batch and the operations of the largest of them, together: etcd counts what
is nested by its depth, not by its number."""


class TransactionTooLarge(ValueError):
    """A record, or the preconditions of a transaction, are more than the shared store takes."""


class SharedCommit:
    """A transaction that all nodes decide; implements `core.ports.Commit`."""

    __slots__ = ("_callbacks", "_done", "_refused")

    def __init__(self) -> None:
        self._done = False
        self._refused = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._done

    @property
    def visible(self) -> bool:
        return self._done and not self._refused

    @property
    def refused(self) -> bool:
        return self._refused

    def then(self, callback: Callable[[], None]) -> None:
        if self._done:
            callback()
        else:
            self._callbacks.append(callback)

    def complete(self, refused: bool) -> None:
        """Called once, when the table has come to the revision of the decision."""
        assert not self._done
        self._done = True
        self._refused = refused
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # The others of the revision are decided too and must hear of it.
                log_fault(logger, "commit_callback_failed")


class EncodedWrite(NamedTuple):
    """`value` is None to delete the key."""

    key: Key
    value: bytes | None

    @property
    def size(self) -> int:
        return sum(map(len, self.key)) + len(self.value or b"")


class Piece(NamedTuple):
    """What the shared store decides as one; with preconditions, it may refuse it."""

    writes: tuple[EncodedWrite, ...]
    preconditions: tuple[Precondition, ...]

    @property
    def operations(self) -> int:
        """As etcd counts; one more for the mark that a conditional piece leaves."""
        return max(len(self.writes) + bool(self.preconditions), len(self.preconditions))

    @property
    def size(self) -> int:
        return sum(write.size for write in self.writes)


class Transaction:
    """One call of `transact` on its way. `decided_at` is 0 until all pieces are decided."""

    __slots__ = ("commit", "decided_at", "pieces", "refused", "transient_of")

    def __init__(self, pieces: Collection[Piece], transient_of: dict[Key, bool | None]) -> None:
        self.pieces = deque(pieces)
        self.transient_of = transient_of
        self.commit = SharedCommit()
        self.decided_at = 0
        self.refused = False


class SharedDefinitions(DefinitionTable):
    """Implements `core.ports.MetadataStore` but for `close`; whoever carries the batches derives.

    `_wake` is called when there may be a batch to carry. The carrier asks for it with
    `next_batch`, says with `batch_decided` what became of it, and hands each revision of the
    history to `advance`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._revision = 0
        self._unsent: deque[Transaction] = deque()
        self._uncommitted: deque[Transaction] = deque()
        # What the youngest transaction under way makes of a key: whether it is transient, None
        # when it deletes it. Kept until that transaction is done.
        self._coming: dict[Key, tuple[bool | None, Transaction]] = {}
        # The versions the shared store has of definitions that cannot be read and never could.
        self._unread: dict[Key, int] = {}

    @property
    def revision(self) -> int:
        """Up to where the shared history is applied."""
        return self._revision

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        """Send a transaction to the shared store.

        Raises `Conflict` when a precondition does not hold already as far as this node knows,
        `TransactionTooLarge`, and what encoding a record raises; then nothing was sent.
        """
        self._check(preconditions)
        if not writes and not preconditions:
            # It is so already, and what is visible is durable.
            return CompletedCommit()
        transient_of = {
            write.key: None if write.record is None else self._is_transient(write)
            for write in writes
        }
        last = {write.key: write.record for write in writes}
        encoded = [
            EncodedWrite(key, _encoded(key, record, bool(transient_of[key])))
            for key, record in last.items()
        ]
        conditions = tuple(self._as_shared(one) for one in preconditions)
        transaction = Transaction(_pieces(encoded, conditions), transient_of)
        for key, transient in transient_of.items():
            self._coming[key] = (transient, transaction)
        self._unsent.append(transaction)
        self._uncommitted.append(transaction)
        self._wake()
        return transaction.commit

    def uncommitted(self) -> Commit | None:
        return self._uncommitted[-1].commit if self._uncommitted else None

    def watch(self, prefix: Key, callback: Watcher) -> Callable[[], None]:
        """As the interface says. A callback that raises is logged: the history goes on."""

        def guarded(key: Key, record: object | None) -> None:
            try:
                callback(key, record)
            except Exception:
                log_fault(logger, "definition_watcher_failed", kind=key[0])

        return super().watch(prefix, guarded)

    def drop_transient(self) -> Commit | None:
        """Delete what is transient: for the node that is the first of its cluster to start.

        What somebody else writes meanwhile stays. The last of the commits; None when there is
        nothing to delete.
        """
        commit: Commit | None = None
        for key in sorted(self._transient):
            condition = Precondition(key, self._stored[key].version)
            commit = self.transact([Write(key, None)], [condition])
        return commit

    def next_batch(self) -> list[Piece]:
        """The pieces to decide together next; they stay until `batch_decided`."""
        batch: list[Piece] = []
        written: set[Key] = set()
        size = 0
        operations = 0
        for transaction in self._unsent:
            piece = transaction.pieces[0]
            size += piece.size
            operations = max(operations, piece.operations)
            if batch and (
                size > PIECE_BYTES_MAX
                or operations + len(batch) + 1 > BATCH_OPERATIONS_MAX
                or len(batch) == BATCH_TRANSACTIONS_MAX
                or _touches(piece, written)
            ):
                break
            batch.append(piece)
            written.update(write.key for write in piece.writes)
            if len(transaction.pieces) > 1:
                break
        return batch

    def batch_decided(self, taken: Sequence[bool], revision: int) -> None:
        """The batch was decided at a revision: which of its pieces were taken."""
        for was_taken in taken:
            transaction = self._unsent[0]
            transaction.pieces.popleft()
            if was_taken and transaction.pieces:
                continue
            self._unsent.popleft()
            transaction.refused = not was_taken
            transaction.decided_at = revision
        self._settle()

    def pass_over(self, path: bytes, key: Key | None, version: int, reason: str) -> None:
        """A definition was put that cannot be read: what it was before counts until it is again.

        To be called before `advance` to its revision. Its version is the shared store's, so that
        it can be written over.
        """
        self.unreadable[path] = Unreadable("/".join(key) if key is not None else repr(path), reason)
        if key is None:
            return
        stored = self._stored.get(key)
        if stored is None:
            self._unread[key] = version
        else:
            self._stored[key] = stored._replace(version=version)

    def _as_shared(self, condition: Precondition) -> Precondition:
        """Where this node sees no definition there may be one that it cannot read."""
        if condition.version or not self._unread:
            return condition
        return condition._replace(version=self._unread.get(condition.key, 0))

    def advance(self, revision: int, changes: Sequence[Change]) -> None:
        """The next revision of the history that changes something; or, without changes, that
        nothing more changed up to this one."""
        assert revision >= self._revision, (revision, self._revision)
        if self.unreadable:
            for change in changes:
                self.unreadable.pop(encode_path(change.key), None)
                self._unread.pop(change.key, None)
        applied = [change for change in changes if change.stored or change.key in self._stored]
        for change in applied:
            self._apply(change)
        self._revision = revision
        self._tell(applied)
        self._settle()

    def _wake(self) -> None:
        raise NotImplementedError

    def _is_transient(self, write: Write) -> bool:
        """A definition stays what it was first written as, as far as this node knows."""
        coming = self._coming.get(write.key)
        if coming is not None:
            transient, _ = coming
            return write.transient if transient is None else transient
        return write.key in self._transient if write.key in self._stored else write.transient

    def _settle(self) -> None:
        while self._uncommitted:
            transaction = self._uncommitted[0]
            if not 0 < transaction.decided_at <= self._revision:
                return
            self._uncommitted.popleft()
            for key in transaction.transient_of:
                if self._coming[key][1] is transaction:
                    del self._coming[key]
            transaction.commit.complete(transaction.refused)


def _encoded(key: Key, record: object | None, transient: bool) -> bytes | None:
    return None if record is None else encode_definition(key, record, transient)


def _pieces(writes: Sequence[EncodedWrite], preconditions: tuple[Precondition, ...]) -> list[Piece]:
    if len(preconditions) > PRECONDITIONS_MAX:
        raise TransactionTooLarge(
            f"a transaction has {len(preconditions)} preconditions, at most {PRECONDITIONS_MAX}"
            " can be checked together"
        )
    pieces: list[Piece] = []
    piece: list[EncodedWrite] = []
    size = 0
    for write in writes:
        if write.size > PIECE_BYTES_MAX:
            raise TransactionTooLarge(
                f"definition {write.key} has {write.size} octets, the cluster's store takes"
                f" {PIECE_BYTES_MAX}"
            )
        if len(piece) == OPERATIONS_MAX or size + write.size > PIECE_BYTES_MAX:
            pieces.append(Piece(tuple(piece), preconditions))
            preconditions = ()
            piece, size = [], 0
        piece.append(write)
        size += write.size
    pieces.append(Piece(tuple(piece), preconditions))
    return pieces


def _touches(piece: Piece, written: set[Key]) -> bool:
    return any(write.key in written for write in piece.writes) or any(
        condition.key in written for condition in piece.preconditions
    )
