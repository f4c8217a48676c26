"""Batches of transactions as etcd transactions that are done exactly once.

Keys: the path of (node, "head") below `definitions-writers/` holds the last batch of a node, as
`<session>:<number>`; the path of (node, "0"), (node, "1") ... below `batch-marks/` the same text
where the transaction of that number in the batch had preconditions and was taken.

Theory. A batch is one etcd transaction. It compares the revision at which the head was last
written, writes the head, and holds the transactions as nested ones, each with its own
preconditions. When an answer is lost, the same batch is sent again: whichever copy comes first
writes the head, and the other then fails its comparison. If that is the second, head and marks
say what became of the first. No copy that is still on its way can be done later, not even after a
restart of the node, because `claim` writes the head too.

A head that somebody else has written means that a second process runs under the name of this
node, and that this one may write nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from warren.core.definitions.record_format import encode_path
from warren.mirror.definitions.codec import Keys
from warren.mirror.definitions.etcd import EtcdClient, EtcdHistoryLost
from warren.mirror.definitions.etcd_messages import (
    Header,
    KeyValue,
    Operation,
    OperationAnswer,
    Txn,
    delete,
    end_of,
    get,
    modified_at,
    put,
)
from warren.mirror.definitions.shared_definitions import Piece


class WriterSuperseded(Exception):
    """Another process writes to the cluster under the name of this node."""


class Decision(NamedTuple):
    """Which pieces of a batch were taken, and the revision at which that was decided."""

    taken: list[bool]
    revision: int


class BatchWriter:
    """The way of one node's batches into etcd: `claim` once, then one `send` after the other."""

    def __init__(self, etcd: EtcdClient, keys: Keys, writer: str, session: str) -> None:
        self._etcd = etcd
        self._keys = keys
        own = encode_path((writer,))
        self._head = keys.writers + own + encode_path(("head",))
        self._marks = keys.marks + own
        self._writer = writer
        self._session = session
        self._sent = 0
        self._head_revision = 0
        self._etcd_cluster = 0

    async def claim(self) -> None:
        """Shut out whatever an earlier process of this node may still have on its way."""
        answer = await self._etcd.txn(Txn(success=[put(self._head, self._token())]))
        self._head_revision = answer.header.revision
        self._etcd_cluster = answer.header.cluster_id

    async def send(self, batch: Sequence[Piece]) -> Decision:
        """Have a batch decided. After an `EtcdError`, send the same batch again and no other.

        Raises `WriterSuperseded` for good.
        """
        number = self._sent + 1
        answer = await self._etcd.txn(self._txn(batch, number))
        self._expect_same(answer.header)
        if answer.succeeded:
            taken = [_was_taken(nested) for nested in answer.responses[1:]]
            decision = Decision(taken, answer.header.revision)
        else:
            found = [kv for one in answer.responses for kv in _found(one)]
            decision = self._earlier(batch, found, number)
        assert len(decision.taken) == len(batch), (decision, batch)
        self._sent = number
        self._head_revision = decision.revision
        return decision

    def _txn(self, batch: Sequence[Piece], number: int) -> Txn:
        token = self._token(number)
        nested = [self._nested(place, piece, token) for place, piece in enumerate(batch)]
        return Txn(
            compare=[modified_at(self._head, self._head_revision)],
            success=[put(self._head, token), *nested],
            failure=[get(self._head), get(self._marks, end_of(self._marks))],
        )

    def _nested(self, place: int, piece: Piece, token: bytes) -> Operation:
        operations = [
            delete(self._keys.key(key)) if value is None else put(self._keys.key(key), value)
            for key, value in piece.writes
        ]
        if piece.preconditions:
            operations.append(put(self._mark(place), token))
        compare = [
            modified_at(self._keys.key(key), version) for key, version in piece.preconditions
        ]
        return Operation(request_txn=Txn(compare=compare, success=operations))

    def _earlier(self, batch: Sequence[Piece], found: Sequence[KeyValue], number: int) -> Decision:
        """What became of the batch when it was sent before, by what is found of its keys."""
        own = {kv.key: kv for kv in found}
        head = own.get(self._head)
        token = self._token(number)
        if head is None or head.value != token:
            raise WriterSuperseded(f"another process writes to the cluster as {self._writer}")
        marked = {key for key, kv in own.items() if kv.value == token}
        taken = [
            not piece.preconditions or self._mark(place) in marked
            for place, piece in enumerate(batch)
        ]
        return Decision(taken, head.mod_revision)

    def _expect_same(self, header: Header) -> None:
        """An etcd that lost its data has no head of ours, and took nothing for that reason."""
        if header.cluster_id != self._etcd_cluster or header.revision < self._head_revision:
            raise EtcdHistoryLost(
                f"etcd is cluster {header.cluster_id:x} at revision {header.revision},"
                f" it was {self._etcd_cluster:x} at {self._head_revision}"
            )

    def _mark(self, place: int) -> bytes:
        return self._marks + encode_path((str(place),))

    def _token(self, number: int = 0) -> bytes:
        return f"{self._session}:{number}".encode()


def _found(answer: OperationAnswer) -> Sequence[KeyValue]:
    return answer.response_range.kvs if answer.response_range is not None else ()


def _was_taken(nested: OperationAnswer) -> bool:
    return nested.response_txn is not None and nested.response_txn.succeeded
