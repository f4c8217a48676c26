"""gm: one member of a group. A message that one member broadcasts reaches all members.

Theory. Members stand in a ring (`view`). A message goes from neighbour to neighbour until it has
come round; every member keeps it until its ack has gone round, too (`circulation`). When a member
dies, its neighbours link up, and the left one tells the right one all it knows (`catch_up`).
A record in the metadata store names the members of the ring; it changes by compare-and-set only.

Guarantees (G1 to G16 of the reference; `docs/gm.md` has all of them in words):

- messages of one sender arrive in order, without gaps, each exactly once;
- a message that any member got reaches all that stay alive, unless all that have it die;
- a confirm means that every member of the ring holds the message;
- a birth is reported before the new member's first message, a death after the dead one's last.

Not guaranteed: an order between messages of different senders; the arrival of a message that was
broadcast but not confirmed when its sender dies.

A member does no I/O: its methods are events, and each returns effects (`effects.py`) to be carried
out in order, best by a `Handout`. Reading or changing the record (`record_access`) takes time;
until it is done, messages that arrive are queued, so that none is processed with a view that is
just changing. The version rule: a member processes a message sent in a later version than its own
only after it has read the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.base import DRAINING, JOINED, JOINING, NEW, MemberPhase
from warren.mirror.gm.effects import Confirmed, Congestion, Deliver, Effect, EpochSeen
from warren.mirror.gm.errors import Congested, Inconsistent, Stopping
from warren.mirror.gm.joining import JoiningMember
from warren.mirror.gm.member_state import cost
from warren.mirror.gm.messages import (
    Activity,
    AddOnRight,
    Catchup,
    CheckNeighbours,
    Message,
    NotReady,
)
from warren.mirror.gm.view import is_alive


class Member(JoiningMember):
    """One life of a member: after `Stopped` another member, under a new id, may join."""

    # Events from above

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> list[Effect]:
        """Join the group; `Joined` or `Stopped` follows.

        If there is no group yet, this member makes it, with these `founders` in it, too: members
        that have been started and are in no other group. A member that is itself such a founder
        `awaits_group`.
        """
        assert self.phase is NEW, self.phase
        self.phase = JOINING
        self._founders = founders
        if awaits_group:
            self._awaits_group = True
            self._set_timer(self._await_no_longer, self._limits.founding_s)
        # An old record will do: members that have left it are found gone, and changes of an old
        # version are refused.
        self._access.read(self._choose, 0)
        return self._turn()

    def broadcast(self, payload: bytes) -> list[Effect]:
        """Send to all members: it is delivered here at once, and to the others after a `flush`.

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
        """Send the buffered messages; to be called at the end of a turn of the loop."""
        self._flush_is_due = bool(self._circulation.buffer)
        return self._turn()

    def validate_members(self, expected: Iterable[MemberId]) -> list[Effect]:
        """Report the difference from the expected members as births and deaths.

        Raises `NotJoined`.
        """
        self._check_is_joined()
        self._tell_members(tuple(expected))
        return self._turn()

    def set_epoch(self, epoch: int) -> list[Effect]:
        """Act in this epoch of the queue from now on; an epoch that is not later is ignored."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._epoch_seen = max(epoch, self._epoch_seen)
            if self.phase in (JOINED, DRAINING) and not self._is_alone:
                # Neighbours in the new epoch have ignored what this member sent until now.
                self._send_catchup()
                self._check_neighbours({self._view.left, self._view.right})
        return self._turn()

    def leave(self) -> list[Effect]:
        """Stop at once. To the others that is a death; buffered messages are lost."""
        self._stop(StopReason.LEFT)
        return self._turn()

    def stop_when_drained(self) -> list[Effect]:
        """Broadcast no more, and stop when all messages have gone round. Raises `NotJoined`."""
        self._check_is_joined()
        self.phase = DRAINING
        self._flush_is_due = bool(self._circulation.buffer)
        return self._turn()

    # Events from the shell

    def receive(self, sender: MemberId, message: Message) -> list[Effect]:
        """Take a message from a member; its messages come in the order in which it sent them."""
        self._version_told = max(self._version_told, message.version)
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
        """A hint that the record has this version (0: deleted); may come late, twice or never."""
        self._inbox.append(partial(self._follow_hint, version))
        return self._turn()

    def record_read(self, request: int, record: GroupRecord | None) -> list[Effect]:
        return self._turn(partial(self._access.record_read, request, record))

    def transaction_committed(self, request: int) -> list[Effect]:
        return self._turn(partial(self._access.committed, request))

    def transaction_refused(self, request: int, record: GroupRecord | None) -> list[Effect]:
        """Another member has changed the record before; this is the record now."""
        return self._turn(partial(self._access.refused, request, record))

    def store_unavailable(self, request: int) -> list[Effect]:
        """No answer to the request will come; whether a transaction was written is not known."""
        if self._access.unavailable(request):
            self._set_timer(self._access.retry, self._retry_delay())
        return self._turn()

    # A turn

    def _turn(self, first: Callable[[], None] | None = None) -> list[Effect]:
        """Process what can be processed now, and return the effects."""
        try:
            if first is not None:
                first()
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

    def _check_may_broadcast(self, payload: bytes) -> None:
        self._check_is_joined()
        if self.phase is DRAINING:
            raise Stopping(f"{self.me} stops when all has gone round")
        held, most = self._circulation.held_bytes, self._limits.held_bytes_max
        if not self._is_alone and held and held + cost(payload) > most:
            raise Congested(f"{self.me} holds {held} bytes, {len(payload)} more are above {most}")

    # Neighbours that are down

    def _suspect(self, peer: MemberId) -> None:
        if self._links.suspect(peer):
            ends = partial(self._suspicion_ends, peer)
            is_left_only = self.phase is not JOINING and peer != self._view.right
            if is_left_only and self.me != self._view.members[0]:
                delay_s = self._limits.left_suspicion_s * (1 + self._rng.random())
                self._set_timer(ends, delay_s, may_wait=True)
            else:
                self._set_timer(ends, self._limits.suspicion_s)

    def _suspicion_ends(self, peer: MemberId) -> None:
        if peer not in self._links.suspects:
            return
        if self.phase is JOINING:
            self._give_up_asking(peer)
        else:
            self._declare_dead(peer)

    # Messages

    def _process(self, sender: MemberId, message: Message) -> None:
        handler = HANDLERS.get((self.phase, type(message)))
        if handler is None:
            return
        if message.version > self._view.version and self.phase is not JOINING:
            self._inbox.appendleft(partial(self._process, sender, message))
            self._access.read(partial(self._catch_up_with, message), message.version)
            return
        if message.version < self._view.version:
            self._answer_late(sender, message)
        handler(self, sender, message)

    def _answer_late(self, sender: MemberId, message: Message) -> None:
        """Tell a sender that is no longer a member, and does not know it, to read the record."""
        if not isinstance(message, AddOnRight) and not is_alive(self.record, sender):
            self._send(sender, CheckNeighbours(self.epoch, self._view.version))

    def _fence_off(self, sender: MemberId, message: Message) -> None:
        """Answer a message of an earlier epoch if its sender waits for an answer; a joining member
        stops if the message was the answer it waited for."""
        if isinstance(message, AddOnRight):
            self._refuse(sender, message)
        elif isinstance(message, Catchup) and self.phase is JOINING:
            if self._is_answer(sender, message):
                self._stop(StopReason.JOIN_LOST)

    def _catch_up_with(self, message: Message, record: GroupRecord | None) -> None:
        if record is not None and is_alive(record, self.me):
            self._check_version(record, message)
        self._learn(record)


Handler = Callable[[Member, MemberId, Any], None]

HANDLERS: dict[tuple[MemberPhase, type[Message]], Handler] = {
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
"""Other messages are ignored: a joining member has no view yet, and a stopped one needs none."""
