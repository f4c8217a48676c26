"""How a member gets into the ring.

A joiner reads the record as its node knows it. If no member is in it, the joiner makes a group of
itself alone, and there is nothing to learn. Otherwise it asks one of the members, which puts it to
its own right and sends it all it knows. The joiner begins with that catchup; it delivers none of
the messages in it.

The member that makes a group may put others into it that have been started and wait for it. These
*founders* are members from the first version on. They begin with nothing, as their group did. What
was sent before they heard of the group they get from their left neighbours, like any late member.

If the member that let the joiner in dies before its catchup has arrived, part of its knowledge may
be left only at its former right neighbour. So the joiner does not begin with the knowledge of
another member: it stops (`JOIN_LOST`), both count as dead, and it joins again under a new id.
"""

from __future__ import annotations

from functools import partial

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, StopReason
from warren.mirror.gm.base import JOINED, JOINING
from warren.mirror.gm.effects import Joined
from warren.mirror.gm.messages import ANY, AddOnRight, Catchup, NotReady
from warren.mirror.gm.ring import RingMember
from warren.mirror.gm.view import (
    View,
    alive_members,
    between,
    is_alive,
    is_known,
    view_of,
    with_only,
)


class JoiningMember(RingMember):
    def _choose(self, record: GroupRecord | None) -> None:
        """Make the group, or ask one of its members to be let in.

        A member that this node cannot reach is not declared dead as long as another can be reached:
        the neighbours know better.
        """
        self.record = record
        if self._awaits_group and record is None:
            return
        self._awaits_group = False
        present = [member for member in alive_members(record) if member not in self._unreachable]
        if record is not None and alive_members(record) == (self.me,):
            self._enter_alone(record)
        elif is_alive(record, self.me) and not self._has_asked:
            assert record is not None
            self._enter_as_founder(record)
        elif is_known(record, self.me):
            # The member that let this one in has died, and perhaps some of its knowledge is lost.
            self._stop(StopReason.JOIN_LOST)
        elif not present:
            found = partial(
                with_only, member=self.me, lost=self._unreachable, founders=self._founders
            )
            self._access.change(record, found, self._choose)
        else:
            self._has_asked = True
            self._asked = self._rng.choice(present)
            self._links.watch({self._asked})
            version = 0 if record is None else record.version
            self._send(self._asked, AddOnRight(self.epoch, version))

    def _choose_again(self) -> None:
        if self.phase is JOINING and self._asked is None:
            self._access.read(self._choose)

    def _await_no_longer(self) -> None:
        """Make or join the group without waiting: the member that was to make it may have died."""
        if self._awaits_group and self.phase is JOINING:
            self._awaits_group = False
            self._access.read(self._choose)

    def _follow_hint(self, version: int) -> None:
        if self._awaits_group and self.phase is JOINING and version:
            self._access.read(self._choose, version)
        else:
            super()._follow_hint(version)

    def _enter_as_founder(self, record: GroupRecord) -> None:
        """Enter with nothing, as a member since the group was made. The left neighbour has what was
        sent since then, and is asked for it."""
        self.phase = JOINED
        self._effects.append(Joined(view_of(record, self.me).members))
        self._see(View(0, self.me, self.me, frozenset(), (self.me,)), record, tell=False)
        self._ask_for_catchup()

    def _ask_for_catchup(self) -> None:
        """Ask the left neighbour for its catchup, if that is awaited: it may have come, and been
        ignored, before this member had joined."""
        if self._links.is_waiting and not self._is_alone:
            self._links.wanted_above = ANY
            self._check_neighbours({self._view.left})

    def _enter_alone(self, record: GroupRecord) -> None:
        """Begin with nothing, as the only member alive in the group."""
        self.phase = JOINED
        self._view = view_of(record, self.me)
        self._owned = self._view.aliases | {self.me}
        self._circulation.keep(self._view.members)
        self._effects.append(Joined(self._view.members))

    def _not_ready(self, sender: MemberId, message: NotReady) -> None:
        if sender == self._asked:
            # A member was reached, so this one must not replace the group: only a joiner that
            # reaches no member may.
            self._unreachable.clear()
            self._asked = None
            self._links.watch(set())
            self._set_timer(self._choose_again, self._retry_delay())

    def _first_catchup(self, sender: MemberId, message: Catchup) -> None:
        if self._awaits_group:
            self._access.read(self._choose, self._version_told)
        elif self._is_answer(sender, message):
            # The record read is of no earlier version than any message ignored meanwhile, such as
            # the catchup of another left neighbour.
            self._access.read(partial(self._enter, sender, message), self._version_told)

    def _is_answer(self, sender: MemberId, catchup: Catchup) -> bool:
        """Whether the catchup is from the member that was asked, and later than the question.

        An earlier catchup is from a time when this member had been let in, declared dead and
        erased without knowing of it.
        """
        asked_in = 0 if self.record is None else self.record.version
        return sender == self._asked and catchup.version > asked_in

    def _enter(self, left: MemberId, catchup: Catchup, record: GroupRecord | None) -> None:
        """Begin with the catchup of the member that let this one in."""
        if not self._was_let_in_by(left, record):
            self._stop(StopReason.JOIN_LOST)
            return
        assert record is not None
        self._check_version(record, catchup)
        self.phase = JOINED
        self.record = record
        self._asked = None
        # In the version of the catchup, its sender was the left neighbour.
        then = View(catchup.version - 1, self.me, self.me, frozenset(), ())
        now = View(catchup.version, left, self.me, frozenset(), ())
        self._links.relink(then, now)
        self._links.begin(catchup)
        self._circulation.load(catchup.known)
        self._effects.append(Joined(view_of(record, self.me).members))
        self._see(now, record, tell=False)
        self._ask_for_catchup()

    def _was_let_in_by(self, left: MemberId, record: GroupRecord | None) -> bool:
        """Whether `left` let this member in: all members between the two came after the question.

        Another member, which this one had given up asking, may have let it in. When that member
        died, its left neighbour became the left neighbour of this member, and sent a catchup.
        """
        if record is None or not is_alive(record, self.me) or not is_known(record, left):
            return False
        return not any(is_known(self.record, other) for other in between(record, left, self.me))

    def _give_up_asking(self, peer: MemberId) -> None:
        self._asked = None
        self._links.watch(set())
        self._unreachable.add(peer)
        self._access.read(self._choose)
