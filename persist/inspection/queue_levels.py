"""The levels of the queues in a storage, as the definitions name them.

The levels of a queue have ids that count up from its own. Most hold messages of one priority; some
hold what is not in the queue: ids that it remembers, and messages that were acknowledged and are
retained. Of a mirror the storage has ids of its own, but for what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from warren.core.backing.backing_queue import LEVELS, RETAINED_LEVEL
from warren.core.backing.windowed_queue import IDS
from warren.core.definitions.records import QueueRecord
from warren.core.exchanges.delay import exchange_behind
from warren.core.field import from_plain
from warren.core.queues.queue_arguments import DEDUPLICATION_WINDOW
from warren.core.queues.queue_type import STREAM, type_of
from warren.persist.definitions.definitions_copy import read_definitions
from warren.persist.definitions.deleted_queues import is_retained
from warren.persist.disk.cluster_file import read_known_cluster


def definition_id(queue_id: int) -> int:
    """The id of the queue: the levels of one with priorities count up from it.

    Where the node is a mirror it is an id of its storage, which the definition names too.
    """
    return queue_id - queue_id % LEVELS


class QueueLevels(NamedTuple):
    """`ids` are levels of ids that queues remember, `highest` those of the highest of 256
    priorities. `storages` says what this storage calls a queue, where that is not its id.
    `unmarked` are queues whose messages never count as delivered: streams, and queues in which
    delayed messages wait."""

    ids: frozenset[int] = frozenset()
    highest: frozenset[int] = frozenset()
    storages: Mapping[int, int] = {}
    unmarked: frozenset[int] = frozenset()

    def is_retained(self, level: int) -> bool:
        """Whether the level has acknowledged messages."""
        return is_retained(level) and level not in self.highest

    def is_hidden(self, level: int) -> bool:
        """Whether the messages of the level are not in the queue: ids, or acknowledged messages."""
        return level in self.ids or self.is_retained(level)

    def queue_of(self, level: int) -> int:
        """Return the id by which this storage knows the queue of the level."""
        queue_id = definition_id(level)
        return self.storages.get(queue_id, queue_id) if self.is_retained(level) else queue_id


def read_levels(data_directory: Path, *, pause: Callable[[float], None]) -> QueueLevels:
    """Read the levels from the definitions, passing over those that cannot be read. Raises
    `DataDirectoryRefused`, OSError."""
    known = read_known_cluster(data_directory)
    node = "" if known is None else known.node
    ids, highest, storages, unmarked = set(), set(), {}, set()
    for stored in read_definitions(
        data_directory, "queue", pause=pause, damaged=lambda error: None
    ):
        record = stored.record
        assert isinstance(record, QueueRecord)
        storage_id = record.storage_id(node)
        if storage_id != record.queue_id:
            storages[record.queue_id] = storage_id
        if DEDUPLICATION_WINDOW in record.arguments:
            ids.add(storage_id + IDS)
        arguments = from_plain(record.arguments)
        if type_of(arguments) is STREAM or exchange_behind(str(stored.key[-1])) is not None:
            unmarked.add(storage_id)
        priority = arguments.get("x-max-priority")
        if priority is not None and priority.value >= RETAINED_LEVEL:
            highest.add(storage_id + RETAINED_LEVEL)
    return QueueLevels(frozenset(ids), frozenset(highest), storages, frozenset(unmarked))
