"""A member in the ring: its view, its neighbours, and the messages from the left neighbour.

Views come from records, and records from the store only. A member tries to change the record as
long as the record names it; then it acts on the record as it is, whichever member changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, StopReason
from warren.mirror.gm.base import DRAINING, JOINED, STOPPED, MemberBase
from warren.mirror.gm.circulation import ActivityEffects
from warren.mirror.gm.effects import Deliver, MembersChanged
from warren.mirror.gm.errors import Inconsistent
from warren.mirror.gm.messages import (
    NONE,
    Activity,
    AddOnRight,
    Catchup,
    CheckNeighbours,
    MemberNews,
    Message,
    NotReady,
)
from warren.mirror.gm.view import (
    View,
    alive_members,
    is_alive,
    view_of,
    with_dead,
    with_right_of,
    without,
)


class RingMember(MemberBase):
    # The view

    def _learn(self, record: GroupRecord | None) -> None:
        """Act on the record as it is now."""
        if record is None:
            self._stop(StopReason.GROUP_DELETED)
        elif not is_alive(record, self.me):
            self._stop(StopReason.LOST_MEMBERSHIP)
        elif record.version > self._view.version:
            self.record = record
            self._see(self._view, record)

    def _see(self, old: View, record: GroupRecord, *, tell: bool = True) -> None:
        new = view_of(record, self.me)
        self._view = new
        self._owned = new.aliases | {self.me}
        self._circulation.keep(new.members)
        if tell:
            self._tell_members(old.members)
        relinked = self._links.relink(old, new)
        if relinked.right and not self._is_alone:
            self._send_catchup()
        if relinked.right and new.right in self._links.suspects:
            # Until now `new.right` was the left neighbour, which is suspected for longer.
            self._set_timer(
                partial(self._suspicion_of_right_ends, new.right), self._limits.suspicion_s
            )
        self._all_live = len(alive_members(record)) == len(new.members)
        if self._is_alone:
            self._news_waiting.clear()
            self._confirm(self._circulation.settle_alone())
        # Neighbours hear of this version at once, not with the next message; above all a former
        # neighbour that was declared dead though it lives.
        told = {new.left, old.left, old.right} | (set() if relinked.right else {new.right})
        self._check_neighbours(told - {self.me})

    def _tell_members(self, before: tuple[MemberId, ...]) -> None:
        births = tuple(member for member in self._view.members if member not in before)
        deaths = tuple(member for member in before if member not in self._view.members)
        if births or deaths:
            self._effects.append(MembersChanged(births, deaths))

    def _check_neighbours(self, neighbours: set[MemberId]) -> None:
        for neighbour in sorted(neighbours):
            waits = neighbour == self._view.left and self._links.is_waiting
            above = self._links.wanted_above if waits else NONE
            self._send(neighbour, CheckNeighbours(self.epoch, self._view.version, above))

    def _follow_hint(self, version: int) -> None:
        if self.phase in (JOINED, DRAINING) and (version == 0 or version > self._view.version):
            self._access.read(self._learn, version or None)

    def _change(self, change: Callable[[GroupRecord], GroupRecord]) -> None:
        """Change the record if this member is alive in it, then act on the record as it is."""
        self._access.change(self.record, partial(self._change_as_member, change), self._learn)

    def _change_as_member(
        self, change: Callable[[GroupRecord], GroupRecord], record: GroupRecord
    ) -> GroupRecord:
        return change(record) if is_alive(record, self.me) else record

    def _erase_settled(self) -> bool:
        """Take the aliases whose last messages have gone round out of the record; False if none."""
        if self._view.aliases and self.phase in (JOINED, DRAINING):
            settled = self._circulation.settled(self._view.aliases)
            if settled:
                self._change(partial(without, erased=settled))
                return True
        return False

    def _suspicion_of_right_ends(self, neighbour: MemberId) -> None:
        if neighbour in self._links.suspects and neighbour == self._view.right:
            self._declare_dead(neighbour)

    def _declare_dead(self, neighbour: MemberId) -> None:
        self._change(partial(with_dead, dead=neighbour))

    def _check_version(self, record: GroupRecord, message: Message) -> None:
        if record.version < message.version:
            raise Inconsistent(f"told of version {message.version}, the store has {record.version}")

    # Joiners

    def _let_in(self, sender: MemberId, message: AddOnRight) -> None:
        if message.epoch > self.epoch:
            # The joiner would ignore a catchup of this member's epoch.
            self._refuse(sender, message)
            return
        change = partial(self._change_as_member, partial(with_right_of, left=self.me, new=sender))
        self._access.change(self.record, change, partial(self._welcome, sender, message))

    def _welcome(self, sender: MemberId, message: AddOnRight, record: GroupRecord | None) -> None:
        """Act on the record: if the joiner is now the right neighbour, it is sent a catchup."""
        self._learn(record)
        if self.phase is not STOPPED and self._view.right != sender:
            # Another member that it asked before has let it in, or it was declared dead meanwhile.
            self._refuse(sender, message)

    def _refuse(self, sender: MemberId, message: AddOnRight) -> None:
        self._send(sender, NotReady(self.epoch, self._view.version))

    # Messages from neighbours

    def _answer_neighbour(self, sender: MemberId, message: CheckNeighbours) -> None:
        if sender == self._view.right and self._links.catchup_version <= message.catchup_above:
            self._send_catchup()

    def _catch_up(self, sender: MemberId, message: Catchup) -> None:
        if sender != self._view.left:
            self.ignored.not_left += 1
        elif not self._links.begin(message):
            self.ignored.earlier_link += 1
        else:
            self._progress(self._circulation.catch_up(message.known, self._owned))

    def _pass_on(self, sender: MemberId, message: Activity) -> None:
        if sender != self._view.left:
            self.ignored.not_left += 1
        elif self._links.is_waiting:
            self.ignored.earlier_link += 1
        elif not self._links.continues(message):
            self.ignored.gap += 1
            self._check_neighbours({sender})
        else:
            self._progress(self._circulation.receive(message.entries, self._owned))

    def _may_wait(self, entries: Iterable[MemberNews]) -> bool:
        """Whether these entries only free memory, so that they may wait: acks, and news for the
        right neighbour that its own publishes have come round. A member that stops needs them at
        once, and so does the heir of a dead member."""
        if self.phase is not JOINED or not self._all_live:
            return False
        if any([entry.pubs and entry.member != self._view.right for entry in entries]):
            return False
        return self._circulation.held_bytes <= self._limits.news_wait_bytes

    def _have_wait(self, entries: Iterable[MemberNews]) -> None:
        """Pass these entries on with the next publish, or after `news_wait_s`."""
        waiting = self._news_waiting
        for entry in entries:
            entry = entry.without_payloads()
            before = waiting.get(entry.member)
            waiting[entry.member] = entry if before is None else before.followed_by(entry)
        if not self._news_timer_is_set:
            self._news_timer_is_set = True
            self._set_timer(self._news_waits_no_longer, self._limits.news_wait_s)

    def _news_waits_no_longer(self) -> None:
        self._news_timer_is_set = False
        if self._news_waiting and self.phase in (JOINED, DRAINING):
            self._send_activity(())

    def _progress(self, progress: ActivityEffects) -> None:
        """Pass messages on before delivering them: they survive a member that dies delivering."""
        if progress.entries:
            if self._may_wait(progress.entries):
                self._have_wait(progress.entries)
            else:
                self._send_activity(progress.entries)
        self._confirm(progress.confirmed)
        for entry in progress.deliveries:
            for payload in entry.pubs:
                self._effects.append(Deliver(entry.member, payload))
