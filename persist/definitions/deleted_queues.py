"""Notes that queues were deleted, so that a start can tell their messages from lost definitions.

Messages of a queue leave the disk some time after its definition. A crash in between leaves
messages that no definition names, and so does a lost or damaged database of definitions. The first
must go, the second must not. So the note "this queue was deleted" stands in the same database as
the definitions, and is written in the same transaction as the removal of the definition. It goes
when the message storage holds nothing of the queue any more, or when a definition has the id again.

Key: `PREFIX` and the id of the queue, 8 octets, big-endian. Value: one octet. No definition has
such a key: their kinds begin with a letter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import NamedTuple, TypeAlias

from warren.core.backing.backing_queue import LEVELS, RETAINED_LEVEL
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.record_format import encode_path
from warren.core.definitions.records import QueueRecord
from warren.core.ports import Commit, Stored

PREFIX = b"\0deleted\0"
NOTED = b"\1"

QUEUE_PREFIX = encode_path(("queue",))
"""Keys of definitions of queues begin with it."""

_ID = struct.Struct(">Q")

Puts: TypeAlias = Sequence[tuple[bytes, bytes | None]]


class Storages(NamedTuple):
    """The storages that a node has of a queue: `named` by the definition, and `kept` copies from an
    earlier time, when the definition named them."""

    named: Set[int]
    kept: Set[int] = frozenset()


NO_STORAGES = Storages(frozenset())


def note_key(queue_id: int) -> bytes:
    return PREFIX + _ID.pack(queue_id)


def noted_queue(key: bytes) -> int | None:
    """The queue a note is about; None when the key is not that of a note."""
    if not key.startswith(PREFIX) or len(key) != len(PREFIX) + _ID.size:
        return None
    (queue_id,) = _ID.unpack_from(key, len(PREFIX))
    return int(queue_id)


def storage_ids(record: object) -> set[int]:
    """The ids under which nodes keep the messages of a queue over a restart."""
    if not isinstance(record, QueueRecord) or not record.durable or record.exclusive:
        return set()
    return {record.queue_id, *record.stores.values()} - {0}


def own_storage(record: object, node: str, retaining: Collection[int] = ()) -> set[int]:
    """Return the storages of a definition that a node has, if it has the queue or a copy: one for
    the messages, and for those that were acknowledged the queue's own id, if that is among
    `retaining`."""
    if not isinstance(record, QueueRecord):
        return set()
    ids = {record.storage_id(node)} if record.leader == node or node in record.stores else set()
    if record.queue_id in retaining:
        ids.add(record.queue_id)
    return storage_ids(record) & ids


def led_storages(queues: Iterable[Stored], node: str, *, alone: bool) -> set[int]:
    """The storage ids of the queues that a node leads, usable or not.

    `alone`: it is in no cluster, and leads all. Copies of queues that others lead are not among
    them.
    """
    records = [stored.record for stored in queues]
    return {
        record.storage_id(node)
        for record in records
        if isinstance(record, QueueRecord) and (alone or record.leader == node)
    }


def first_level(storage_id: int) -> int:
    """The id a definition has for this storage: a queue with priorities has one for each level."""
    return storage_id - storage_id % LEVELS


def is_retained(storage_id: int) -> bool:
    """Whether the storage has acknowledged messages; or those of the highest of 256 priorities."""
    return storage_id % LEVELS == RETAINED_LEVEL


class DeletedQueues:
    """The notes of a node. `noted` are those found when the database was opened.

    `former` are ids that definitions had when the node stopped. In a cluster other nodes delete
    queues while this one is down, and their deletion is known by their absence since.

    `retaining` are queues of which the storage has messages that were acknowledged. `copies_of`
    tells, on any thread, which storages are copies of a queue.
    """

    def __init__(self, submit: Callable[[Puts], Commit]) -> None:
        self.noted: set[int] = set()
        self.former: set[int] = set()
        self.retaining: set[int] = set()
        self.copies_of: Callable[[int], Set[int]] = lambda queue_id: frozenset()
        self._submit = submit

    def __contains__(self, queue_id: int) -> bool:
        """Whether it is written down that the queue was deleted before this start."""
        return queue_id in self.noted or queue_id in self.former

    def note(self, queue_ids: Iterable[int]) -> Commit:
        """Write notes that the messages which the storage has under these ids are not wanted."""
        return self._submit([(note_key(queue_id), NOTED) for queue_id in queue_ids])

    def forget(self, queue_ids: Collection[int]) -> None:
        """Remove the notes of these queues: the storage has nothing of them any more."""
        self.retaining.difference_update(queue_ids)
        if queue_ids:
            self._submit([(note_key(queue_id), None) for queue_id in queue_ids])


def no_notes() -> DeletedQueues:
    """Return the notes of a node that keeps no definitions."""
    return DeletedQueues(lambda puts: CompletedCommit())
