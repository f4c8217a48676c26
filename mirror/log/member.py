"""A member of a log: what it does for the leader of a queue, and what for a mirror.

It has no clock and no socket: `LogShell` carries its messages, tells it of links that come and go,
and calls `tick` while something is awaited.
"""

from __future__ import annotations

from typing import Protocol

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import NOTHING, Position, epoch_and_batch
from warren.mirror.carriers.ports import PRESUMED, MemberId, Members, StopReason, UpperLayer
from warren.mirror.log.messages import Bye, Data, Hello, Message, Refusal, Welcome
from warren.mirror.log.window import Window

PATIENCE_TICKS = 10
"""How many ticks a new leader waits for the hello of a mirror that the definition names."""


class LogEffects(Protocol):
    """What members ask of the shell."""

    def send(self, node: str, queue_id: int, message: Message) -> bool: ...

    def send_batch(
        self, node: str, queue_id: int, everywhere: Position, payload: bytes
    ) -> bool: ...

    def is_up(self, node: str) -> bool:
        """Whether there is a link with the node."""
        ...

    def may_send(self, node: str, member: LogMember) -> bool:
        """Whether the link with the node takes more; if not, `link_is_free` is called later."""
        ...

    def tick_soon(self, member: LogMember) -> None:
        """Call `tick` in a moment, again and again until nothing is awaited."""
        ...

    def forget(self, member: LogMember) -> None: ...


class _Session:
    """A mirror that this leader sends batches to: the next one is at `place`."""

    __slots__ = ("member", "place")

    def __init__(self, member: MemberId, place: int) -> None:
        self.member = member
        self.place = place


class LogMember:
    """Implements `CarrierMember`."""

    def __init__(
        self,
        me: MemberId,
        record: QueueRecord,
        upper: UpperLayer,
        effects: LogEffects,
        at: Position = NOTHING,
    ) -> None:
        self.queue_id = record.queue_id
        self.is_stopped = False
        self._me = me
        self._record = record
        self._upper = upper
        self._effects = effects
        self._window = Window(at)
        self._everywhere: Position = NOTHING
        # As a leader's: the mirrors that are here, and the ones that are awaited, with the ticks.
        self._sessions: dict[str, _Session] = {}
        # Where the present life of each node's member began.
        self._first_places: dict[str, tuple[MemberId, int]] = {}
        self._presumed: dict[str, int] = {}
        # As a mirror's: whether the leader has answered over this link, and whether this member
        # has told that it is gone.
        self._is_welcome = False
        self._is_bereaved = False
        self._vote: tuple[int, int] | None = None
        self._has_started = False

    @property
    def me(self) -> MemberId:
        return self._me

    @property
    def leads(self) -> bool:
        """Whether this node leads the queue, as the definition says."""
        return self._record.leader == self._me.node

    @property
    def end(self) -> Position:
        """The last batch that it has."""
        return self._window.last

    @property
    def is_new(self) -> bool:
        return not (self._has_started or self.is_stopped)

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> None:
        self._has_started = True
        self._upper.joined(())
        if not self.leads:
            self._say_hello()

    def become(self, upper: UpperLayer) -> None:
        self._upper = upper

    def others(self) -> Members:
        if self.leads and self._sessions:
            return tuple(session.member for session in self._sessions.values())
        return tuple(
            MemberId(node, PRESUMED)
            for node in self._record.mirrors
            if node != self._me.node and self._effects.is_up(node)
        )

    def follow(self, record: QueueRecord) -> None:
        before, self._record = self._record, record
        if self.is_stopped or not self._has_started:
            return
        if self.leads:
            if before.leader != record.leader:
                self._presumed = dict.fromkeys(record.mirrors, 0)
                self._effects.tick_soon(self)
        elif before.leader != record.leader or (self._vote is not None and not self._has_voted()):
            self._vote = None
            self._is_welcome = False
            self._is_bereaved = False
            # If this leader is gone, too, that is told in a moment.
            self._upper.members_changed((MemberId(record.leader, PRESUMED),), ())
            self._say_hello()

    def leave(self) -> None:
        if not self.is_stopped:
            self.ended()
            self._upper.stopped(StopReason.LEFT)

    def ended(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self._effects.forget(self)
        told = [*self._sessions] if self.leads else [self._record.leader]
        for node in told:
            self._effects.send(node, self.queue_id, Bye(self._me.incarnation))

    # As the leader's

    def broadcast(self, payload: bytes) -> bool:
        if self.is_stopped:
            return False
        self._window.append(epoch_and_batch(payload), payload)
        for session in list(self._sessions.values()):
            self._send_on(session)
        if not self._sessions and not self._record.mirrors:
            # Whoever comes later begins with what is broadcast then.
            self._window.trim(self._window.last)
        return True

    def reported_by_all(self, batch: int) -> None:
        self._everywhere = max(self._everywhere, (self._record.epoch, batch))
        self._window.trim(self._everywhere)

    def _send_on(self, session: _Session) -> None:
        """Send a mirror what it lacks, as far as its link takes it."""
        window, node = self._window, session.member.node
        # One that is new need not have what the others have reported since it came.
        session.place = max(session.place, window.first_place)
        while session.place < window.end_place and self._effects.may_send(node, self):
            payload = window.payload_at(session.place)
            if not self._effects.send_batch(node, self.queue_id, self._everywhere, payload):
                return
            session.place += 1

    def _greet(self, node: str, hello: Hello) -> None:
        if not self.leads or not self._has_started:
            # It heard of a new leader before this node did, and asks again.
            return
        if hello.vote is not None:
            if hello.vote == (self._record.epoch, self._record.ballot):
                self._upper.disputed()
            return
        member = MemberId(node, hello.incarnation)
        window = self._window
        epoch = self._record.epoch
        if hello.end == NOTHING:
            place: int | None = self._first_place(member)
        else:
            place = window.place_after(hello.end, epoch)
        if place is None:
            self._effects.send(node, self.queue_id, Refusal(hello.incarnation))
            return
        self._effects.send(node, self.queue_id, Welcome(hello.incarnation))
        before = self._sessions.pop(node, None)
        gone: Members = ()
        if self._presumed.pop(node, None) is not None:
            gone = (MemberId(node, PRESUMED),)
        elif before is not None and before.member != member:
            gone = (before.member,)
        if gone and (hello.end == NOTHING or before is not None):
            # It is not the mirror that the definition names.
            self._upper.members_changed((), gone)
            gone = ()
        self._sessions[node] = session = _Session(member, place)
        if before is None or before.member != member:
            self._upper.members_changed((member,), gone)
        if self._sessions.get(node) is session:
            self._send_on(session)

    def _first_place(self, member: MemberId) -> int:
        """Where a mirror begins that has nothing: with what is new when it comes. What tells it to
        start may have got lost with its link, so it begins there again when it comes again."""
        known = self._first_places.get(member.node)
        if known is None or known[0] != member:
            known = self._first_places[member.node] = (member, self._window.end_place)
        return known[1]

    def _mirror_gone(self, node: str) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            self._upper.members_changed((), (session.member,))

    # As a mirror's

    def vote(self) -> Position | None:
        """Take no more batches of this leader in this ballot; returns what is here.

        None while the leader is there.
        """
        if self.is_stopped or self.leads or self.hears_leader:
            return None
        self._vote = (self._record.epoch, self._record.ballot)
        return self.end

    @property
    def hears_leader(self) -> bool:
        return self._is_welcome and self._effects.is_up(self._record.leader)

    def _has_voted(self) -> bool:
        return self._vote == (self._record.epoch, self._record.ballot)

    def _say_hello(self) -> None:
        """Again and again, until it is answered."""
        vote = self._vote if self._has_voted() else None
        if not self._upper.has_begun:
            # It is sent what is new, and not what came since the last batch that is here.
            self._window = Window()
        hello = Hello(self._me.incarnation, self.end, vote)
        self._effects.send(self._record.leader, self.queue_id, hello)
        self._effects.tick_soon(self)

    def _take(self, node: str, data: Data) -> None:
        position = epoch_and_batch(data.payload)
        if node != self._record.leader or not self._is_welcome or self._has_voted():
            return
        if position <= self.end:
            return
        self._window.append(position, data.payload)
        self._window.trim(min(data.everywhere, position))
        self._upper.deliver(MemberId(node, PRESUMED), data.payload)

    def _leader_gone(self) -> None:
        self._is_welcome = False
        if not self._is_bereaved:
            self._is_bereaved = True
            self._upper.members_changed((), (MemberId(self._record.leader, PRESUMED),))

    # What happens

    def received(self, node: str, message: Message) -> None:
        if self.is_stopped:
            return
        match message:
            case Data():
                self._take(node, message)
            case Hello():
                self._greet(node, message)
            case Welcome(incarnation):
                if node != self._record.leader or incarnation != self._me.incarnation:
                    return
                if self._has_voted():
                    # It voted after it had asked: the leader is to hear so, and make that void.
                    self._say_hello()
                else:
                    self._is_welcome = True
                    if self._is_bereaved:
                        self._is_bereaved = False
                        self._upper.members_changed((MemberId(node, PRESUMED),), ())
            case Refusal(incarnation):
                if node == self._record.leader and incarnation == self._me.incarnation:
                    self.ended()
                    self._upper.stopped(StopReason.INCONSISTENT)
            case Bye(incarnation):
                if self.leads:
                    session = self._sessions.get(node)
                    if session is not None and session.member.incarnation == incarnation:
                        self._mirror_gone(node)
                elif node == self._record.leader:
                    # Its node may lead on with another member.
                    self._leader_gone()
                    self._effects.tick_soon(self)

    def node_up(self, node: str) -> None:
        if self._has_started and not self.leads and node == self._record.leader:
            self._say_hello()

    def node_down(self, node: str) -> None:
        if not self._has_started:
            return
        if self.leads:
            self._mirror_gone(node)
        elif node == self._record.leader:
            self._leader_gone()

    def link_is_free(self, node: str) -> None:
        """The link can take more again."""
        session = self._sessions.get(node)
        if session is not None and self.leads and not self.is_stopped:
            self._send_on(session)

    def tick(self) -> bool:
        """Look whether those have come that are awaited; False when nobody is."""
        if self.is_stopped:
            return False
        if self.leads:
            for node in list(self._presumed):
                self._presumed[node] += 1
                if self._presumed[node] > PATIENCE_TICKS:
                    del self._presumed[node]
                    self._upper.members_changed((), (MemberId(node, PRESUMED),))
            return bool(self._presumed)
        if self._is_welcome:
            return False
        if not self._effects.is_up(self._record.leader):
            self._leader_gone()
            return False
        self._say_hello()
        return True
