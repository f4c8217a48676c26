"""A mirror's copy of one level of a queue: a backing queue that follows that of the leader.

The copy has the part of the queue between two positions of the leader, `first` and `upto`. A mirror
that has just begun lacks all older messages; one that is being synchronised lacks all messages
behind those that it was sent so far. Instructions for positions outside of this part are passed
over. Positions here are those of the leader plus `delta`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.queues.redelivery import CountingQueue
from warren.mirror.replication.levels.instructions import Op

NOWHERE = 1 << 62
"""Behind every position: a copy from here on is empty, and one up to here has no end."""


class CopyLost(Exception):
    """The copy differs from what the leader believes; it must be made anew."""


class BeginAnew(CopyLost):
    """The copy stays valid, but another copy has to follow the leader from now on."""


class MirrorLevel:
    """A mirror's copy of one level. `first` and `upto` are positions of the leader."""

    hands_out = True
    """Whether clients get messages out of this kind of queue."""

    def __init__(self, backing: MirroredLevel) -> None:
        self.backing = backing
        self.first = NOWHERE
        self.upto = NOWHERE
        self.delta = 0
        self.pending: dict[int, Message] = {}
        # The positions of pending messages that the leader has passed over: it has lost them.
        self.passed_over: set[int] = set()
        # The messages that count as delivered: all below a position, and single ones.
        self.handed_out_below = 0
        self.again: set[int] = set()
        self.taken: set[int] = set()
        # The time of arrival of messages in a slice, in seconds since 1970; None if it is not told.
        self.arrived_at: float | None = None

    def begin(self, first: int, upto: int) -> None:
        """Become empty, and have the part between these positions from now on."""
        self.empty()
        self.first = first
        self.upto = upto
        self.delta = self.backing.next_position - first

    def have_all(self, delta: int) -> None:
        """Count as whole: the backing queue has everything."""
        self.first = 0
        self.delta = delta

    def empty(self) -> None:
        self.backing.ack(list(self.pending.values()))
        self.pending.clear()
        self.passed_over.clear()
        self.purge()

    def purge(self) -> None:
        self.backing.purge()
        passed_over = [self.pending.pop(at) for at in self.passed_over & self.pending.keys()]
        self.backing.ack(passed_over)
        self.passed_over.clear()
        self.again &= self.pending.keys()

    def follow(self, their_delta: int) -> None:
        """Follow a mirror that leads now: its own positions, with this delta to the former ones,
        are those of the leader from now on."""
        self.delta -= their_delta
        if self.first != NOWHERE:
            self.first += their_delta
        if self.upto != NOWHERE:
            self.upto += their_delta
        self.handed_out_below += their_delta
        self.again = {position + their_delta for position in self.again | self.taken}
        self.taken.clear()
        self.put_all_back()

    def put_all_back(self) -> None:
        """Make messages ready again that were pending at a leader that is gone."""
        self.backing.requeue(list(self.pending.values()))
        self.pending.clear()
        self.passed_over.clear()

    def count_handed_out(self) -> None:
        """Count messages as delivered that the former leader had announced: it may have handed them
        out."""
        below = min(self.handed_out_below + self.delta, self.backing.next_position)
        # The backing queue marks what is in it, and is told once. Messages that are out may be put
        # back later, by a mirror that was about to stop and leads after all.
        for message in self.pending.values():
            message.redelivered |= message.position < below
        self.backing.count_as_delivered(below)

    def is_about_to_stop(self) -> None:
        """Have the next start know what clients may have had. The backing queue can only count all
        messages below a position as delivered: better too many than too few."""
        self.handed_out_below = self._had_below()
        self.count_handed_out()

    def _had_below(self) -> int:
        """Clients of the leader may have had the messages below this position."""
        again = self.again - self.pending.keys()
        return max(self.handed_out_below, max(again, default=-1) + 1)

    @property
    def delivered_below(self) -> int:
        """The position here below which messages would count as delivered if the node stopped."""
        below = min(self._had_below() + self.delta, self.backing.next_position)
        return max(below, self.backing.delivered_below)

    def unacked(self) -> list[Message] | None:
        """The messages that clients have, as far as the leader has told; None if it does not."""
        passed_over = self.passed_over
        return [message for at, message in self.pending.items() if at not in passed_over]

    def publish(
        self,
        position: int,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        delivered: bool,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        """Take a message that has its place in this copy."""
        backing = self.backing
        own = position + self.delta
        if own != backing.next_position:
            backing.skip_to(own)
        if expires_at is not None:
            backing.expiring = True
        if delivered and not backing.length:
            self.pending[position] = backing.publish_delivered(
                envelope, body, expires_at, confirms, publish_seq
            )
            return
        backing.publish(envelope, body, expires_at, confirms, publish_seq)
        if delivered:
            self._fetch_behind(own, position)

    def has_place(self, position: int) -> bool:
        """Whether a message is for this copy. Raises `CopyLost` if its place is taken."""
        if not self.first <= position < self.upto:
            return False
        if position + self.delta < self.backing.next_position:
            last = self.backing.next_position - 1
            raise CopyLost(f"position {position + self.delta} comes after {last}")
        return True

    def takes_together(self, position: int, count: int, delivered: bool) -> bool:
        """Whether `publish_many` may take `count` messages from this position on."""
        return (
            self.first <= position
            and position + count <= self.upto
            and position + self.delta == self.backing.next_position
            and not (delivered and self.backing.length)
        )

    def publish_many(
        self,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        delivered: bool,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        """Take messages at positions from `first` on, which all expire at the same time."""
        if expires_at is not None:
            self.backing.expiring = True
        if delivered:
            messages = self.backing.publish_many_delivered(
                envelopes, bodies, expires_at, confirms, first_seq
            )
            self.pending.update(zip(range(first, first + len(messages)), messages, strict=True))
        else:
            self.backing.publish_many(envelopes, bodies, expires_at, confirms, first_seq)

    def _fetch_behind(self, own: int, position: int) -> None:
        """Take out the last message. Those that are ready before it were returned at the leader.
        They are returned here, too: backing queues expect returned messages before all others."""
        messages = self.backing.fetch_many(self.backing.length)
        if messages and messages[-1].position == own:
            self.pending[position] = messages.pop()
        self.backing.requeue(messages)

    def keep(self, start: int, count: int) -> None:
        """Check that messages of the leader are here from before. Raises `CopyLost`."""
        raise CopyLost("it has nothing from before")

    def go_on_from(self, position: int) -> None:
        """Give the next message this position of the leader, or a later one. Lower ones may have
        been used: a mirror that led would use them again, for other messages."""
        own = position + self.delta
        if own > self.backing.next_position:
            self.backing.skip_to(own)

    def run(self, op: Op, start: int, count: int) -> None:
        """The leader fetched, acknowledged or put back the messages at these positions."""
        if self.again and op is Op.ACK:
            self.again.difference_update(range(start, start + count))
        if self.taken and (op is Op.ACK or op is Op.REQUEUE):
            self.taken.difference_update(range(start, start + count))
        stop = min(start + count, self.upto)
        start = max(start, self.first)
        if start >= stop:
            return
        self._carry_out(op, start, stop)

    def out(self, start: int, stop: int) -> dict[int, Message]:
        """The messages with these positions that are out for acknowledgement, by position."""
        pending = self.pending
        return {at: pending[at] for at in range(start, stop) if at in pending}

    def note(self, op: Op, position: int, number: int) -> None:
        """The leader says how often a message was returned, or that one of a quorum queue is
        dead."""
        if op is not Op.COUNTED:
            raise CopyLost(f"{op.name} is not for a classic queue")
        if self.first <= position < self.upto:
            own = position + self.delta
            # Every backing queue that keeps messages can keep counts.
            counting = cast(CountingQueue, self.backing)
            counting.delivery_counts[own] = number
            counting.counts_changed((own,))

    def _carry_out(self, op: Op, start: int, stop: int) -> None:
        if op is Op.FETCH:
            self._fetch(start, stop)
            return
        if op is Op.TAKE:
            self._take(start, stop)
            return
        take = self.pending.pop
        messages = [m for position in range(start, stop) if (m := take(position, None)) is not None]
        if op is Op.ACK:
            self.backing.ack(messages)
        else:
            self.backing.requeue(messages)

    def _take(self, start: int, stop: int) -> None:
        """Take messages from the middle. Where they go is not known here, so the next leader counts
        those that are still there as delivered."""
        wanted = [at + self.delta for at in range(start, stop) if at not in self.pending]
        for message in self.backing.take(wanted):
            self.pending[message.position - self.delta] = message
        self.taken.update(range(start, stop))

    def _fetch(self, start: int, stop: int) -> None:
        """Fetch these positions. Earlier messages that are still ready become pending, too: the
        leader has lost them, and the next leader makes them ready again."""
        last = stop - 1 + self.delta
        first = start + self.delta
        while True:
            messages = self.backing.fetch_many(stop - start)
            beyond = [message for message in messages if message.position > last]
            if beyond:
                self.backing.requeue(beyond)
            for message in messages:
                if message.position <= last:
                    self.pending[message.position - self.delta] = message
                    if message.position < first:
                        self.passed_over.add(message.position - self.delta)
            if not messages or messages[-1].position >= last:
                return
