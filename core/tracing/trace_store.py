"""Where records of the lives of messages are kept, and found by the id of a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from warren.core.tracing.trace_record import TraceRecord

FOUND_MAX = 5000
"""Records of one message that are shown. The newest count: an id may be used again and again."""

IN_MEMORY_MAX = 10_000
"""Records that a node without a data directory keeps."""


class Life(NamedTuple):
    """The records of one message, by time. `is_whole` is false when it is too much."""

    records: list[TraceRecord]
    is_whole: bool


class Traced(Struct):
    """The part of a record by which a restart knows which messages to follow."""

    vhost: str = ""
    id: str = ""
    queue: str = ""
    queues: tuple[str, ...] = ()


Found: TypeAlias = Callable[[Life], None]


class TraceStore(Protocol):
    def keep(self, records: Sequence[TraceRecord]) -> int:
        """Take these; returns how many of them it has no room for. It does not wait for a disk."""
        ...

    def find(self, vhost: str, name: str, found: Found) -> None:
        """Look for the records of a message, and call back, on the loop."""
        ...

    @property
    def octets(self) -> int:
        """How many octets of the disk the records take."""
        ...

    @property
    def lost(self) -> int:
        """Records that were taken, and that the disk has refused."""
        ...


class MemoryTraceStore:
    """Keeps the newest records in memory."""

    octets = 0
    lost = 0

    def __init__(self) -> None:
        self._records: deque[TraceRecord] = deque(maxlen=IN_MEMORY_MAX)

    def keep(self, records: Sequence[TraceRecord]) -> int:
        self._records.extend(records)
        return 0

    def find(self, vhost: str, name: str, found: Found) -> None:
        found(life_in(self._records, vhost, name))


def life_in(records: Iterable[TraceRecord], vhost: str, name: str) -> Life:
    """Return the records of one message, and of the emptying of queues in which it may have
    been."""
    in_vhost = [record for record in records if record.vhost == vhost]
    own = [record for record in in_vhost if record.id == name]
    if not own:
        return Life([], True)
    queues = {record.queue for record in own}.union(*[record.queues for record in own])
    began = min([record.at for record in own])
    emptied = [
        record
        for record in in_vhost
        if not record.id and record.queue in queues and record.at >= began
    ]
    records = sorted([*own, *emptied], key=lambda record: record.at)
    return Life(records[-FOUND_MAX:], len(records) <= FOUND_MAX)
