"""Selects the rows of a store to read, and cuts them into units of work.

Everything here is about positions, which are in the entries of a snapshot. The time at which a
message was enqueued is only in its record, and a clock may be set back, so no cut by position is
sure to keep every message of a time. Therefore `plan_units` leaves times to the decoder of the
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

import numpy as np

from warren.core.exchanges.delay import exchange_behind
from warren.core.patterns.matcher import TooSlow
from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.ports import Key
from warren.spark_export.errors import OptionRefused, QueueUnknown
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.unit import SnapshotFiles, Unit

if TYPE_CHECKING:
    from warren.spark_export.snapshot.options import Offsets
    from warren.spark_export.snapshot.snapshot_file import PinnedQueue, PinnedStore

NEAR_NAMES_MAX = 3

UNIT_COST_BYTES = 1 << 20
"""The fixed cost of a unit in octets of records, for comparison: about 2 ms."""


class ChoosesQueues(Protocol):
    """Chooses the queues of a store for a snapshot; `vhost` if all are in one."""

    @property
    def vhost(self) -> str | None: ...

    @property
    def retained(self) -> bool:
        """Whether acknowledged messages that queues have retained are wanted, too."""
        ...

    def select(self, queues: Iterable[Key], vhosts: Iterable[str] = ()) -> list[Key]: ...


@dataclass(frozen=True)
class QueueSelector:
    """A choice of durable queues: all, or those of a virtual host, by names or by a pattern.

    The pattern is a regular expression as in policies, and has to match the whole name. A queue in
    which delayed messages wait is chosen by its name only: each of these messages will be in other
    queues when its delay is over, and would be read twice.
    `retained`: acknowledged messages that queues have retained are wanted, too. `missing_ok`: a
    virtual host or a queue that is named and does not exist is left out, and no error.
    """

    vhost: str | None = None
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    retained: bool = False
    missing_ok: bool = False

    def __post_init__(self) -> None:
        if self.names is not None and self.pattern is not None:
            raise OptionRefused("names of queues and a pattern exclude each other")

    def select(self, queues: Iterable[Key], vhosts: Iterable[str] = ()) -> list[Key]:
        """The chosen ones of these queues, each (virtual host, name), in order.

        A virtual host without queues must be among `vhosts`. Raises `QueueUnknown` for a name that
        does not exist, `OptionRefused` for a pattern that cannot be parsed.
        """
        known = sorted(queues)
        inside = [key for key in known if self.vhost is None or key[0] == self.vhost]
        if not self.missing_ok:
            self._check(known, inside, vhosts)
        if self.names is not None:
            return [key for key in inside if key[1] in self.names]
        inside = [key for key in inside if exchange_behind(key[1]) is None]
        return inside if self.pattern is None else _matching(self.pattern, inside)

    def _check(self, known: list[Key], inside: list[Key], vhosts: Iterable[str]) -> None:
        """Raise `QueueUnknown` if the virtual host or a queue that is named does not exist."""
        if self.vhost is not None and not inside and self.vhost not in vhosts:
            raise QueueUnknown(f"there is no virtual host {self.vhost!r}")
        for name in self.names or ():
            if not any(key[1] == name for key in inside):
                raise QueueUnknown(self._unknown(name, known, inside))

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


def _matching(pattern: str, queues: list[Key]) -> list[Key]:
    """Choose the queues whose names match the pattern from beginning to end.

    It is searched within bounds, like that of a policy: a node does this for its users, one after
    the other. Raises `OptionRefused`.
    """
    try:
        compile_pattern(pattern)
        whole_name = compile_pattern(rf"\A(?:{pattern})\z", strict=True)
        return [key for key in queues if whole_name.search(key[1])]
    except InvalidPattern as error:
        raise OptionRefused(f"pattern {pattern!r}: {error.reason}") from None
    except TooSlow:
        raise OptionRefused(
            f"pattern {pattern!r}: it takes too long; write a plainer one"
        ) from None


def select_queues(
    snapshot: PinnedStore, selector: QueueSelector, *, taken_for_it: bool
) -> list[PinnedQueue]:
    """The chosen queues of a snapshot: one taken for another selector may have more than these.

    A virtual host without queues is not in a snapshot; `taken_for_it`: it was checked when the
    snapshot was taken. Raises `QueueUnknown`, `OptionRefused`.
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
    """Raise `OptionRefused` if the offsets name a queue that is not among these."""
    read = {(queue.vhost, queue.name) for queue in queues}
    for (vhost, queue), _ in offsets.queues:
        if (vhost, queue) not in read:
            raise OptionRefused(
                f"option {option} names queue {queue!r} in virtual host {vhost!r}, "
                "which is not among those that are read"
            )


@dataclass(frozen=True)
class PinnedRows:
    """Rows [`first`, `end`) of the entries of a pinned queue."""

    queue: PinnedQueue
    first: int
    end: int


def find_rows(files: SnapshotFiles, queue: PinnedQueue, span: Interval) -> PinnedRows:
    """The rows of a queue whose positions are in the span. Raises `SnapshotGone`, OSError."""
    if not queue.rows or span == Interval():
        return PinnedRows(queue, 0, queue.rows)
    positions = files.load_entries(queue.queue_id)["position"]
    first, end = 0, queue.rows
    if span.start is not None:
        first = int(np.searchsorted(positions, np.uint64(max(span.start, 0))))
    if span.end is not None:
        end = int(np.searchsorted(positions, np.uint64(max(span.end, 0))))
    return PinnedRows(queue, first, max(first, end))


def plan_units(
    snapshot: PinnedStore,
    spans: Iterable[tuple[PinnedQueue, Interval]],
    *,
    max_bytes: int,
    min_units: int,
) -> list[Unit]:
    """Cut the rows of queues in their spans into units of about `max_bytes` of records.

    Units are smaller if needed for `min_units` of them. The cuts depend only on the snapshot, the
    spans and the two numbers. Raises `SnapshotGone`, OSError.
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
    """Put units into groups of about `max_bytes`, in order; smaller if needed for `min_groups`.

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
    """Pieces of about this size, none empty; `octets` are the cumulative sums of the rows'
    octets."""
    first = 0
    while first < len(octets):
        before = int(octets[first - 1]) if first else 0
        end = int(np.searchsorted(octets, np.uint64(before + size), side="right"))
        end = max(end, first + 1)
        yield first, end
        first = end
