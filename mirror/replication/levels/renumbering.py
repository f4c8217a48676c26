"""How the positions of a mirrored queue have changed from leader to leader.

Messages of a queue are named by the positions they have at its leader. A mirror that takes the lead
goes on with its own positions; so with each epoch all positions of a level may move by some number.
A node that has a copy of an earlier epoch can be told which positions its messages have today, as
long as the leader knows of every step since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from warren.mirror.replication.levels.holes import Hole, not_too_many

STEPS_MAX = 32
"""How many steps are remembered: copies that were away for longer begin anew."""

PlainStep: TypeAlias = tuple[int | list[int | list[int]], ...]
"""A step in lists, for other nodes and for cards."""

OLDEST_FORM = 3
"""How many lists a step has at the least."""


class LeaderChange(NamedTuple):
    """A change of leader. Per level: how far positions moved, and where the new leader went on.

    The new leader never got what the former one had from `tails` on, in the new positions. If it
    was not in sync there are `firsts`, and it never got what is before these either. A leader that
    was away and leads on has 0 there: its disk may have lost its end, and nothing else. Of retained
    messages a new leader that was in sync has all but those between the two positions `retained`.
    The disk of the leader has nothing at its `holes` (`holes.py`), as it is damaged.
    """

    epoch: int
    shifts: Sequence[int]
    tails: Sequence[int]
    firsts: Sequence[int] = ()
    retained: Sequence[int] = ()
    holes: Sequence[Sequence[int]] = ()

    def plain(self) -> PlainStep:
        """The step in lists, for other nodes and for cards. Without values that earlier versions do
        not know, it has the form which it had then."""
        lists: list[list[int | list[int]]] = [[*self.shifts], [*self.tails], [*self.firsts]]
        lists += [[*self.retained], [[*hole] for hole in self.holes]]
        while len(lists) > OLDEST_FORM and not lists[-1]:
            lists.pop()
        return (self.epoch, *lists)

    @property
    def is_gap(self) -> bool:
        """Whether the leader may lack older messages than the last ones."""
        return any(self.firsts) or bool(self.holes)


class Gap(NamedTuple):
    """The `step` to a leader that may lack what a copy of an earlier epoch has.

    The leader that it followed had `reached` these positions, which are per level and in those of
    the step, of what is in that copy; empty if it led in the very epoch of the copy.
    """

    step: LeaderChange
    reached: Sequence[int]


class Since(NamedTuple):
    """The change of the positions of one level: they moved by `shift`.

    From `limit` on, in the old positions, they name something else today.
    """

    shift: int
    limit: int


NO_LIMIT = 1 << 62


class Renumbering:
    """The steps since `first_epoch`.

    Epochs may be missing: the leader of such an epoch had gone before the next one heard of it.
    Only that leader can say what the positions were then.
    """

    def __init__(self, first_epoch: int) -> None:
        self.first_epoch = first_epoch
        self.steps: list[LeaderChange] = []

    @classmethod
    def told(cls, first_epoch: int, steps: Sequence[Sequence[object]]) -> Renumbering:
        """The renumbering that another node has told, as its `plain` returned it."""
        renumbering = cls(first_epoch)
        renumbering.steps = [LeaderChange(*step) for step in steps]  # type: ignore[arg-type]
        return renumbering

    def plain(self) -> tuple[int, list[PlainStep]]:
        """The first epoch and the steps, for other nodes and for cards."""
        return self.first_epoch, [step.plain() for step in self.steps]

    def step(self, step: LeaderChange) -> None:
        self.steps.append(step)
        while len(self.steps) > STEPS_MAX:
            self.first_epoch = self.steps.pop(0).epoch

    @property
    def retained_since(self) -> int | None:
        """The position from which the leader before the last step retained; None if unknown."""
        if len(self.steps) > 1:
            before = self.steps[-2].retained
            return before[1] if before else None
        return None if self.first_epoch else 0

    def retains_anew(self, superseded: Sequence[int]) -> None:
        """Note that the leader of the last step retains messages at other positions from now on."""
        if self.steps:
            self.steps[-1] = self.steps[-1]._replace(retained=superseded)

    def note_holes(self, epoch: int, holes: Sequence[Hole]) -> bool:
        """Note that the leader of the last step, which began this epoch, lacks these messages, too.
        False if there is no such step."""
        if not self.steps or self.steps[-1].epoch != epoch:
            return False
        known = not_too_many({*(Hole(*hole) for hole in self.steps[-1].holes), *holes})
        self.steps[-1] = self.steps[-1]._replace(holes=known)
        return True

    @property
    def retained(self) -> list[Sequence[int]]:
        """The ranges of positions at which only a superseded leader had retained messages."""
        return [step.retained for step in self.steps if step.retained]

    @property
    def has_gaps(self) -> bool:
        """Whether a leader took over that was not in sync, or led on after it was away, or has lost
        messages."""
        return any(step.firsts or step.holes for step in self.steps)

    def up_to_gap(self, epoch: int) -> Gap | None:
        """All steps since that epoch, up to the first of a leader that was not in sync or lost
        messages, as one. If there is none, up to the first of a leader that was away. What the
        leaders after it lack of such a copy counts as holes.

        Only the next step if all leaders were in sync; None if the steps are not known.
        """
        if not self._is_known(epoch):
            return None
        steps = [step for step in self.steps if step.epoch > epoch]
        gaps = [number for number, step in enumerate(steps) if step.firsts or step.holes]
        gap = next((number for number in gaps if steps[number].is_gap), min(gaps, default=0))
        steps, later = steps[: gap + 1], steps[gap + 1 :]
        if not steps or len({len(step.shifts) for step in steps}) > 1:
            return None
        merged, reached = steps[0], list[int]()
        for step in steps[1:]:
            moved = [tail + shift for tail, shift in zip(merged.tails, step.shifts, strict=True)]
            reached = moved
            merged = LeaderChange(
                step.epoch,
                [one + other for one, other in zip(merged.shifts, step.shifts, strict=True)],
                [min(one, other) for one, other in zip(moved, step.tails, strict=True)],
                step.firsts,
                holes=step.holes,
            )
        if any(step.is_gap for step in later):
            merged = merged._replace(holes=_lacking_since(merged, later))
        return Gap(merged, reached)

    def earlier(self, levels: int) -> Iterator[tuple[int, list[int]]]:
        """The epochs that are known, the last one first, and how far positions have moved since."""
        shifts = [0] * levels
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            yield step.epoch, list(shifts)
            if len(step.shifts) != levels:
                return
            shifts = [one + other for one, other in zip(shifts, step.shifts, strict=True)]
        yield self.first_epoch, shifts

    def since(self, epoch: int, levels: int) -> list[Since] | None:
        """Return how the positions of that epoch have changed, per level; None if not known."""
        if not self._is_known(epoch):
            return None
        shifts, limits = [0] * levels, [NO_LIMIT] * levels
        for step in self.steps:
            if step.epoch <= epoch:
                continue
            if len(step.shifts) != levels:
                return None
            for level in range(levels):
                shifts[level] += step.shifts[level]
                limits[level] = min(limits[level], step.tails[level] - shifts[level])
        return [Since(*one) for one in zip(shifts, limits, strict=True)]

    def _is_known(self, epoch: int) -> bool:
        return epoch == self.first_epoch or any(step.epoch == epoch for step in self.steps)


def _lacking_since(step: LeaderChange, later: Iterable[LeaderChange]) -> Sequence[Hole]:
    """The holes of a leader, and what leaders after it lacked of the messages that it had or lacked
    itself, in its positions."""
    levels = range(len(step.shifts))
    holes = {Hole(*hole) for hole in step.holes}
    moved, ends = [0 for _ in levels], [*step.tails]
    for one in later:
        if len(one.shifts) != len(levels):
            break
        for level in levels:
            moved[level] += one.shifts[level]
            ends[level] = min(ends[level], one.tails[level] - moved[level])
        older = [Hole(level, 0, first) for level, first in enumerate(one.firsts)]
        for level, start, end in (*older, *one.holes):
            hole = Hole(level, start - moved[level], min(end - moved[level], ends[level]))
            if hole.start < hole.end:
                holes.add(hole)
    return not_too_many(holes)
