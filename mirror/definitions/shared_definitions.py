"""Definitions that several nodes share: one node's copy of them, and its transactions under way.

Answerable for the stages of a transaction: it is queued here, sent in batches, decided by the
shared store, and visible when the history has come to it. Not for sending (`cluster_metadata.py`)
and not for durability, which is the task of the shared store.

Theory. The shared store has one history; each of its revisions is a set of changes. This table
is that history applied up to `revision`, never more and never out of order. A transaction is
decided at a revision: taken, or refused because a precondition did not hold just before it. In
both cases its commit is done when the table has come to that revision. So a caller that was refused
sees why, and one that was not sees what it wrote. If it is something that clients see, those of
the other nodes have come to that revision, too (`mirror/members/abreast.py`).

Order. Transactions of one node are decided in the order of the `transact` calls, so commits are
done in that order. A batch is a run of transactions that the shared store can decide at one
revision with the same outcome as one after the other: no transaction writes or relies on a key
that an earlier one of the batch writes. One batch is under way at a time.

Atomicity. All preconditions are decided in one piece with the first `OPERATIONS_MAX` writes of a
transaction, or as many as fit into `PIECE_BYTES_MAX` octets. Further writes follow in pieces of
that size, in order, each atomic for itself; none follows if the first piece was refused. The commit
is done with the last piece. Other nodes may see the definitions, and write, between the pieces. If
a node dies between them, only the first pieces are done.

If a transaction writes a key several times, only the last write is sent.
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
from warren.core.ports import Commit, Key, Precondition, UnreadableText, Write
from warren.mirror.definitions.cluster_log import logger
from warren.mirror.definitions.codec import encode_definition

OPERATIONS_MAX = 124
"""Writes of a piece. etcd takes 128 operations in a transaction at its defaults, of which a batch
with one piece needs three."""

PRECONDITIONS_MAX = 124
"""Preconditions of a transaction: etcd limits them like operations."""

PIECE_BYTES_MAX = 512 << 10
"""Octets of a piece: etcd takes requests of 1.5 MiB at its defaults."""

BATCH_TRANSACTIONS_MAX = 64
"""Every node applies a batch in one turn of its loop, where a queue that gets another leader takes
up to half a millisecond. With half as many, failovers of thousands of queues cost a third more.
"""
BATCH_OPERATIONS_MAX = 127
"""Limit of a batch's number of pieces plus the operations of its largest piece: etcd adds up the
operations along the depth of nested transactions, not across them."""


class TransactionTooLarge(ValueError):
    """A record is too large for the shared store, or a transaction has too many preconditions."""


class SharedCommit:
    """The commit of a transaction; implements `core.ports.Commit`. The shared store decides it."""

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
                # Later callbacks, and other transactions of the revision, must still be told.
                log_fault(logger, "commit_callback_failed")


class EncodedWrite(NamedTuple):
    """A write of one key; `value` is None to delete the key."""

    key: Key
    value: bytes | None

    @property
    def size(self) -> int:
        return sum(map(len, self.key)) + len(self.value or b"")


class WritePiece(NamedTuple):
    """Writes that the shared store decides together; it may refuse a piece with preconditions."""

    writes: tuple[EncodedWrite, ...]
    preconditions: tuple[Precondition, ...]

    @property
    def operations(self) -> int:
        """The operations as etcd counts them, with the mark that a conditional piece leaves."""
        return max(len(self.writes) + bool(self.preconditions), len(self.preconditions))

    @property
    def size(self) -> int:
        return sum(write.size for write in self.writes)


class DefinitionTransaction:
    """A call of `transact` under way. `decided_at` is 0 until all its pieces are decided;
    `everywhere` is whether it is done only when other nodes have come to that revision."""

    __slots__ = ("commit", "decided_at", "everywhere", "pieces", "refused")

    def __init__(self, pieces: Collection[WritePiece], everywhere: bool) -> None:
        self.pieces = deque(pieces)
        self.everywhere = everywhere
        self.commit = SharedCommit()
        self.decided_at = 0
        self.refused = False


class SharedDefinitions(DefinitionTable):
    """Implements `core.ports.MetadataStore` except `close`; the subclass sends the batches.

    `_wake` is called when there may be a batch to send. The subclass takes it with `next_batch`,
    says with `batch_decided` which pieces were taken, and passes each revision of the history to
    `advance`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._revision = 0
        # The revision that all other nodes have come to; None if no node is waited for.
        self._others_at: int | None = None
        # `on_decided` is called with the revision of a decided batch that other nodes are to come
        # to, `on_advanced` when `revision` has changed.
        self.on_decided: Callable[[int], None] = lambda revision: None
        self.on_advanced: Callable[[], None] = lambda: None
        self._unsent: deque[DefinitionTransaction] = deque()
        self._uncommitted: deque[DefinitionTransaction] = deque()
        # The shared store's versions of definitions that this node never could read.
        self._unread: dict[Key, int] = {}

    @property
    def revision(self) -> int:
        """The revision up to which the shared history is applied."""
        return self._revision

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        """Send a transaction to the shared store.

        Raises `Conflict` when this node already knows that a precondition does not hold,
        `TransactionTooLarge`, and what encoding a record raises; then nothing was sent.
        """
        self._check(preconditions)
        if not writes and not preconditions:
            # Nothing to do or to check: all that is visible is durable already.
            return CompletedCommit()
        last = {write.key: write.record for write in writes}
        encoded = [
            EncodedWrite(key, None if record is None else encode_definition(key, record))
            for key, record in last.items()
        ]
        conditions = tuple(self._as_shared(one) for one in preconditions)
        everywhere = any(map(self._is_seen_by_clients, writes))
        transaction = DefinitionTransaction(_pieces(encoded, conditions), everywhere)
        self._unsent.append(transaction)
        self._uncommitted.append(transaction)
        self._wake()
        return transaction.commit

    def uncommitted(self) -> Commit | None:
        return self._uncommitted[-1].commit if self._uncommitted else None

    def watch(self, prefix: Key, callback: Watcher) -> Callable[[], None]:
        """As the interface says. If a callback raises, that is logged, and the history goes on."""

        def guarded(key: Key, record: object | None) -> None:
            try:
                callback(key, record)
            except Exception:
                log_fault(logger, "definition_watcher_failed", kind=key[0])

        return super().watch(prefix, guarded)

    def next_batch(self) -> list[WritePiece]:
        """The pieces to decide together next; they stay queued until `batch_decided`."""
        batch: list[WritePiece] = []
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
        """Note the decision on the batch at `revision`; `taken` says for each piece whether it
        was."""
        everywhere = False
        for was_taken in taken:
            transaction = self._unsent[0]
            everywhere |= transaction.everywhere
            transaction.pieces.popleft()
            if was_taken and transaction.pieces:
                continue
            self._unsent.popleft()
            transaction.refused = not was_taken
            transaction.decided_at = revision
        if everywhere:
            self.on_decided(revision)
        self._settle()

    def others_reached(self, revision: int) -> None:
        """Note that all other nodes that are waited for have come to a revision. From the first
        call on, what clients see is done only when others have come to it."""
        self._others_at = max(revision, self._others_at or 0)
        self._settle()

    def pass_over(self, path: bytes, key: Key | None, version: int, reason: str) -> None:
        """Pass over a definition that cannot be read: the one before counts until it can be read.

        Call this before `advance` to its revision. The definition gets the shared store's version,
        so that it can be overwritten.
        """
        self.unreadable[path] = UnreadableText(
            "/".join(key) if key is not None else repr(path), reason
        )
        if key is None:
            return
        stored = self._stored.get(key)
        if stored is None:
            self._unread[key] = version
        else:
            self._stored[key] = stored._replace(version=version)

    def _as_shared(self, condition: Precondition) -> Precondition:
        """The precondition for the shared store: where this node sees no definition, the store may
        have one that this node cannot read."""
        if condition.version or not self._unread:
            return condition
        return condition._replace(version=self._unread.get(condition.key, 0))

    def advance(self, revision: int, changes: Sequence[Change]) -> None:
        """Apply the next revision of the history that changes something; or, without changes, note
        that nothing more changed up to this revision."""
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
        self.on_advanced()

    def _wake(self) -> None:
        raise NotImplementedError

    def _is_seen_by_clients(self, write: Write) -> bool:
        """Whether clients see what the write changes. They do not see groups, nor a change of a
        queue that is there already: its leader and its copies are between nodes."""
        kind = write.key[0]
        is_change = write.record is not None and write.key in self._stored
        return kind != "group" and not (kind == "queue" and is_change)

    def _others_are_behind(self, revision: int) -> bool:
        return self._others_at is not None and self._others_at < revision

    def _settle(self) -> None:
        while self._uncommitted:
            transaction = self._uncommitted[0]
            if not 0 < transaction.decided_at <= self._revision:
                return
            if transaction.everywhere and self._others_are_behind(transaction.decided_at):
                return
            self._uncommitted.popleft()
            transaction.commit.complete(transaction.refused)


def _pieces(
    writes: Sequence[EncodedWrite], preconditions: tuple[Precondition, ...]
) -> list[WritePiece]:
    if len(preconditions) > PRECONDITIONS_MAX:
        raise TransactionTooLarge(
            f"a transaction has {len(preconditions)} preconditions, at most {PRECONDITIONS_MAX}"
            " can be checked together"
        )
    pieces: list[WritePiece] = []
    piece: list[EncodedWrite] = []
    size = 0
    for write in writes:
        if write.size > PIECE_BYTES_MAX:
            raise TransactionTooLarge(
                f"definition {write.key} has {write.size} octets, the cluster's store takes"
                f" {PIECE_BYTES_MAX}"
            )
        if len(piece) == OPERATIONS_MAX or size + write.size > PIECE_BYTES_MAX:
            pieces.append(WritePiece(tuple(piece), preconditions))
            preconditions = ()
            piece, size = [], 0
        piece.append(write)
        size += write.size
    pieces.append(WritePiece(tuple(piece), preconditions))
    return pieces


def _touches(piece: WritePiece, written: set[Key]) -> bool:
    return any(write.key in written for write in piece.writes) or any(
        condition.key in written for condition in piece.preconditions
    )
