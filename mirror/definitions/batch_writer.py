"""Batches of transactions as etcd transactions that are done exactly once.

Keys: the path of (node, "head") below `definitions-writers/` holds the last batch of a node, as
`<session>:<number>`, with `:whole` appended when all of the batch was taken together. The path of
(node, "0"), (node, "1") ... below `batch-marks/` holds the last batch sent in parts whose
transaction with that number had preconditions and was taken.

Theory. A batch goes to etcd *whole* first: all its preconditions are compared, and all its keys
written, by one plain transaction. That costs etcd half as much as deciding each of its transactions
alone, and succeeds as long as no other node writes the same keys, which is usual. If a precondition
does not hold, nothing was done, and the batch is sent again *in parts*: each of its transactions is
a nested one with its own preconditions, and each one with preconditions that is taken leaves a
mark.

In both forms a batch compares the revision at which the head was last written, and writes the head.
So of all copies of a batch that are ever sent, in either form, only one is done. When an answer is
lost, the same batch is sent again: the copy that comes first writes the head, and the others fail
their comparison. Head and marks then say what became of the batch. `claim` writes the head, too, so
a copy that is still on its way cannot be done later, not even after a restart of the node.

If another process has written the head, it runs under the name of this node, and this process must
not write any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from warren.core.definitions.record_format import encode_path
from warren.mirror.definitions.codec import Keys
from warren.mirror.definitions.etcd import EtcdClient, EtcdHistoryLost
from warren.mirror.definitions.etcd_messages import (
    Compare,
    Header,
    KeyValue,
    Operation,
    OperationAnswer,
    Txn,
    TxnAnswer,
    delete,
    end_of,
    get,
    modified_at,
    put,
)
from warren.mirror.definitions.shared_definitions import WritePiece

WHOLE_OPERATIONS_MAX = 127
"""Limit of the comparisons, and of the writes, of a batch that is sent whole, besides those of the
head: etcd takes 128 of each in a transaction at its defaults."""
WHOLE = b":whole"

PARTS_AFTER_REFUSAL = 4
"""Batches that are sent in parts once one was refused, counting that one. The later ones are not
tried whole: nodes that write the same keys often do so for a while, and two tries of each batch
would delay them more."""


class WriterSuperseded(Exception):
    """Another process writes to the cluster under the name of this node."""


class Decision(NamedTuple):
    """`taken` says for each piece of a batch whether it was taken, at `revision`."""

    taken: list[bool]
    revision: int


class BatchWriter:
    """Sends one node's batches to etcd: call `claim` once, then one `send` after the other."""

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
        # The number of further batches to send in parts at once, because one was refused just now.
        self._parts_left = 0
        self._etcd_cluster = 0

    async def claim(self) -> None:
        """Write the head: batches of earlier processes of this node can no longer be done."""
        answer = await self._etcd.txn(Txn(success=[put(self._head, self._token())]))
        self._head_revision = answer.header.revision
        self._etcd_cluster = answer.header.cluster_id

    async def send(self, batch: Sequence[WritePiece]) -> Decision:
        """Have a batch decided. After an `EtcdError`, send the same batch again before any other.

        Raises `WriterSuperseded`, which is final.
        """
        number = self._sent + 1
        decision = None
        if not self._parts_left:
            decision = await self._send_whole(batch, number)
        if decision is None:
            self._parts_left = self._parts_left or PARTS_AFTER_REFUSAL
            decision = await self._send_in_parts(batch, number)
            self._parts_left -= 1
        assert len(decision.taken) == len(batch), (decision, batch)
        self._sent = number
        self._head_revision = decision.revision
        return decision

    async def _send_whole(self, batch: Sequence[WritePiece], number: int) -> Decision | None:
        """Send the batch whole; None when it has to be sent in parts."""
        conditions = sum([len(piece.preconditions) for piece in batch])
        writes = sum([len(piece.writes) for piece in batch])
        if max(conditions, writes) > WHOLE_OPERATIONS_MAX:
            return None
        compare = [one for piece in batch for one in self._compared(piece)]
        written = [one for piece in batch for one in self._written(piece)]
        answer = await self._txn(compare, [put(self._head, self._token(number) + WHOLE), *written])
        if answer.succeeded:
            return Decision([True] * len(batch), answer.header.revision)
        head = self._found_head(answer)
        if head.mod_revision == self._head_revision:
            return None
        return self._earlier(batch, answer, number)

    async def _send_in_parts(self, batch: Sequence[WritePiece], number: int) -> Decision:
        token = self._token(number)
        nested = [self._nested(place, piece, token) for place, piece in enumerate(batch)]
        answer = await self._txn([], [put(self._head, token), *nested])
        if answer.succeeded:
            taken = [_was_taken(part) for part in answer.responses[1:]]
            return Decision(taken, answer.header.revision)
        return self._earlier(batch, answer, number)

    async def _txn(self, compare: Sequence[Compare], success: list[Operation]) -> TxnAnswer:
        """Send a transaction that also compares the head. If a comparison fails, the answer has the
        head and the marks."""
        txn = Txn(
            compare=[modified_at(self._head, self._head_revision), *compare],
            success=success,
            failure=[get(self._head), get(self._marks, end_of(self._marks))],
        )
        answer = await self._etcd.txn(txn)
        self._expect_same(answer.header)
        return answer

    def _compared(self, piece: WritePiece) -> list[Compare]:
        return [modified_at(self._keys.key(key), version) for key, version in piece.preconditions]

    def _written(self, piece: WritePiece) -> list[Operation]:
        return [
            delete(self._keys.key(key)) if value is None else put(self._keys.key(key), value)
            for key, value in piece.writes
        ]

    def _nested(self, place: int, piece: WritePiece, token: bytes) -> Operation:
        operations = self._written(piece)
        if piece.preconditions:
            operations.append(put(self._mark(place), token))
        return Operation(request_txn=Txn(compare=self._compared(piece), success=operations))

    def _earlier(self, batch: Sequence[WritePiece], answer: TxnAnswer, number: int) -> Decision:
        """The decision on a batch that was sent before, read from its head and marks."""
        head = self._found_head(answer)
        token = self._token(number)
        if head.value == token + WHOLE:
            return Decision([True] * len(batch), head.mod_revision)
        if head.value != token:
            raise self._superseded()
        marked = {kv.key for kv in _found(answer) if kv.value == token}
        taken = [
            not piece.preconditions or self._mark(place) in marked
            for place, piece in enumerate(batch)
        ]
        return Decision(taken, head.mod_revision)

    def _found_head(self, answer: TxnAnswer) -> KeyValue:
        for kv in _found(answer):
            if kv.key == self._head:
                return kv
        raise self._superseded()

    def _superseded(self) -> WriterSuperseded:
        return WriterSuperseded(f"another process writes to the cluster as {self._writer}")

    def _expect_same(self, header: Header) -> None:
        """Raises `EtcdHistoryLost` if etcd has lost its data: then it lacks our head, and took
        nothing for that reason."""
        if header.cluster_id != self._etcd_cluster or header.revision < self._head_revision:
            raise EtcdHistoryLost(
                f"etcd is cluster {header.cluster_id:x} at revision {header.revision},"
                f" it was {self._etcd_cluster:x} at {self._head_revision}"
            )

    def _mark(self, place: int) -> bytes:
        return self._marks + encode_path((str(place),))

    def _token(self, number: int = 0) -> bytes:
        return f"{self._session}:{number}".encode()


def _found(answer: TxnAnswer) -> list[KeyValue]:
    ranges = [one.response_range for one in answer.responses]
    return [kv for found in ranges if found is not None for kv in found.kvs]


def _was_taken(nested: OperationAnswer) -> bool:
    return nested.response_txn is not None and nested.response_txn.succeeded
