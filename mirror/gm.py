"""gm: one member of a group, whose members send each other messages that none of them misses.

Theory. Members stand in a ring (`view`). A message goes from neighbour to neighbour until it has
come round; every member keeps it until its ack has gone round too (`circulation`). When a member
dies, its neighbours link up, and the left one tells the right one all it knows (`catch_up`).
Who is in the ring is a record in the metadata store that changes by compare-and-set.

What is promised (G1 to G16 of the reference; `docs/gm.md` has all of it in words):

- messages of one sender arrive in order, without gaps, each exactly once;
- what any member got, all that stay alive get, unless all that have it die;
- a confirm means that every member of the ring holds the message;
- births are told before the newborn's first message, deaths after the last of the dead.

Not promised: an order between messages of different senders; anything about a message that was
only broadcast, not confirmed, when its sender dies.

Nothing is done here: methods are events, and each returns effects (`gm_effects`) to be carried out
in order, best by a `Handout`. Business with the record (`record_access`) takes its time; until its
answer, what arrives is queued, so that no message meets a half-known view. The version rule: what
was sent in a later version than this member's is processed after it has read the record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from random import Random
from typing import Any, NamedTuple

from warren.core.records import GroupRecord
from warren.mirror.circulation import Circulation, Progress
from warren.mirror.gm_effects import (
    Confirmed,
    Congestion,
    Deliver,
    Effect,
    EpochSeen,
    Joined,
    MembersChanged,
    Send,
    SetTimer,
    Stopped,
    StopReason,
)
from warren.mirror.gm_errors import Congested, Inconsistent, NotJoined, Stopping
from warren.mirror.gm_messages import (
    NONE,
    Activity,
    AddOnRight,
    Catchup,
    CheckNeighbours,
    Entry,
    Message,
    NotReady,
)
from warren.mirror.member_state import cost
from warren.mirror.record_access import RecordAccess
from warren.mirror.ring_links import RingLinks
from warren.mirror.view import (
    MemberId,
    View,
    alive_members,
    is_alive,
    is_known,
    view_of,
    with_dead,
    with_only,
    with_right_of,
    without,
)


class Phase(Enum):
    NEW = "new"
    JOINING = "joining"
    JOINED = "joined"
    DRAINING = "draining"
    """Joined, broadcasts nothing any more, stops when all has gone round."""
    STOPPED = "stopped"


NEW, JOINING, JOINED = Phase.NEW, Phase.JOINING, Phase.JOINED
DRAINING, STOPPED = Phase.DRAINING, Phase.STOPPED


class Limits(NamedTuple):
    """`held_bytes_max` bounds what is buffered and pending when this member broadcasts.

    Others' messages are accepted beyond it; they are bounded at their senders. From half of it on
    the member says that it is congested, until it holds a quarter.
    """

    held_bytes_max: int = 64 << 20
    flush_bytes: int = 128 << 10
    suspicion_s: float = 0.1
    """Between the news that a neighbour is down and declaring it dead: a broken link often is the
    beginning of a split that the store's majority decides."""
    retry_s: float = 0.05
    """Until the store, or a member that was not ready, is asked again; half to one and a half."""


LIMITS = Limits()


class Ignored:
    """Frames that were not processed, by reason."""

    __slots__ = ("earlier_epoch", "earlier_link", "gap", "not_left")

    def __init__(self) -> None:
        self.earlier_epoch = 0
        self.earlier_link = 0
        self.gap = 0
        self.not_left = 0


class Member:
    """One member, once: after `Stopped` another one, under a new id, may join.

    `strict` raises `Inconsistent` instead of stopping with that reason.
    """

    def __init__(
        self,
        me: MemberId,
        epoch: int,
        rng: Random,
        limits: Limits = LIMITS,
        *,
        strict: bool = False,
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.phase = NEW
        self.record: GroupRecord | None = None
        self.ignored = Ignored()
        self.congested = False
        self._view = View(0, me, me, frozenset(), (me,))
        self._owned = frozenset((me,))
        self._rng = rng
        self._limits = limits
        self._strict = strict
        self._epoch_seen = epoch
        self._effects: list[Effect] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._access = RecordAccess(self._effects, self._retry_store_later)
        self._links = RingLinks(me, self._effects)
        self._circulation = Circulation(me)
        self._timers: dict[int, Callable[[], None]] = {}
        self._timers_set = 0
        self._asked: MemberId | None = None
        self._unreachable: set[MemberId] = set()
        self._flush_is_due = False

    @property
    def view(self) -> View:
        """Neighbours, aliases and members as of the version this member knows."""
        return self._view

    @property
    def is_pending(self) -> bool:
        """Whether the store is asked, so that what arrives has to wait."""
        return self._access.is_busy

    @property
    def circulation(self) -> Circulation:
        """What it knows of messages, to be looked at only."""
        return self._circulation

    @property
    def held_bytes(self) -> int:
        return self._circulation.held_bytes

    @property
    def _is_alone(self) -> bool:
        return self._view.right == self.me

    # Events from above

    def start(self) -> list[Effect]:
        """Join the group; `Joined` or `Stopped` follows."""
        assert self.phase is NEW, self.phase
        self.phase = JOINING
        self._access.read(self._choose)
        return self._turn()

    def broadcast(self, payload: bytes) -> list[Effect]:
        """Send to all members; delivered here at once, to others after a `flush`.

        Raises `BroadcastRefused`.
        """
        self._check_may_broadcast(payload)
        self._effects.append(Deliver(self.me, payload))
        if not self._is_alone:
            self._circulation.add(payload)
            self._flush_is_due |= self._circulation.buffer_bytes >= self._limits.flush_bytes
        return self._turn()

    def confirmed_broadcast(self, payload: bytes, token: object) -> list[Effect]:
        """As `broadcast`; `Confirmed` names the token when every member holds the payload."""
        self._check_may_broadcast(payload)
        self._effects.append(Deliver(self.me, payload))
        if self._is_alone:
            self._effects.append(Confirmed((token,)))
            return self._turn()
        self._circulation.add(payload)
        self._circulation.confirm_last(token)
        self._flush_is_due |= self._circulation.buffer_bytes >= self._limits.flush_bytes
        return self._turn()

    def flush(self) -> list[Effect]:
        """Send what is buffered: to be called at the end of a turn of the loop."""
        self._flush_is_due = bool(self._circulation.buffer)
        return self._turn()

    def validate_members(self, expected: Iterable[MemberId]) -> list[Effect]:
        """Tell as births and deaths what differs from the expected members. Raises `NotJoined`."""
        self._check_is_joined()
        self._tell_members(tuple(expected))
        return self._turn()

    def set_epoch(self, epoch: int) -> list[Effect]:
        """Act in this epoch of the queue from now on. Lower ones than before are ignored."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._epoch_seen = max(epoch, self._epoch_seen)
            if self.phase in (JOINED, DRAINING) and not self._is_alone:
                # Neighbours of that epoch ignored what was sent until now.
                self._send_catchup()
                self._check_neighbours({self._view.left, self._view.right})
        return self._turn()

    def leave(self) -> list[Effect]:
        """Stop at once. To the others it is a death; what is buffered is lost."""
        self._stop(StopReason.LEFT)
        return self._turn()

    def stop_when_drained(self) -> list[Effect]:
        """Broadcast nothing more, and stop when all has gone round. Raises `NotJoined`."""
        self._check_is_joined()
        self.phase = DRAINING
        self._flush_is_due = bool(self._circulation.buffer)
        return self._turn()

    # Events from the shell

    def receive(self, sender: MemberId, message: Message) -> list[Effect]:
        """A message from a member, in the order in which that member sent them."""
        if message.epoch > self._epoch_seen:
            self._epoch_seen = message.epoch
            self._effects.append(EpochSeen(message.epoch))
        if message.epoch < self.epoch and not isinstance(message, NotReady):
            self.ignored.earlier_epoch += 1
            self._fence_off(sender, message)
        else:
            self._inbox.append(partial(self._process, sender, message))
        return self._turn()

    def peer_down(self, peer: MemberId) -> list[Effect]:
        """A monitored member has ended, or cannot be reached."""
        self._inbox.append(partial(self._suspect, peer))
        return self._turn()

    def timer_fired(self, timer: int) -> list[Effect]:
        action = self._timers.pop(timer, None)
        if action == self._access.retry:
            action()
        elif action is not None:
            self._inbox.append(action)
        return self._turn()

    def record_changed(self, version: int) -> list[Effect]:
        """A hint that the record has that version (0: deleted); may come late, twice or never."""
        self._inbox.append(partial(self._follow_hint, version))
        return self._turn()

    def record_read(self, request: int, record: GroupRecord | None) -> list[Effect]:
        self._access.record_read(request, record)
        return self._turn()

    def transaction_committed(self, request: int) -> list[Effect]:
        self._access.committed(request)
        return self._turn()

    def transaction_refused(self, request: int, record: GroupRecord | None) -> list[Effect]:
        """Somebody was first; this is the record now."""
        self._access.refused(request, record)
        return self._turn()

    def store_unavailable(self, request: int) -> list[Effect]:
        """No answer to the request will come; whether a transaction was written is not known."""
        self._access.unavailable(request)
        return self._turn()

    # A turn

    def _turn(self) -> list[Effect]:
        """Do what can be done, and return what has to be."""
        try:
            while not self._access.is_busy:
                if self._erase_settled():
                    continue
                if not self._inbox:
                    break
                self._inbox.popleft()()
            self._end_turn()
        except Inconsistent:
            if self._strict:
                raise
            self._stop(StopReason.INCONSISTENT)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _end_turn(self) -> None:
        if self.phase not in (JOINED, DRAINING):
            return
        if not self._access.is_busy:
            if self._flush_is_due:
                self._flush_is_due = False
                self._flush()
            if self.phase is DRAINING and self._circulation.is_drained:
                self._stop(StopReason.DRAINED)
                return
        self._report_congestion()

    def _flush(self) -> None:
        if self._circulation.buffer:
            self._send_activity([self._circulation.flush()])

    def _report_congestion(self) -> None:
        held, most = self._circulation.held_bytes, self._limits.held_bytes_max
        congested = held > most // 4 if self.congested else held >= most // 2
        if congested != self.congested:
            self.congested = congested
            self._effects.append(Congestion(congested))

    def _stop(self, reason: StopReason) -> None:
        if self.phase is STOPPED:
            return
        self.phase = STOPPED
        self._access.forget()
        self._inbox.clear()
        self._timers.clear()
        self._links.watch(set())
        self._effects.append(Stopped(reason))

    def _set_timer(self, action: Callable[[], None], delay_s: float) -> None:
        self._timers_set += 1
        self._timers[self._timers_set] = action
        self._effects.append(SetTimer(self._timers_set, delay_s))

    def _retry_store_later(self) -> None:
        self._set_timer(self._access.retry, self._retry_delay())

    def _retry_delay(self) -> float:
        return self._limits.retry_s * (0.5 + self._rng.random())

    def _check_is_joined(self) -> None:
        if self.phase not in (JOINED, DRAINING):
            raise NotJoined(f"{self.me} is {self.phase.value}, not joined")

    def _check_may_broadcast(self, payload: bytes) -> None:
        self._check_is_joined()
        if self.phase is DRAINING:
            raise Stopping(f"{self.me} stops when all has gone round")
        held, most = self._circulation.held_bytes, self._limits.held_bytes_max
        if not self._is_alone and held and held + cost(payload) > most:
            raise Congested(f"{self.me} holds {held} bytes, {len(payload)} more are above {most}")

    # Joining

    def _choose(self, record: GroupRecord | None) -> None:
        """Make the group, or ask one of its members to be let in.

        A member that cannot be reached from here is not declared dead as long as there is
        another: its neighbours know better.
        """
        self.record = record
        present = [member for member in alive_members(record) if member not in self._unreachable]
        if record is not None and alive_members(record) == (self.me,):
            self._enter_alone(record)
        elif is_known(record, self.me):
            # Who let this member in has died, and perhaps what it knew with it.
            self._stop(StopReason.JOIN_LOST)
        elif not present:
            found = partial(with_only, member=self.me, lost=self._unreachable)
            self._access.change(record, found, self._choose)
        else:
            self._asked = self._rng.choice(present)
            self._links.watch({self._asked})
            version = 0 if record is None else record.version
            self._send(self._asked, AddOnRight(self.epoch, version))

    def _choose_again(self) -> None:
        if self.phase is JOINING and self._asked is None:
            self._access.read(self._choose)

    def _enter_alone(self, record: GroupRecord) -> None:
        """Begin with nothing: nobody else is left that could know anything."""
        self.phase = JOINED
        self._view = view_of(record, self.me)
        self._owned = self._view.aliases | {self.me}
        self._circulation.keep(self._view.members)
        self._effects.append(Joined(self._view.members))

    def _not_ready(self, sender: MemberId, message: NotReady) -> None:
        if sender == self._asked:
            self._asked = None
            self._links.watch(set())
            self._set_timer(self._choose_again, self._retry_delay())

    def _first_catchup(self, sender: MemberId, message: Catchup) -> None:
        if sender == self._asked:
            self._access.read(partial(self._enter, sender, message))

    def _enter(self, left: MemberId, catchup: Catchup, record: GroupRecord | None) -> None:
        """Begin with what the member knows that let this one in."""
        if record is None or not is_alive(record, self.me):
            self._stop(StopReason.JOIN_LOST)
            return
        self._check_version(record, catchup)
        self.phase = JOINED
        self.record = record
        self._asked = None
        # As of the catchup's version, whoever sent it was the left neighbour.
        then = View(catchup.version - 1, self.me, self.me, frozenset(), ())
        now = View(catchup.version, left, self.me, frozenset(), ())
        self._links.relink(then, now)
        self._links.begin(catchup)
        self._circulation.load(catchup.known)
        self._effects.append(Joined(view_of(record, self.me).members))
        self._see(now, record, tell=False)

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
        if self._is_alone:
            self._confirm(self._circulation.settle_alone())
        # Nobody waits for the next message to learn of this version, least of all a former
        # neighbour that was declared dead and is not.
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
            above = self._links.catchup_above if waits else NONE
            self._send(neighbour, CheckNeighbours(self.epoch, self._view.version, above))

    def _follow_hint(self, version: int) -> None:
        if self.phase in (JOINED, DRAINING) and (version == 0 or version > self._view.version):
            self._access.read(self._learn)

    def _change(self, change: Callable[[GroupRecord], GroupRecord]) -> None:
        """Change the record, as long as this member is in it, and act on what it then is."""
        self._access.change(self.record, partial(self._change_as_member, change), self._learn)

    def _change_as_member(
        self, change: Callable[[GroupRecord], GroupRecord], record: GroupRecord
    ) -> GroupRecord:
        return change(record) if is_alive(record, self.me) else record

    def _erase_settled(self) -> bool:
        """Take aliases out of the record whose last messages have gone round."""
        if self._view.aliases and self.phase in (JOINED, DRAINING):
            settled = self._circulation.settled(self._view.aliases)
            if settled:
                self._change(partial(without, erased=settled))
                return True
        return False

    # Neighbours that are down

    def _suspect(self, peer: MemberId) -> None:
        if self._links.suspect(peer):
            self._set_timer(partial(self._declare_dead, peer), self._limits.suspicion_s)

    def _declare_dead(self, peer: MemberId) -> None:
        if peer not in self._links.suspects:
            return
        if self.phase is JOINING:
            self._asked = None
            self._links.watch(set())
            self._unreachable.add(peer)
            self._access.read(self._choose)
        else:
            self._change(partial(with_dead, dead=peer))

    # Messages

    def _process(self, sender: MemberId, message: Message) -> None:
        handler = HANDLERS.get((self.phase, type(message)))
        if handler is None:
            return
        if message.version > self._view.version and self.phase is not JOINING:
            self._inbox.appendleft(partial(self._process, sender, message))
            self._access.read(partial(self._catch_up_with, message))
            return
        if message.version < self._view.version:
            self._answer_late(sender, message)
        handler(self, sender, message)

    def _answer_late(self, sender: MemberId, message: Message) -> None:
        """Whoever is not a member any more and does not know, is told to look."""
        if not isinstance(message, AddOnRight) and not is_alive(self.record, sender):
            self._send(sender, CheckNeighbours(self.epoch, self._view.version))

    def _fence_off(self, sender: MemberId, message: Message) -> None:
        """Who waits for an answer is not left waiting by the fence."""
        if isinstance(message, AddOnRight):
            self._refuse(sender, message)
        elif isinstance(message, Catchup) and sender == self._asked and self.phase is JOINING:
            self._stop(StopReason.JOIN_LOST)

    def _catch_up_with(self, message: Message, record: GroupRecord | None) -> None:
        if record is not None and is_alive(record, self.me):
            self._check_version(record, message)
        self._learn(record)

    def _check_version(self, record: GroupRecord, message: Message) -> None:
        if record.version < message.version:
            raise Inconsistent(f"told of version {message.version}, the store has {record.version}")

    def _let_in(self, sender: MemberId, message: AddOnRight) -> None:
        if message.epoch > self.epoch:
            # It would not take the catchup.
            self._refuse(sender, message)
            return
        change = partial(self._change_as_member, partial(with_right_of, left=self.me, new=sender))
        self._access.change(self.record, change, partial(self._welcome, sender, message))

    def _welcome(self, sender: MemberId, message: AddOnRight, record: GroupRecord | None) -> None:
        """Seeing itself as its left neighbour, this member sends the joiner its catchup."""
        self._learn(record)
        if self.phase is not STOPPED and self._view.right != sender:
            # Let in by another one it asked before, or declared dead meanwhile.
            self._refuse(sender, message)

    def _refuse(self, sender: MemberId, message: AddOnRight) -> None:
        self._send(sender, NotReady(self.epoch, self._view.version))

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
            self._send(sender, CheckNeighbours(self.epoch, self._view.version, message.version))
        else:
            self._progress(self._circulation.receive(message.entries, self._owned))

    def _progress(self, progress: Progress) -> None:
        """Pass on first, so that a message outlives whoever delivers it."""
        if progress.entries:
            self._send_activity(progress.entries)
        self._confirm(progress.confirmed)
        for entry in progress.deliveries:
            for payload in entry.pubs:
                self._effects.append(Deliver(entry.member, payload))

    def _confirm(self, tokens: tuple[object, ...]) -> None:
        if tokens:
            self._effects.append(Confirmed(tokens))

    def _send_catchup(self) -> None:
        self._links.catchup_version = self._view.version
        position = self._links.next_position()
        known = self._circulation.known()
        self._send(self._view.right, Catchup(self.epoch, self._view.version, position, known))

    def _send_activity(self, entries: list[Entry]) -> None:
        position = self._links.next_position()
        message = Activity(self.epoch, self._view.version, position, tuple(entries))
        self._send(self._view.right, message)

    def _send(self, to: MemberId, message: Message) -> None:
        self._effects.append(Send(to, message))


Handler = Callable[[Member, MemberId, Any], None]

HANDLERS: dict[tuple[Phase, type[Message]], Handler] = {
    (JOINING, AddOnRight): Member._refuse,
    (JOINING, NotReady): Member._not_ready,
    (JOINING, Catchup): Member._first_catchup,
    (JOINED, AddOnRight): Member._let_in,
    (JOINED, Catchup): Member._catch_up,
    (JOINED, Activity): Member._pass_on,
    (JOINED, CheckNeighbours): Member._answer_neighbour,
    (DRAINING, AddOnRight): Member._refuse,
    (DRAINING, Catchup): Member._catch_up,
    (DRAINING, Activity): Member._pass_on,
    (DRAINING, CheckNeighbours): Member._answer_neighbour,
}
"""The rest is ignored: a member that joins has no view yet, one that stopped needs none."""
