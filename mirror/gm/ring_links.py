"""A member's links to its two neighbours: which members it watches, what it accepts from the left.

The link from a left neighbour begins with its catchup. Two rules make sure that activity is
accepted only if it continues what was accepted before:

- *Position.* Activity must have the position after that of the last frame accepted. When a
  connection broke and frames were lost, no activity fits until another catchup has come.
- *Version.* A member may become the left neighbour a second time while its frames of the first time
  are still on their way. Their versions are at most the last one in which it was not the left
  neighbour (`catchup_above`), so only catchups of later versions are accepted.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.effects import Demonitor, Effect, Monitor
from warren.mirror.gm.messages import NONE, Activity, Catchup
from warren.mirror.gm.view import View


class Relinked(NamedTuple):
    """Which neighbours have changed."""

    left: bool
    right: bool


class RingLinks:
    """`catchup_version` is that of the last catchup sent to the present right neighbour.

    While this member waits for a catchup, catchups up to the version `wanted_above` do not count:
    the left neighbour sends another one if the last it sent is not above that version.
    """

    def __init__(self, me: MemberId, effects: list[Effect]) -> None:
        self._me = me
        self._effects = effects
        self._watched: set[MemberId] = set()
        self.position = NONE
        self.catchup_version = NONE
        self.catchup_above = NONE
        self.wanted_above = NONE
        self._expected: int | None = None
        self.suspects: set[MemberId] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether only a catchup is accepted from the left neighbour."""
        return self._expected is None

    def watch(self, members: set[MemberId]) -> None:
        """Monitor these members only. A suspect that is still watched stays a suspect."""
        for member in sorted(self._watched - members):
            self._effects.append(Demonitor(member))
        for member in sorted(members - self._watched):
            self._effects.append(Monitor(member))
        self._watched = members
        self.suspects &= members

    def suspect(self, member: MemberId) -> bool:
        """Note that the member is down; False if it is not watched, or is a suspect already."""
        if member not in self._watched or member in self.suspects:
            return False
        self.suspects.add(member)
        return True

    def relink(self, old: View, new: View) -> Relinked:
        self.watch({new.left, new.right} - {self._me})
        relinked = Relinked(old.left != new.left, old.right != new.right)
        if relinked.left:
            self.catchup_above = self.wanted_above = old.version
            self._expected = None
        if relinked.right:
            self.catchup_version = NONE
        return relinked

    def next_position(self) -> int:
        self.position += 1
        return self.position

    # Frames from the left neighbour

    def begin(self, catchup: Catchup) -> bool:
        """Whether the catchup begins the present link; False if it is left from an earlier link."""
        if catchup.version <= self.catchup_above:
            return False
        self._expected = catchup.position + 1
        return True

    def continues(self, activity: Activity) -> bool:
        """Whether nothing is missing before the activity."""
        if activity.position != self._expected:
            self._expected = None
            self.wanted_above = activity.version
            return False
        self._expected += 1
        return True
