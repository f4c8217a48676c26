"""What a node still has of a queue from the last time it had a copy, or led it.

A mirror that comes back need not be sent what it has. It says which positions it has, of which
epoch; the leader, which knows what has become of these (`renumbering.py`), names the messages that
are still in the queue, and the mirror takes them from here into its new copy. What is not named
goes with the rest when the new copy is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.messages.message import Message
from warren.mirror.replication.mirror_level import CopyLost
from warren.mirror.replication.renumbering import Renumbering, Step

TAKE_BYTES = 1 << 20
"""What is read at once."""


class Kept(NamedTuple):
    """What of a queue a node says it has: in each level what is in [start, end), of an epoch.

    `safe_only`: only messages that outlive a restart of the node.
    """

    epoch: int
    ranges: Sequence[Sequence[int]]
    safe_only: bool


Runs = Sequence[tuple[int, int]]
"""First positions, and ends behind the last."""


class Tail(NamedTuple):
    """What a leader knew of those of its messages that some mirror may not have got.

    `unasked`, a level each, are those that nobody sends again: nobody waits for their confirms.
    With `has_confirmed` there are some among the others that were confirmed, and are not sent again
    either.
    """

    unasked: Sequence[Runs]
    has_confirmed: bool


class FormerCopy:
    """`levels` have positions that differ by `deltas` from those the leader had in `epoch`, and
    `renumbering` is what is known of epochs before.

    A copy that `led` the queue may have what no other has, and stays until it was searched for
    that. `tail` is None where nobody knows, as after a restart.
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
        self.is_wanted = True
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

    def kept(self) -> Kept:
        ranges = []
        for level, delta in zip(self.levels, self._deltas, strict=True):
            start, end = _extent(level)
            ranges.append((start - delta, end - delta))
        return Kept(self.epoch, ranges, self.safe_only)

    def ends(self) -> list[int | None]:
        """Behind the last message of each level, in positions here; None where there is none, and
        nobody can say up to where there were any."""
        extents = [_extent(level) for level in self.levels]
        return [end if start < end else None for start, end in extents]

    def take(self, level: int, start: int, count: int) -> list[Message]:
        """The messages with so many positions, of the former epoch. Raises `CopyLost`."""
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

    def epochs(self) -> Iterator[tuple[int, list[int]]]:
        """The epochs this copy can be compared from, the last one first, and by how much positions
        have moved since in each level. Today's leader may know one of them."""
        levels = len(self.levels)
        yield self.epoch, [0] * levels
        known = self._renumbering.earlier(levels) if self._renumbering is not None else ()
        yield from (one for one in known if one[0] < self.epoch)

    def only_here(
        self,
        step: Step,
        level: int,
        *,
        moved: int = 0,
        found_upto: int | None = None,
        with_tail: bool = True,
    ) -> list[tuple[int, int]]:
        """Which positions the leader who went on with this step never got.

        The step is one from an epoch since which positions have `moved`. Up to `found_upto`, in the
        positions of that leader, others have found everything; `with_tail`: what came after the
        last message that leader got counts.

        Without messages that somebody sends again. Where nobody knows which these are,
        and the next leader was in sync, there may be none but these, and none are told. One that
        was not may lack confirmed ones, and then all are told.
        """
        delta, beyond = self._deltas[level], self.levels[level].next_position
        there = delta + moved - step.shifts[level]
        tail = min(step.tails[level] + there, beyond)
        runs: list[tuple[int, int]] = []
        start = 0 if found_upto is None else max(found_upto + there, 0)
        if step.firsts:
            runs.append((start, min(step.firsts[level] + there, tail)))
        if not with_tail:
            return _joined(runs)
        known = self._tail
        if step.firsts and (known is None or known.has_confirmed):
            runs.append((max(start, tail), beyond))
        elif known is not None:
            runs += [(max(start + delta, tail), end + delta) for start, end in known.unasked[level]]
        return _joined(runs)

    def end_at(self, step: Step, level: int, *, moved: int, with_tail: bool) -> int:
        """Behind the last message that `only_here` looks at, in the positions of that leader."""
        there = self._deltas[level] + moved - step.shifts[level]
        end = _extent(self.levels[level])[1] - there
        return end if with_tail else min(end, step.tails[level])

    @property
    def may_have_more(self) -> bool:
        """Whether there may be anything at all."""
        known = self._tail
        return self.messages > 0 and (known is None or known.has_confirmed or any(known.unasked))

    def stop(self) -> None:
        """The node stops; the copy is for its next start."""
        for level in self.levels:
            level.stop()

    def delete(self) -> None:
        for level in self.levels:
            level.delete()


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if start >= end:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _extent(level: MirroredLevel) -> tuple[int, int]:
    """Where the first message is, and the end behind the last.

    Positions that were never used may follow: a storage that is opened again leaves a gap.
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
