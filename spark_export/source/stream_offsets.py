"""How far a stream has read, and how far its next batch goes: numbers only, no files.

An offset is what Spark writes into the checkpoint:

    {"snapshot": directory, "next": {vhost: {queue: {queue id: next seq}}}, "left": rows,
     "first": null}

`left` says how many messages of the snapshot come after it. The first batch of a query has in
`first`, as in `next`, where it begins: Spark does not keep that before the batch has succeeded, and
would ask again, when "latest" is no longer what it was.

Queues are told apart by their ids too. A queue that was deleted and declared anew has another id
and positions that begin anew; one with priorities has an id, and positions, for each level in use.
A batch is what lies between two offsets, and is read from the snapshot of the later one: so it is
the same rows whenever it is read, as long as that snapshot is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class StreamQueue(NamedTuple):
    """A queue, or one priority of it."""

    vhost: str
    name: str
    queue_id: int


@dataclass(frozen=True)
class StreamOffset:
    """Where to go on. `snapshot` is empty before the first one; a queue that is not in `next` has
    not been met yet."""

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
        """What `to_json` made. Raises ValueError."""
        try:
            first = value["first"]
            return cls(
                str(value["snapshot"]),
                _positions_from_json(value["next"]),
                int(value["left"]),
                None if first is None else _positions_from_json(first),
            )
        except (KeyError, AttributeError, TypeError) as error:
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
    """Raises ValueError, AttributeError, TypeError."""
    return {
        StreamQueue(vhost, name, int(queue_id, 16)): int(seq)
        for vhost, queues in value.items()
        for name, ids in queues.items()
        for queue_id, seq in ids.items()
    }


class Waiting(NamedTuple):
    """Messages of a queue to be read: their positions, ascending, and the octets of each."""

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
    """The offset after the next batch, which has at most so many messages and octets, but one
    message at least where any waits.

    Each queue gets an equal share, and what one does not need goes to the others; so a queue with
    a long backlog does not keep the others waiting.
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


def octets_after(offset: StreamOffset, waiting: Iterable[Waiting]) -> int:
    """Of the records that come after the offset."""
    total = 0
    for at in waiting:
        first = np.searchsorted(at.positions, np.uint64(offset.next.get(at.queue, 0)))
        total += int(at.octets[first:].sum(dtype=np.uint64))
    return total


def shares(wanted: Mapping[StreamQueue, int], most: int) -> dict[StreamQueue, int]:
    """Who gets how much of `most`: nobody more than wanted, and who gets less than that not less
    than anybody else but for one."""
    given = dict.fromkeys(wanted, 0)
    hungry = sorted((queue for queue in wanted if wanted[queue]), key=lambda one: wanted[one])
    for number, queue in enumerate(hungry):
        share = -(-most // (len(hungry) - number))
        given[queue] = min(wanted[queue], share)
        most -= given[queue]
    return given
