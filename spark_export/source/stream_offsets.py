"""How far a stream has read, and how far its next batch goes: numbers only, no files.

An offset is what Spark writes into the checkpoint:

    {"snapshot": directory, "next": {vhost: {queue: {queue id: next seq}}}, "left": rows,
     "first": null}

`left` is the number of messages in the snapshot after the offset. In the first batch of a query,
`first` has the positions where it begins, like `next`: Spark does not keep them before the batch
has succeeded, and would ask for them again, when "latest" is another position.

Queues are identified by their ids too. A queue that was deleted and declared again has another id
and positions that begin anew; a queue with priorities has an id, and positions, for each level in
use.

A batch is the messages between two offsets, read from the snapshot of the later one: so it has the
same rows whenever it is read, as long as that snapshot exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class StreamQueue(NamedTuple):
    """A queue, or one priority level of it."""

    vhost: str
    name: str
    queue_id: int


@dataclass(frozen=True)
class StreamOffset:
    """The place to go on from. `snapshot` is empty before the first one; a queue that is not in
    `next` is new."""

    snapshot: str
    next: Mapping[StreamQueue, int]
    left: int = 0
    first: Mapping[StreamQueue, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "snapshot": self.snapshot,
            "next": _positions_to_json(self.next),
            "left": self.left,
            "first": None if self.first is None else _positions_to_json(self.first),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """The offset from the result of `to_json`. Raises ValueError."""
        try:
            first = value["first"]
            return cls(
                str(value["snapshot"]),
                _positions_from_json(value["next"]),
                int(value["left"]),
                None if first is None else _positions_from_json(first),
            )
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"this is no offset of a stream of messages: {value!r}") from error


def _positions_to_json(
    positions: Mapping[StreamQueue, int],
) -> dict[str, dict[str, dict[str, int]]]:
    by_vhost: dict[str, dict[str, dict[str, int]]] = {}
    for queue, seq in sorted(positions.items()):
        ids = by_vhost.setdefault(queue.vhost, {}).setdefault(queue.name, {})
        ids[f"{queue.queue_id:016x}"] = seq
    return by_vhost


def _positions_from_json(value: Any) -> dict[StreamQueue, int]:
    """The positions in an offset. Raises ValueError, AttributeError, TypeError."""
    return {
        StreamQueue(vhost, name, int(queue_id, 16)): int(seq)
        for vhost, queues in value.items()
        for name, ids in queues.items()
        for queue_id, seq in ids.items()
    }


class Waiting(NamedTuple):
    """Messages of a queue that wait to be read: their positions, ascending, and their sizes in
    octets."""

    queue: StreamQueue
    positions: NDArray[np.uint64]
    octets: NDArray[np.uint32]


def advance(
    start: StreamOffset,
    snapshot: str,
    waiting: Iterable[Waiting],
    *,
    max_rows: int | None,
    max_octets: int | None,
) -> StreamOffset:
    """The offset after the next batch, which has at most `max_rows` messages and `max_octets`.

    If any message waits, the batch has at least one. Each queue gets an equal share, and what a
    queue does not need goes to the others; so a queue with a long backlog does not delay the
    others.
    """
    queues = sorted((at for at in waiting if len(at.positions)), key=lambda at: at.queue)
    rows = {at.queue: len(at.positions) for at in queues}
    waiting_rows = sum(rows.values())
    if max_rows is not None:
        rows = shares(rows, max_rows)
    if max_octets is not None:
        sums = {at.queue: np.cumsum(at.octets, dtype=np.uint64) for at in queues}
        allowed = shares({queue: int(one[-1]) for queue, one in sums.items()}, max_octets)
        for queue, one in sums.items():
            fitting = int(np.searchsorted(one, np.uint64(allowed[queue]), side="right"))
            rows[queue] = min(rows[queue], fitting)
    if queues and not any(rows.values()):
        rows[queues[0].queue] = 1
    following = dict(start.next)
    for at in queues:
        taken = rows[at.queue]
        if taken:
            following[at.queue] = int(at.positions[taken - 1]) + 1
    return StreamOffset(
        snapshot,
        following,
        left=waiting_rows - sum(rows.values()),
        first=None if start.snapshot else start.next,
    )


def lag_after(offset: StreamOffset, waiting: Iterable[Waiting]) -> dict[str, Any]:
    """The waiting messages after the offset, and the octets of their records: of all queues, and of
    each queue in which some wait."""
    queues: dict[str, dict[str, dict[str, int]]] = {}
    total = {"rows": 0, "octets": 0}
    for at in waiting:
        first = int(np.searchsorted(at.positions, np.uint64(offset.next.get(at.queue, 0))))
        rows = len(at.positions) - first
        if not rows:
            continue
        octets = int(at.octets[first:].sum(dtype=np.uint64))
        of_vhost = queues.setdefault(at.queue.vhost, {})
        for lag in (total, of_vhost.setdefault(at.queue.name, {"rows": 0, "octets": 0})):
            lag["rows"] += rows
            lag["octets"] += octets
    return {**total, "queues": queues}


def shares(wanted: Mapping[StreamQueue, int], most: int) -> dict[StreamQueue, int]:
    """Divide `most` among queues: no queue gets more than it wants, and a queue that gets less than
    it wants gets at most one less than any other."""
    given = dict.fromkeys(wanted, 0)
    hungry = sorted((queue for queue in wanted if wanted[queue]), key=lambda one: wanted[one])
    for number, queue in enumerate(hungry):
        share = -(-most // (len(hungry) - number))
        given[queue] = min(wanted[queue], share)
        most -= given[queue]
    return given
