"""A member of a log: what it does for the leader of a queue, and what it does for a mirror.

A member has no clock and no socket: `LogShell` carries its messages, tells it of links that come
and go, and calls `tick` while the member waits for something.
"""

from __future__ import annotations

from typing import Protocol

from warren.core.definitions.records import QueueRecord
from warren.mirror.carriers.batch import NOTHING, Position, epoch_and_batch
from warren.mirror.carriers.ports import (
    PRESUMED,
    MemberId,
    Members,
    NoUpperLayer,
    StopReason,
    UpperLayer,
)
from warren.mirror.log.messages import Bye, CarrierRefusal, Data, Hello, Message, Welcome
from warren.mirror.log.window import BatchWindow

PATIENCE_TICKS = 10
"""Ticks that a new leader waits for the hello of a mirror that the definition names."""


class LogEffects(Protocol):
    """The shell, as members call it."""

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
        """Call the member's `tick` soon, and again as long as it returns True."""
        ...

    def forget(self, member: LogMember) -> None: ...


class _Session:
    """A mirror to which this leader sends batches; `place` is that of the next batch."""

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
        self._window = BatchWindow(at)
        self._everywhere: Position = NOTHING
        # For a leader, by node: sessions of the mirrors that have said hello. `_presumed` has the
        # mirrors whose hello is awaited, with the ticks waited.
        self._sessions: dict[str, _Session] = {}
        # The place at which the present life of each node's member began.
        self._first_places: dict[str, tuple[MemberId, int]] = {}
        self._presumed: dict[str, int] = {}
        # For a mirror: whether the leader has answered over this link, and whether this member has
        # reported to the layer above that the leader is gone.
        self._is_welcome = False
        self._is_bereaved = False
        self._vote: tuple[int, int] | None = None
        self._has_started = False

    @property
    def me(self) -> MemberId:
        return self._me

    @property
    def leads(self) -> bool:
        """Whether this node leads the queue, by its definition."""
        return self._record.leader == self._me.node

    @property
    def end(self) -> Position:
        """The position of the last batch that this member has."""
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
            # If this leader is gone, too, its death is reported in a moment.
            self._upper.members_changed((MemberId(record.leader, PRESUMED),), ())
            self._say_hello()

    def leave(self) -> None:
        self._stop(StopReason.LEFT)

    def _stop(self, reason: StopReason) -> None:
        if not self.is_stopped:
            upper = self._upper
            self.ended()
            upper.stopped(reason)

    def ended(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self._upper = NoUpperLayer()
        self._effects.forget(self)
        told = [*self._sessions] if self.leads else [self._record.leader]
        for node in told:
            self._effects.send(node, self.queue_id, Bye(self._me.incarnation))

    # Calls of the leader's member

    def broadcast(self, payload: bytes) -> bool:
        if self.is_stopped:
            return False
        self._window.append(epoch_and_batch(payload), payload)
        for session in list(self._sessions.values()):
            self._send_on(session)
        if not self._sessions and not self._record.mirrors:
            # A mirror that comes later begins with what is broadcast from then on.
            self._window.trim(self._window.last)
        return True

    def reported_by_all(self, batch: int) -> None:
        self._everywhere = max(self._everywhere, (self._record.epoch, batch))
        self._window.trim(self._everywhere)

    def _send_on(self, session: _Session) -> None:
        """Send a mirror the batches that it lacks, as far as its link takes them."""
        window, node = self._window, session.member.node
        # A new mirror does not need the batches that all others have reported since it came.
        session.place = max(session.place, window.first_place)
        while session.place < window.end_place and self._effects.may_send(node, self):
            payload = window.payload_at(session.place)
            if not self._effects.send_batch(node, self.queue_id, self._everywhere, payload):
                return
            session.place += 1

    def _greet(self, node: str, hello: Hello) -> None:
        if not self.leads or not self._has_started:
            # The mirror heard of the change of leader before this node did, and will ask again.
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
            self._effects.send(node, self.queue_id, CarrierRefusal(hello.incarnation, epoch))
            return
        self._effects.send(node, self.queue_id, Welcome(hello.incarnation))
        before = self._sessions.pop(node, None)
        gone: Members = ()
        if self._presumed.pop(node, None) is not None:
            gone = (MemberId(node, PRESUMED),)
        elif before is not None and before.member != member:
            gone = (before.member,)
        if gone and (hello.end == NOTHING or before is not None):
            # This is a new copy or a new life, not the mirror that the definition names.
            self._upper.members_changed((), gone)
            gone = ()
        self._sessions[node] = session = _Session(member, place)
        if before is None or before.member != member:
            self._upper.members_changed((member,), gone)
        if self._sessions.get(node) is session:
            self._send_on(session)

    def _first_place(self, member: MemberId) -> int:
        """The place at which a mirror without any batch begins: the end of the window when it first
        came. If it comes again it begins there again, as the batch that tells it to start may have
        been lost with its link."""
        known = self._first_places.get(member.node)
        if known is None or known[0] != member:
            known = self._first_places[member.node] = (member, self._window.end_place)
        return known[1]

    def _mirror_gone(self, node: str) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            self._upper.members_changed((), (session.member,))

    # Calls of a mirror's member

    def vote(self) -> Position | None:
        """Take no more batches of this leader in this ballot; returns the position of the last one.

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
        """Send the leader a hello, now and at each tick until it is answered."""
        vote = self._vote if self._has_voted() else None
        if not self._upper.has_begun:
            # This member has no copy to continue: it is to be sent new batches only, and not those
            # after the last batch it got.
            self._window = BatchWindow()
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

    # Events from the shell

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
                    # This member voted after it had sent its hello: the leader must hear of the
                    # vote, and make it void.
                    self._say_hello()
                else:
                    self._is_welcome = True
                    if self._is_bereaved:
                        self._is_bereaved = False
                        self._upper.members_changed((MemberId(node, PRESUMED),), ())
            case CarrierRefusal(incarnation, epoch):
                if (node, epoch) != (self._record.leader, self._record.epoch):
                    # This member says hello again until it knows the leader's own definition.
                    return
                if incarnation == self._me.incarnation:
                    self._stop(StopReason.INCONSISTENT)
            case Bye(incarnation):
                if self.leads:
                    session = self._sessions.get(node)
                    if session is not None and session.member.incarnation == incarnation:
                        self._mirror_gone(node)
                elif node == self._record.leader:
                    # The leader's node may go on leading with another member.
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
        """Go on sending: the link to the node can take more again."""
        session = self._sessions.get(node)
        if session is not None and self.leads and not self.is_stopped:
            self._send_on(session)

    def tick(self) -> bool:
        """Check for the mirrors, or the leader, that this member waits for; False if there are none
        left."""
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
