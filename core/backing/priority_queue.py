"""A backing queue with priorities: one backing queue per level.

Higher levels are fetched first; inside a level order is by position. A message above the highest
level counts as the highest, one without priority as level 0 (amqp_semantics.md section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

from warren.core.backing.backing_queue import (
    BackingQueue,
    BackingQueueStatus,
    MirroredLevel,
    OneByOne,
)
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms


class PriorityQueue(OneByOne):
    """Implements `BackingQueue` over one backing queue for each of 0..max_priority."""

    def __init__(self, max_priority: int, new_level: Callable[[int], BackingQueue]) -> None:
        self._levels = [new_level(level) for level in range(max_priority + 1)]
        self._fetch_order = self._levels[::-1]
        self.length = sum(level.length for level in self._levels)
        self.defers_confirms = self._levels[0].defers_confirms
        self.defers_transient = False
        self.expiring = any(level.expiring for level in self._levels)

    @property
    def levels(self) -> list[BackingQueue]:
        """The backing queues of the levels, from the lowest on."""
        return self._levels

    def replace_levels(self, levels: list[BackingQueue]) -> None:
        """Replace the levels with these, which have the same messages."""
        self._levels = levels
        self._fetch_order = levels[::-1]
        self.defers_confirms = levels[0].defers_confirms
        self.defers_transient = levels[0].defers_transient

    @property
    def ready_bytes(self) -> int:
        return sum(level.ready_bytes for level in self._levels)

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        self.length += 1
        self.level_of(envelope).publish(envelope, body, expires_at, confirms, publish_seq)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        level = self.level_of(envelope)
        return level.publish_delivered(envelope, body, expires_at, confirms, publish_seq)

    def fetch(self) -> Message | None:
        for level in self._fetch_order:
            if level.length:
                message = level.fetch()
                self._count()
                if message is not None:
                    return message
                if level.length:
                    # The level's messages may not be handed out yet, and nothing may overtake them.
                    break
        return None

    def fetch_many(self, limit: int) -> list[Message]:
        messages: list[Message] = []
        for level in self._fetch_order:
            if level.length:
                messages += level.fetch_many(limit - len(messages))
                if level.length or len(messages) == limit:
                    # These are all messages that were wanted, or that may be handed out now.
                    break
        self._count()
        return messages

    def fetch_to_drop(self) -> Message | None:
        for level in self._fetch_order:
            if level.length:
                message = level.fetch_to_drop()
                self._count()
                if message is not None:
                    return message
        return None

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired: list[Message] = []
        for level in self._fetch_order:
            expired += level.fetch_expired(now, limit - len(expired))
        self._count()
        return expired

    def next_expiry(self) -> float | None:
        due = [level.next_expiry() for level in self._levels]
        return min((at for at in due if at is not None), default=None)

    def load(self, messages: Iterable[Message]) -> list[Message]:
        """Load the messages in the order given, which is not that of the levels."""
        messages = list(messages)
        loaded: set[Message] = set()
        for level, of_level in self._by_level(messages):
            loaded.update(level.load(of_level))
        return [message for message in messages if message in loaded]

    def ack(self, messages: Collection[Message]) -> None:
        for level, of_level in self._by_level(messages):
            level.ack(of_level)

    def requeue(self, messages: Iterable[Message]) -> None:
        for level, of_level in self._by_level(messages):
            self.length += len(of_level)
            level.requeue(of_level)

    def take(self, level: int, positions: Sequence[int]) -> list[Message]:
        """Take ready messages out of the middle of a level (`MirroredLevel.take`)."""
        messages = cast(MirroredLevel, self._levels[level]).take(positions)
        self._count()
        return messages

    def purge(self) -> int:
        self.length = 0
        return sum(level.purge() for level in self._levels)

    @property
    def published(self) -> int:
        return sum([level.published for level in self._levels])

    @property
    def next_position(self) -> int:
        """The next position of the lowest level, whose messages wait longest."""
        return self._levels[0].next_position

    @property
    def undelivered_from(self) -> int:
        return self._levels[0].undelivered_from

    def status(self, now: float) -> BackingQueueStatus:
        """The status of all levels together: delta has a count, but no bounds."""
        levels = [level.status(now) for level in self._levels]
        targets = [level.target_ram_count for level in levels]

        def total(name: str) -> int:
            return sum([getattr(level, name) for level in levels])

        count = sum([level.persistent[0] for level in levels])
        octets = sum([level.persistent[1] for level in levels])
        return BackingQueueStatus(
            mode=levels[0].mode,
            q1=total("q1"),
            delta=(0, sum([level.delta[1] for level in levels]), 0),
            q4=total("q4"),
            len=self.length,
            target_ram_count=None if None in targets else sum([t for t in targets if t]),
            next_seq_id=total("next_seq_id"),
            avg_ingress_rate=sum([level.avg_ingress_rate for level in levels]),
            avg_egress_rate=sum([level.avg_egress_rate for level in levels]),
            avg_ack_ingress_rate=sum([level.avg_ack_ingress_rate for level in levels]),
            avg_ack_egress_rate=sum([level.avg_ack_egress_rate for level in levels]),
            ram_msg_count=total("ram_msg_count"),
            ram_ack_count=total("ram_ack_count"),
            ram_bytes=total("ram_bytes"),
            persistent=(count, octets),
            disk_reads=total("disk_reads"),
            disk_writes=total("disk_writes"),
        )

    def set_mode(self, mode: str) -> None:
        for level in self._levels:
            level.set_mode(mode)

    def stop(self) -> None:
        for level in self._levels:
            level.stop()

    def delete(self) -> None:
        self.length = 0
        for level in self._levels:
            level.delete()

    def _count(self) -> None:
        """Follow the levels after a fetch, which may have found that messages are lost."""
        self.length = sum([level.length for level in self._levels])

    def level_number(self, envelope: Envelope) -> int:
        """Which level messages with such an envelope are in."""
        return min(envelope.priority, len(self._levels) - 1)

    def level_of(self, envelope: Envelope) -> BackingQueue:
        """The backing queue of messages with such an envelope."""
        return self._levels[min(envelope.priority, len(self._levels) - 1)]

    def _by_level(
        self, messages: Iterable[Message]
    ) -> Iterable[tuple[BackingQueue, list[Message]]]:
        grouped: dict[int, list[Message]] = {}
        highest = len(self._levels) - 1
        for message in messages:
            grouped.setdefault(min(message.envelope.priority, highest), []).append(message)
        return [(self._levels[level], of_level) for level, of_level in grouped.items()]


def level_number(backing: BackingQueue, envelope: Envelope) -> int:
    """The level of a backing queue in which messages with such an envelope are."""
    return backing.level_number(envelope) if isinstance(backing, PriorityQueue) else 0
