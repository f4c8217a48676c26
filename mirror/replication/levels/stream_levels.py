"""The log of a stream at its leader, and its copies at other nodes.

Theory. Nothing is taken out of a stream, so all that other nodes have to hear of are publishes, and
what is removed at the front. A message has the same position at every node, as its position is the
offset that clients know: a copy begins with the position that its leader names, and never moves.

The leader's log commits a message when its own store has it and so many mirrors that a confirm may
be sent; readers get what is committed. A node that begins to lead does not know which of its
messages were: until enough nodes have all of them, nothing is read.

A message that a copy is sent later arrived earlier: slices say how long ago (ARRIVED).

A node that was away goes on with the copy it has. Its leader names the messages that are right
(KEEP), and sends what follows them. If there are others behind them, of a leader that was
superseded, the node makes another copy and takes the right ones over, as for any queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from warren.core.backing.backing_queue import Listed, Peeked
from warren.core.backing.stream_limits import StreamLimits
from warren.core.backing.stream_log import StreamLog, Trim
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.mirror.replication.levels.instructions import Op
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import NOWHERE, BeginAnew, CopyLost, MirrorLevel


class StreamLeaderLevel(LeaderLevel):
    """Implements `TrimmingQueue` around the log of a stream."""

    __slots__ = ()

    @property
    def _log(self) -> StreamLog:
        return cast(StreamLog, self.inner)

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        self.publish_many((envelope,), (body,), None, confirms, publish_seq)

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        log, journal, count = self._log, self._journal, len(bodies)
        first = log.next_position
        batch = journal.publish_many(self.level, first, envelopes, bodies, None, False)
        if confirms is None:
            journal.without_confirms(self.level, first, batch, count)
        told = journal.confirm(log, first, True, batch, count)
        log.append(envelopes, bodies, confirms, first_seq, told=told)

    def doubt_backlog(self) -> None:
        log = self._log
        log.is_in_doubt = True
        # The barrier waits for a batch; this makes one where none was written so far.
        self._journal.note(Op.TRIM, self.level, log.first, 0)

        def answer(led_on: bool) -> None:
            # If another node leads, this log is a copy from now on, and has no readers.
            log.is_in_doubt = False
            if led_on:
                log.on_committed()

        self._journal.barrier(answer)

    def trim(self, limits: StreamLimits, wall_time: float) -> Trim:
        log = self._log
        first = log.first
        trimmed = log.trim(limits, wall_time)
        if log.first > first:
            self._journal.note(Op.TRIM, self.level, log.first, 0)
        return trimmed

    def may_be_elsewhere(self) -> bool:
        return self._journal.confirmation.is_elsewhere

    def is_out(self, message: Message, *, taken: bool) -> None:
        """Nothing to note: a message stays in the stream when a client has it."""

    # For the synchronisation of mirrors

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        return self._log.peek_written(start, count_max, bytes_max)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        return self._log.list_written(start, end, count_max)

    def oldest(self) -> int:
        return self._log.first

    def notes(self, positions: Iterable[int]) -> list[tuple[Op, int, int]]:
        return []

    def ages_s(self, positions: Sequence[int], wall_time: float) -> dict[int, int]:
        if not positions:
            return {}
        ages: dict[int, int] = {}
        ends = [self._age_s(at, wall_time) for at in (positions[0], positions[-1])]
        looked_at = positions if ends[0] != ends[1] else positions[:1]
        last: int | None = None
        for position in looked_at:
            age_s = self._age_s(position, wall_time)
            if age_s != last:
                ages[position] = last = age_s
        return ages

    def _age_s(self, position: int, wall_time: float) -> int:
        """0 for a message that is not on the disk yet: it has just come."""
        arrived_at = self._log.arrived_at(position)
        return 0 if arrived_at is None else max(0, int(wall_time - arrived_at))


class StreamMirrorLevel(MirrorLevel):
    """A copy of the log of a stream."""

    hands_out = False

    @property
    def _log(self) -> StreamLog:
        return cast(StreamLog, self.backing)

    def begin(self, first: int, upto: int) -> None:
        """Have the part between these positions from now on, and keep the messages from before."""
        log = self._log
        if log.next_position < first:
            log.trim_below(log.next_position)
            log.skip_to(first)
        elif log.next_position > first and upto == NOWHERE:
            raise BeginAnew(f"it ends at {log.next_position}, and is to begin with {first}")
        else:
            log.trim_below(first)
        self.first = first
        self.upto = upto

    def keep(self, start: int, count: int) -> None:
        listed = self._log.list_positions(start, start + count, count)
        if len(listed.positions) != count:
            raise CopyLost(f"it lacks some of {count} messages from {start} on")

    def has_place(self, position: int) -> bool:
        """Raises `BeginAnew` if another message has the position, which no leader knows of."""
        is_here = self.first <= position < self.upto
        if is_here and position < self._log.next_position:
            raise BeginAnew(f"it has another message at {position}")
        return is_here

    def go_on_from(self, position: int) -> None:
        if position < self._log.next_position:
            raise BeginAnew(f"it has messages behind the last one, from {position} on")
        super().go_on_from(position)

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
        self.go_on_from(position)
        self._log.append((envelope,), (body,), confirms, publish_seq, arrived_at=self.arrived_at)

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
        self._log.append(envelopes, bodies, confirms, first_seq, arrived_at=self.arrived_at)

    def note(self, op: Op, position: int, number: int) -> None:
        if op is not Op.TRIM:
            raise CopyLost(f"{op.name} is not for a stream")
        if self.first != NOWHERE:
            self._log.trim_below(position)
