"""A backing queue in memory whose persistent messages outlive the process of its node.

The storage itself is simulated elsewhere (`storage_history.py`); here only its promises count: a
persistent message of a durable queue is settled when it is safe, some time after it was published,
and what was settled and not forgotten is found again in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from manual_clock import ManualTimer

from warren.core.backing.backing_queue import BackingSpec, OneByOne
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Clock

START_SHIFT = 24
"""Positions of a start of a node begin at its number times 2 to this power."""

Kept = dict[int, Message]
"""What the disk has of one queue, by position."""


class Disk:
    """Of one node. `sync_s()` is how long the next sync takes."""

    def __init__(self, sync_s: Callable[[], float]) -> None:
        self.sync_s = sync_s
        self.queues: dict[int, Kept] = {}

    def open(self, spec: BackingSpec, clock: Clock, incarnation: int) -> DiskQueue:
        """As in the real storage no position is used by two starts of a node."""
        queue = DiskQueue(self, spec, clock)
        start = max(incarnation, 1 + (queue.next_position >> START_SHIFT))
        queue.skip_to(start << START_SHIFT)
        return queue


class DiskQueue(MemoryQueue):
    """Implements `MirroredLevel`."""

    def __init__(self, disk: Disk, spec: BackingSpec, clock: Clock) -> None:
        super().__init__()
        self._disk = disk
        self._clock = clock
        self._queue_id = spec.queue_id
        self._unsynced: dict[int, tuple[Message, PublishConfirms | None, int]] = {}
        self._forgotten: set[int] = set()
        self._timer: ManualTimer | None = None
        self.defers_confirms = spec.durable
        self._kept = disk.queues.setdefault(spec.queue_id, {}) if spec.durable else {}
        for position in sorted(self._kept):
            message = self._kept[position]
            back = Message(message.envelope, message.body, position, message.expires_at)
            back.redelivered = True
            self._ready.append(back)
            self.length += 1
            self.ready_bytes += len(back.body)
            self._next_position = position + 1
            self.expiring |= back.expires_at is not None
        self._delivered_below = self._next_position

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        super().publish(envelope, body, expires_at, confirms, publish_seq)
        self._keep(self._ready[-1], confirms, publish_seq)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        message = super().publish_delivered(envelope, body, expires_at, confirms, publish_seq)
        self._keep(message, confirms, publish_seq)
        return message

    publish_many = OneByOne.publish_many
    publish_many_delivered = OneByOne.publish_many_delivered

    def ack(self, messages: Collection[Message]) -> None:
        self._forget(messages)

    def purge(self) -> int:
        self._forget([*self._ready, *[message for _, message in self._returned]])
        return super().purge()

    def delete(self) -> None:
        super().delete()
        self._settle_all()
        if self._timer is not None:
            self._timer.cancel()
        if self.defers_confirms:
            self._disk.queues.pop(self._queue_id, None)

    def _keep(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        if self.defers_confirms and message.envelope.persistent:
            self._unsynced[message.position] = (message, confirms, publish_seq)
            self._sync_later()

    def _forget(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.position in self._kept or message.position in self._unsynced:
                self._forgotten.add(message.position)
        if self._forgotten:
            self._sync_later()

    def _sync_later(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(self._disk.sync_s(), self._sync)

    def _sync(self) -> None:
        self._timer = None
        forgotten, self._forgotten = self._forgotten, set()
        for position, (message, _, _) in self._unsynced.items():
            if position not in forgotten:
                self._kept[position] = message
        for position in forgotten:
            self._kept.pop(position, None)
        self._settle_all()

    def _settle_all(self) -> None:
        unsynced, self._unsynced = self._unsynced, {}
        for _, confirms, publish_seq in unsynced.values():
            if confirms is not None:
                confirms.settle(publish_seq)


def backings_on(disks: dict[str, Disk]) -> Callable[[Any, BackingSpec], DiskQueue]:
    """What makes the backing queues of nodes, each on a disk of its own that takes 1 ms."""

    def new_backing(node: Any, spec: BackingSpec) -> DiskQueue:
        disk = disks.setdefault(node.name, Disk(lambda: 0.001))
        return disk.open(spec, node.clock, node.incarnation)

    return new_backing
