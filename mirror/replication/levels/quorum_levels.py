"""The backing queue of a quorum queue at its leader, and its copies at mirrors.

Theory. A quorum queue hands out returned messages in the order of their returns, which is not the
order of positions (`core/queues/quorum_level.py`). A mirror does not repeat that order. It fetches
each message when its leader fetches it for the first time, and leaves it pending until it is
acknowledged, however often it is returned and fetched again. Messages that were never fetched are
fetched in the order of positions, at the leader and at mirrors alike.

So a return changes nothing at a mirror but the delivery count. A mirror that becomes the leader
has all pending messages ready again, in the order of their positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

from warren.core.messages.message import Message
from warren.core.queues.quorum_level import QuorumLevel
from warren.mirror.replication.levels.instructions import Op
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import MirrorLevel


class QuorumLeaderLevel(LeaderLevel):
    """Implements `ReturningQueue` around a level of a quorum queue."""

    __slots__ = ()

    @property
    def _counting(self) -> QuorumLevel:
        return cast(QuorumLevel, self.inner)

    def give_back(self, messages: Collection[Message], *, last: bool) -> None:
        self._counting.give_back(messages, last=last)
        self._settled(Op.RETURN, messages)

    def mark_dead(self, messages: Collection[Message], why: int) -> None:
        self._counting.mark_dead(messages, why)
        for message in messages:
            self._journal.note(Op.DEAD, self.level, message.position, why)

    def purge(self) -> int:
        # At mirrors returned messages are pending, and a purge takes only what is ready.
        returned = [message.position for message in self._counting.returned()]
        self._journal.runs(Op.ACK, self.level, returned)
        return super().purge()

    def was_fetched(self, position: int) -> bool:
        return position < self.inner.undelivered_from or super().was_fetched(position)

    def notes(self, positions: Iterable[int]) -> list[tuple[Op, int, int]]:
        counts, marks = self._counting.counts, self._counting.dead_marks
        if not counts and not marks:
            return []
        positions = list(positions)
        return [
            *[(Op.COUNTED, at, counts[at]) for at in positions if at in counts],
            *[(Op.DEAD, at, marks[at]) for at in positions if at in marks],
        ]

    @staticmethod
    def _end_of(messages: Sequence[Message]) -> int:
        return max([message.position for message in messages]) + 1


class QuorumMirrorLevel(MirrorLevel):
    """`pending` are the messages that were fetched at least once, and are not acknowledged."""

    @property
    def _counting(self) -> QuorumLevel:
        return cast(QuorumLevel, self.backing)

    def unacked(self) -> None:
        """The leader does not tell which of the returned messages are out again."""

    def put_all_back(self) -> None:
        self.backing.requeue([self.pending[position] for position in sorted(self.pending)])
        self.pending.clear()
        self.passed_over.clear()

    def _carry_out(self, op: Op, start: int, stop: int) -> None:
        if op is Op.FETCH:
            self._fetch_new(start, stop)
        elif op is Op.TAKE:
            # Messages that were fetched before are pending already, and stay so.
            self._take(start, stop)
        elif op is Op.RETURN:
            there = [position for position in range(start, stop) if position in self.pending]
            self._counting.count_returns([position + self.delta for position in there])
        elif op is not Op.REQUEUE:
            super()._carry_out(op, start, stop)

    def _fetch_new(self, start: int, stop: int) -> None:
        """Fetch those of these positions that are not pending: the leader fetches them for the
        first time."""
        pending = self.pending
        while start < stop:
            if start in pending:
                start += 1
                continue
            end = start + 1
            while end < stop and end not in pending:
                end += 1
            self._fetch(start, end)
            start = end

    def note(self, op: Op, position: int, number: int) -> None:
        if not self.first <= position < self.upto:
            return
        if op is Op.COUNTED:
            self._counting.note_count(position + self.delta, number)
        else:
            self._counting.note_dead([position + self.delta], number)
