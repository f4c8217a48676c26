"""What of a store is to be read, and how it is cut into pieces of work.

Everything here is about positions, which stand in the entries of a snapshot. When a message was
enqueued stands in its record only, and a clock may be set back: no cut by position is sure to keep
every message of a time. So `plan_units` leaves times to who decodes the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

import numpy as np

from warren.core.ports import Key
from warren.spark_export.errors import OptionRefused, QueueUnknown
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.unit import SnapshotFiles, Unit

if TYPE_CHECKING:
    from warren.spark_export.snapshot.options import Offsets
    from warren.spark_export.snapshot.snapshot_file import PinnedQueue, PinnedStore

NEAR_NAMES_MAX = 3

UNIT_COST_BYTES = 1 << 20
"""What a unit costs besides its records, as if it were so many octets of them: about 2 ms."""


class ChoosesQueues(Protocol):
    """Says which queues of a store a snapshot is to have; `vhost` if all are in one."""

    @property
    def vhost(self) -> str | None: ...

    @property
    def retained(self) -> bool:
        """Whether what queues have retained of acknowledged messages is wanted, too."""
        ...

    def select(self, queues: Iterable[Key], vhosts: Iterable[str] = ()) -> list[Key]: ...


@dataclass(frozen=True)
class QueueSelector:
    """Which durable queues: all, or those of a virtual host, by names or by a pattern.

    The pattern is a regular expression that the whole name has to match. `retained`: with what they
    have retained of acknowledged messages.
    """

    vhost: str | None = None
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    retained: bool = False

    def __post_init__(self) -> None:
        if self.names is not None and self.pattern is not None:
            raise OptionRefused("names of queues and a pattern exclude each other")

    def select(self, queues: Iterable[Key], vhosts: Iterable[str] = ()) -> list[Key]:
        """Those of the queues, each (virtual host, name), that are meant; in order.

        A virtual host without queues must be among `vhosts`. Raises `QueueUnknown` for a name that
        does not exist, `OptionRefused` for a pattern that cannot be read.
        """
        known = sorted(queues)
        inside = [key for key in known if self.vhost is None or key[0] == self.vhost]
        if self.vhost is not None and not inside and self.vhost not in vhosts:
            raise QueueUnknown(f"there is no virtual host {self.vhost!r}")
        if self.names is not None:
            for name in self.names:
                if not any(key[1] == name for key in inside):
                    raise QueueUnknown(self._unknown(name, known, inside))
            return [key for key in inside if key[1] in self.names]
        if self.pattern is not None:
            try:
                pattern = re.compile(self.pattern)
            except re.error as error:
                raise OptionRefused(f"pattern {self.pattern!r}: {error}") from None
            return [key for key in inside if pattern.fullmatch(key[1])]
        return inside

    def _unknown(self, name: str, known: list[Key], inside: list[Key]) -> str:
        where = "" if self.vhost is None else f" in virtual host {self.vhost!r}"
        elsewhere = [key[0] for key in known if key[1] == name]
        names = sorted({key[1] for key in inside})
        near = get_close_matches(name, names, NEAR_NAMES_MAX, cutoff=0.5)
        if elsewhere:
            hint = f"; there is one in virtual host {elsewhere[0]!r}"
        elif near:
            hint = f"; near names: {', '.join(map(repr, near))}"
        else:
            hint = f"; there are {len(names)} durable queues"
        return f"no durable queue {name!r}{where}{hint}"


def select_queues(
    snapshot: PinnedStore, selector: QueueSelector, *, taken_for_it: bool
) -> list[PinnedQueue]:
    """Those of the snapshot that are meant: one that was not taken for this selector may have more.

    Who takes a snapshot sees virtual hosts without queues, too; a snapshot knows of none. Raises
    `QueueUnknown`, `OptionRefused`.
    """
    keys = {(queue.vhost, queue.name) for queue in snapshot.queues}
    seen = [selector.vhost] if taken_for_it and selector.vhost is not None else []
    chosen = set(selector.select(keys, seen))
    return [
        queue
        for queue in snapshot.queues
        if (queue.vhost, queue.name) in chosen and (selector.retained or not queue.retained)
    ]


def check_named(option: str, offsets: Offsets, queues: Iterable[PinnedQueue]) -> None:
    """Raises `OptionRefused` when the offsets name a queue that is not among these."""
    read = {(queue.vhost, queue.name) for queue in queues}
    for (vhost, queue), _ in offsets.queues:
        if (vhost, queue) not in read:
            raise OptionRefused(
                f"option {option} names queue {queue!r} in virtual host {vhost!r}, "
                "which is not among those that are read"
            )


@dataclass(frozen=True)
class Rows:
    """Rows [`first`, `end`) of the entries of a pinned queue."""

    queue: PinnedQueue
    first: int
    end: int


def find_rows(files: SnapshotFiles, queue: PinnedQueue, span: Interval) -> Rows:
    """The rows whose positions are in the span. Raises `SnapshotGone`, OSError."""
    if not queue.rows or span == Interval():
        return Rows(queue, 0, queue.rows)
    positions = files.load_entries(queue.queue_id)["position"]
    first, end = 0, queue.rows
    if span.start is not None:
        first = int(np.searchsorted(positions, np.uint64(max(span.start, 0))))
    if span.end is not None:
        end = int(np.searchsorted(positions, np.uint64(max(span.end, 0))))
    return Rows(queue, first, max(first, end))


def plan_units(
    snapshot: PinnedStore,
    spans: Iterable[tuple[PinnedQueue, Interval]],
    *,
    max_bytes: int,
    min_units: int,
) -> list[Unit]:
    """Cut queues, as far as their positions are in a span, into units of about `max_bytes` of
    records, or less for `min_units`.

    Where units are cut depends on nothing but the snapshot, the spans and the two numbers. Raises
    `SnapshotGone`, OSError.
    """
    found = [find_rows(snapshot.files_of(queue), queue, span) for queue, span in spans]
    chosen = [at for at in found if at.end > at.first]
    lengths = [
        snapshot.files_of(at.queue).load_entries(at.queue.queue_id)["length"] for at in chosen
    ]
    sums = [
        np.cumsum(column[at.first : at.end], dtype=np.uint64)
        for at, column in zip(chosen, lengths, strict=True)
    ]
    total = sum(int(octets[-1]) for octets in sums)
    size = max(1, min(max_bytes, -(-total // max(min_units, 1))))
    units = []
    for at, octets in zip(chosen, sums, strict=True):
        for first, end in _cuts(octets, size):
            before = int(octets[first - 1]) if first else 0
            units.append(
                Unit(
                    files=snapshot.files_of(at.queue),
                    vhost=at.queue.vhost,
                    queue=at.queue.name,
                    queue_id=at.queue.queue_id,
                    first=at.first + first,
                    end=at.first + end,
                    octets=int(octets[end - 1]) - before,
                    retained=at.queue.retained,
                )
            )
    return units


def group_units(units: Iterable[Unit], *, max_bytes: int, min_groups: int) -> list[list[Unit]]:
    """Put units together, in their order, to groups of about `max_bytes`, or less for `min_groups`.

    Thousands of small queues become some dozens of groups.
    """
    waiting = list(units)
    total = sum(unit.octets + UNIT_COST_BYTES for unit in waiting)
    size = min(max_bytes, -(-total // max(min_groups, 1)))
    groups: list[list[Unit]] = []
    room = 0
    for unit in waiting:
        cost = unit.octets + UNIT_COST_BYTES
        if cost > room or not groups:
            groups.append([])
            room = size
        groups[-1].append(unit)
        room -= cost
    return groups


def _cuts(
    octets: np.ndarray[tuple[int], np.dtype[np.uint64]], size: int
) -> Iterator[tuple[int, int]]:
    """Pieces of about that size, none empty; `octets` are sums up to and with each row."""
    first = 0
    while first < len(octets):
        before = int(octets[first - 1]) if first else 0
        end = int(np.searchsorted(octets, np.uint64(before + size), side="right"))
        end = max(end, first + 1)
        yield first, end
        first = end
