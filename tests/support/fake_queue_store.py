"""A `QueueStore` in memory that holds its user to the contract, and does what disks do.

It keeps copies, loses messages when told to, and settles confirms only when told that the disk
has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warren.core.backing.backing_queue import Listed
from warren.core.backing.queue_store import Batch, Recovered
from warren.core.messages.message import PAGED_OUT, Envelope, Message
from warren.core.messages.settlement import PublishConfirms


@dataclass
class Kept:
    """What the store has of a message."""

    envelope: Envelope
    body: bytes
    expires_at: float | None
    survives: bool
    lost: bool = False


class FakeQueueStore:
    """Implements `QueueStore`. `restarted` is what another one finds on the same disk."""

    def __init__(
        self,
        durable: bool = True,
        kept: dict[int, Kept] | None = None,
        first_position: int = 0,
        redelivered_below: int = 0,
    ) -> None:
        self.durable = durable
        self.redelivered_below = redelivered_below
        self.kept = dict(kept or {})
        self.reported_lost: set[int] = set()
        self.reads: list[int] = []
        self.paged = 0
        self.read_count = 0
        self.written_count = 0
        self.closed_at: int | None = None
        self.deleted = False
        self.end_at_start = max(self.kept, default=-1) + 1
        self.delivery_counts: dict[int, int] = {}
        self.dead_marks: dict[int, int] = {}
        self._first_position = first_position
        self._next_position = first_position
        self._unconfirmed: dict[int, tuple[PublishConfirms, int]] = {}
        self._removed_early: list[tuple[PublishConfirms, int]] = []

    @property
    def persistent(self) -> tuple[int, int]:
        bodies = [kept.body for kept in self.kept.values() if kept.envelope.persistent]
        return len(bodies), sum(map(len, bodies))

    # The disk's doings

    def lose(self, position: int) -> None:
        """The message cannot be read any more."""
        self.kept[position].lost = True

    def sync(self) -> None:
        """The disk has caught up: settle what waits for it."""
        waiting = [*self._removed_early, *self._unconfirmed.values()]
        self._removed_early.clear()
        self._unconfirmed.clear()
        for confirms, publish_seq in waiting:
            confirms.settle(publish_seq)

    def restarted(self) -> FakeQueueStore:
        """After `close` what was never delivered is known; after a crash it is not."""
        assert not self.deleted
        end = self._next_position
        again = FakeQueueStore(
            self.durable,
            {position: kept for position, kept in self.kept.items() if kept.survives},
            first_position=end + 10,
            redelivered_below=end if self.closed_at is None else self.closed_at,
        )
        counts = self.delivery_counts.items()
        again.delivery_counts.update({at: n for at, n in counts if at in again.kept})
        marks = self.dead_marks.items()
        again.dead_marks.update({at: why for at, why in marks if at in again.kept})
        return again

    # The contract

    def recovered(self) -> Recovered:
        positions = sorted(self.kept)
        return Recovered(
            len(positions),
            sum(len(kept.body) for kept in self.kept.values()),
            positions[0] if positions else self._first_position,
            positions[-1] + 1 if positions else self._first_position,
        )

    def first_position(self) -> int:
        return self._first_position

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
    ) -> None:
        for message, publish_seq in zip(messages, publish_seqs, strict=True):
            self.write(message, confirms, publish_seq)

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        assert self.durable and message.envelope.persistent
        assert message.position >= self._next_position, "positions only grow"
        self._next_position = message.position + 1
        self._keep(message, survives=True)
        if confirms is not None:
            self._unconfirmed[message.position] = (confirms, publish_seq)

    def page(self, messages: Sequence[Message]) -> None:
        positions = [message.position for message in messages]
        assert positions and positions == sorted(set(positions))
        for message in messages:
            assert not (self.durable and message.envelope.persistent)
            assert message.position not in self.kept, "it is there already"
            assert message.position >= self._first_position
            self._keep(message, survives=False)
        self.paged += len(messages)
        self._next_position = max(self._next_position, positions[-1] + 1)

    def _keep(self, message: Message, *, survives: bool) -> None:
        self._check_open()
        assert message.body is not PAGED_OUT
        self.written_count += 1
        self.kept[message.position] = Kept(
            message.envelope, message.body, message.expires_at, survives
        )

    def remove(self, messages: Iterable[Message]) -> None:
        self._check_open()
        for message in messages:
            self._remove(message.position)

    def remove_range(self, start: int, end: int) -> None:
        self._check_open()
        assert start <= end
        for position in [position for position in self.kept if start <= position < end]:
            self._remove(position)

    def _remove(self, position: int) -> None:
        self.kept.pop(position, None)
        if position in self._unconfirmed:
            self._removed_early.append(self._unconfirmed.pop(position))

    def counts_changed(self, positions: Iterable[int]) -> None:
        """The dictionary has them."""

    def read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        self._check_open()
        self.reads.append(start)
        messages: list[Message] = []
        lost = lost_bytes = read_bytes = 0
        for position in self._positions(start, end):
            kept = self.kept[position]
            if kept.lost:
                lost += 1
                lost_bytes += len(kept.body)
                self._report_lost(position)
                continue
            full = len(messages) >= count_max or read_bytes + len(kept.body) > bytes_max
            if messages and full:
                return Batch(messages, position, lost, lost_bytes)
            message = Message(kept.envelope, kept.body, position, kept.expires_at)
            message.redelivered = position < self.redelivered_below
            messages.append(message)
            self.read_count += 1
            read_bytes += len(kept.body)
        return Batch(messages, end, lost, lost_bytes)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        self._check_open()
        positions = self._positions(start, end)
        safe = all(self.kept[position].survives for position in positions[:count_max])
        if len(positions) > count_max:
            return Listed(positions[:count_max], positions[count_max], safe)
        return Listed(positions, end, safe)

    def read_body(self, message: Message) -> bytes | None:
        self._check_open()
        kept = self.kept.get(message.position)
        if kept is None:
            # It was lost, and that has been reported.
            return None
        if kept.lost:
            self._report_lost(message.position)
            return None
        return kept.body

    def has_written(self, message: Message) -> bool:
        kept = self.kept.get(message.position)
        return kept is not None and not kept.lost

    def next_expiry(self, start: int, end: int) -> float | None:
        positions = self._positions(start, end)
        return self.kept[positions[0]].expires_at if positions else None

    def expiries(self) -> Iterator[tuple[int, float | None]]:
        return ((position, kept.expires_at) for position, kept in self.kept.items())

    def close(self, delivered_below: int) -> None:
        self._check_open()
        assert delivered_below >= self.redelivered_below
        self.closed_at = delivered_below

    def delete(self) -> None:
        self._check_open()
        self.kept.clear()
        self._removed_early += self._unconfirmed.values()
        self._unconfirmed.clear()
        self.deleted = True

    def _positions(self, start: int, end: int) -> list[int]:
        return sorted(position for position in self.kept if start <= position < end)

    def _report_lost(self, position: int) -> None:
        del self.kept[position]
        self.reported_lost.add(position)

    def _check_open(self) -> None:
        assert self.closed_at is None and not self.deleted
