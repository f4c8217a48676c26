"""Messages that a node still has of a queue from the last time it had a copy, or led it.

A mirror that comes back need not be sent what it has. It says which positions it has, of which
epoch; the leader, which knows what has become of these (`renumbering.py`), names the messages that
are still in the queue, and the mirror takes them from here into its new copy. When that is whole,
the former copy is dropped, with the messages that were not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.stream_log import StreamLog
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Message
from warren.core.queues.quorum_level import QuorumLevel
from warren.mirror.replication.levels.holes import Hole
from warren.mirror.replication.levels.mirror_level import CopyLost
from warren.mirror.replication.levels.renumbering import NO_LIMIT, LeaderChange, Renumbering

TAKE_BYTES = 1 << 20
"""Octets that are read at once."""

KEEP_COUNT = 1024
"""How many messages a mirror takes from its former copy at a time: some milliseconds of work."""

KEEP_IN_PLACE = 8192
"""How many messages a mirror looks for at a time that are in its copy already."""

NEVER = -1
"""Before every epoch."""

EMPTY = 0
"""The end of a copy without messages. All others end later: no leader's position is below 0."""


class Kept(NamedTuple):
    """The messages that a node says it has of a queue: in each level the positions [start, end) of
    an epoch.

    `safe_only`: it has only messages that outlive a restart of the node. `in_place`: they stay
    where they are, as the beginning of the new copy.
    """

    epoch: int
    ranges: Sequence[Sequence[int]]
    safe_only: bool
    in_place: bool = False

    @property
    def at_a_time(self) -> int:
        """How many messages may be named at a time."""
        return KEEP_IN_PLACE if self.in_place else KEEP_COUNT

    def plain(self) -> Sequence[Any]:
        """Return the values to send: if the copy does not stay in place, in the form that an
        earlier version expects."""
        return self if self.in_place else self[:-1]


Runs = Sequence[tuple[int, int]]
"""Runs of positions: the first one of each, and the end behind its last."""


class Tail(NamedTuple):
    """A leader's knowledge of those of its messages that some mirror may not have got.

    `unasked`, per level, are messages that will not be sent again, as their publishers wait for no
    confirm. `has_confirmed`: some of the others were confirmed, and will not be sent again either.
    """

    unasked: Sequence[Runs]
    has_confirmed: bool


class FormerCopy:
    """`levels` have positions that differ by `deltas` from those the leader had in `epoch`, and
    `renumbering` is what is known of the epochs before.

    A copy that `led` the queue may have messages that no other has, and stays until it has been
    searched for them. So may any copy when a mirror leads that was not whole. `tail` is None where
    it is not known, as after a restart.
    """

    def __init__(
        self,
        storage_id: int,
        epoch: int,
        levels: Sequence[MirroredLevel],
        deltas: Sequence[int],
        *,
        safe_only: bool,
        led: bool = False,
        tail: Tail | None = None,
        renumbering: Renumbering | None = None,
    ) -> None:
        self.storage_id = storage_id
        self.epoch = epoch
        self.levels = levels
        self.led = led
        self.to_be_searched = led
        # The epoch of the leader for which it was searched the last time.
        self.searched_in = NEVER
        self.is_wanted = True
        # Whether the disk was found damaged, so that the copy may lack messages.
        self.is_damaged = False
        # Whether the copy was found to have other messages than the leader at the same positions.
        self.is_outgrown = False
        self._tail = tail
        self._deltas = deltas
        self.safe_only = safe_only
        self._renumbering = renumbering

    @property
    def deltas(self) -> Sequence[int]:
        return self._deltas

    @property
    def renumbering(self) -> Renumbering | None:
        return self._renumbering

    @property
    def messages(self) -> int:
        return sum([level.length for level in self.levels])

    @property
    def can_grow(self) -> bool:
        """Whether the next copy can go on where this one ends, without being made anew. Only the
        copy of a stream can, as its messages have their positions for good."""
        is_stream = all([isinstance(level, StreamLog) for level in self.levels])
        return is_stream and not (self.to_be_searched or self.is_outgrown or any(self._deltas))

    def kept(self) -> Kept:
        ranges = []
        for level, delta in zip(self.levels, self._deltas, strict=True):
            start, end = _extent(level)
            ranges.append((start - delta, end - delta))
        return Kept(self.epoch, ranges, self.safe_only, self.can_grow)

    def ends(self) -> list[int | None]:
        """The end behind the last message of each level, in positions here; None for a level
        without messages, as it is not known how far it reached."""
        extents = [_extent(level) for level in self.levels]
        return [end if start < end else None for start, end in extents]

    def ends_at_leader(self) -> list[int]:
        """The same in the positions of the leader; `EMPTY` for a level without messages."""
        ends = zip(self.ends(), self._deltas, strict=True)
        return [EMPTY if end is None else end - delta for end, delta in ends]

    def has_behind(self, ends: Sequence[int]) -> bool:
        """Whether a level has messages from its end on, in the positions of the leader."""
        levels = zip(self.levels, ends, self._deltas, strict=False)
        return any(_first_from(level, end + delta) is not None for level, end, delta in levels)

    def take(self, level: int, start: int, count: int) -> list[Message]:
        """Messages by their positions in the former epoch. Raises `CopyLost` if one is gone."""
        at = start + self._deltas[level]
        messages: list[Message] = []
        while len(messages) < count:
            peeked = self.levels[level].peek(at, count - len(messages), TAKE_BYTES).messages
            for message in peeked:
                if message.position != at:
                    break
                messages.append(message)
                at += 1
            if not peeked or peeked[-1].position != at - 1:
                raise CopyLost(f"there is nothing any more at {at}")
        return messages

    def arrived_at(self, level: int, position: int) -> float | None:
        """When a message of a stream arrived, by its position here, in seconds since 1970; None if
        it is not known."""
        log = self.levels[level]
        return log.arrived_at(position) if isinstance(log, StreamLog) else None

    def epochs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the epochs from which this copy can be compared, the last one first, and by how
        much the positions of each level have moved since. Today's leader may know one of them."""
        levels = len(self.levels)
        yield self.epoch, [0] * levels
        known = self._renumbering.earlier(levels) if self._renumbering is not None else ()
        yield from (one for one in known if one[0] < self.epoch)

    def only_here(
        self,
        step: LeaderChange,
        level: int,
        *,
        moved: int = 0,
        found_upto: int | None = None,
        upto: int = NO_LIMIT,
    ) -> list[tuple[int, int]]:
        """The positions here of messages that the leader which began with this step never got.

        The step follows an epoch since which positions have `moved` to those of this copy's epoch.
        In the positions of that leader, other nodes have found everything up to `found_upto`, and
        messages before `upto` count, also in the tail: behind the last one that this leader got.
        What is in the holes of the leader counts, too.

        Without a limit, messages of the tail that will be sent again are left out. If these are not
        known and that leader was in sync, the whole tail is left out, as it may have no other
        messages. If it was not in sync and may lack confirmed ones, all of the tail counts.

        Messages of the tail that are known, and will not be sent again, count behind the limit too.
        """
        delta, beyond = self._deltas[level], self.levels[level].next_position
        there = delta + moved - step.shifts[level]
        tail = min(step.tails[level] + there, beyond)
        runs: list[tuple[int, int]] = []
        start = 0 if found_upto is None else max(found_upto + there, 0)
        if step.firsts:
            runs.append((start, min(step.firsts[level] + there, tail)))
        for hole in [Hole(*hole) for hole in step.holes]:
            if hole.level == level:
                until = min(hole.end, upto) + there
                runs.append((max(start, hole.start + there), min(until, tail)))
        known = self._tail
        if upto != NO_LIMIT:
            runs.append((max(start, tail), min(upto + there, beyond)))
        elif step.firsts and (known is None or known.has_confirmed):
            runs.append((max(start, tail), beyond))
        if known is not None:
            runs += [(max(start + delta, tail), end + delta) for start, end in known.unasked[level]]
        return _joined(runs)

    def end_at(self, step: LeaderChange, level: int, *, moved: int, upto: int) -> int:
        """The end behind the last message that `only_here` looks at, in that leader's positions.
        `EMPTY` if another copy may have messages before that: this one is damaged, or was empty
        before they came."""
        there = self._deltas[level] + moved - step.shifts[level]
        start, end = _extent(self.levels[level])
        if self.is_damaged or start == end:
            return EMPTY
        return min(end - there, upto)

    @property
    def may_have_more(self) -> bool:
        """Whether this copy may have messages that are found nowhere else."""
        known = self._tail
        return self.messages > 0 and (known is None or known.has_confirmed or any(known.unasked))

    def part_from_holders(self) -> None:
        """Part the messages from those that clients got while this node led the queue before."""
        for level in self.levels:
            if isinstance(level, QuorumLevel | VariableQueue | MemoryQueue):
                level.part_from_holders()

    def stop(self) -> None:
        """The node stops; the copy is for its next start."""
        for level in self.levels:
            level.stop()

    def delete(self) -> None:
        for level in self.levels:
            level.delete()


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in as few runs as possible, in their order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(run for run in runs if run[0] < run[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _extent(level: MirroredLevel) -> tuple[int, int]:
    """Return the position of the first message, and the end behind the last.

    Behind the last there may be positions that were never used: a storage that is opened again
    leaves a gap.
    """
    start = _first_from(level, 0)
    if start is None:
        return level.next_position, level.next_position
    last, beyond = start, level.next_position
    while last + 1 < beyond:
        middle = (last + beyond) // 2
        found = _first_from(level, middle)
        if found is None:
            beyond = middle
        else:
            last = found
    return start, last + 1


def _first_from(level: MirroredLevel, start: int) -> int | None:
    while start < level.next_position:
        listed = level.list_positions(start, level.next_position, 1)
        if listed.positions:
            return listed.positions[0]
        start = listed.next_position
    return None
