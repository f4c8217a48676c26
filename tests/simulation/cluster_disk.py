"""A backing queue in memory whose persistent messages outlive the process of its node.

The storage itself is simulated elsewhere (`storage_history.py`); here only its promises count: a
persistent message of a durable queue is settled when it is safe, some time after it was published,
and what was settled and not forgotten is found again in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fake_queue_store import FakeQueueStore, Kept

from warren.core.backing.backing_queue import BackingQueue, BackingSpec, Listed, OneByOne
from warren.core.backing.due_queue import DueQueue, due_queue
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.memory_retained_store import MemoryRetainedStore
from warren.core.backing.queue_store import Recovered, StoredBody
from warren.core.backing.retained_log import RetainedLog
from warren.core.backing.stream_log import StreamLog, stream_log
from warren.core.backing.stream_store import KeptInStream, MemoryStreamStore
from warren.core.messages.message import NO_HOLDER, Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Clock, Timer
from warren.core.vhosts import queue_making
from warren.mirror.replication.copies import copies_here, former_copies

START_SHIFT = 24
"""Positions of a start of a node begin at its number times 2 to this power."""

Ready = dict[int, Message]
"""What the disk has of one queue, by position."""

Acknowledged = dict[int, tuple[Message, float]]
"""And of what it has retained, with the time of the acknowledgement."""


class Disk:
    """Of one node. `sync_s()` is how long the next sync takes."""

    def __init__(self, sync_s: Callable[[], float]) -> None:
        self.sync_s = sync_s
        self.queues: dict[int, Ready] = {}
        # The position behind the last message that each queue ever had.
        self.ends: dict[int, int] = {}
        # What is delayed, by delay queue.
        self.delayed: dict[int, dict[int, Kept]] = {}
        # What streams have, with the time at which it arrived.
        self.streams: dict[int, Acknowledged] = {}
        # What was acknowledged and is retained, by queue.
        self.retained: dict[int, Acknowledged] = {}
        self._open_retained: list[DiskRetainedStore] = []
        self._open: list[DiskQueue] = []

    def open(self, spec: BackingSpec, clock: Clock, incarnation: int) -> DiskQueue | RetainedLog:
        """As in the real storage no position is used by two starts of a node."""
        if spec.retained:
            self._open_retained = [one for one in self._open_retained if one.clock is clock]
            store = DiskRetainedStore(self, spec, clock, incarnation)
            self._open_retained.append(store)
            return RetainedLog(store)
        queue = DiskQueue(self, spec, clock, incarnation)
        self._open = [one for one in self._open if one.clock is clock]
        self._open.append(queue)
        start = max(incarnation, 1 + (queue.next_position >> START_SHIFT))
        queue.skip_to(start << START_SHIFT)
        return queue

    def sync_all(self, clock: Clock) -> None:
        """What leaves a queue by being acknowledged is retained in the same batch of the log."""
        if self._open_retained:
            for one in (*self._open_retained, *self._open):
                if one.clock is clock:
                    one.sync()

    def lets_go(self) -> None:
        """Nothing will happen here any more: let the collector have the nodes that had this disk.

        It does not look at messages.
        """
        for queue in self._open:
            for message in queue.messages():
                message.holder = NO_HOLDER


class DiskRetainedStore(MemoryRetainedStore):
    """Retained messages that outlive the process of their node."""

    def __init__(self, disk: Disk, spec: BackingSpec, clock: Clock, incarnation: int) -> None:
        super().__init__(clock.call_soon)
        self._disk = disk
        self.clock = clock
        self._queue_id = spec.queue_id
        self._first = incarnation << START_SHIFT
        self._on_disk = disk.retained.setdefault(spec.queue_id, {})
        self._unsynced: dict[int, tuple[Message, float]] = {}
        self._removed: list[tuple[int, int]] = []
        self._told: list[tuple[PublishConfirms, int]] = []
        self._timer: Timer | None = None
        for position in sorted(self._on_disk):
            message, at = self._on_disk[position]
            self._keep(Message(message.envelope, message.body, position), at)

    def recovered(self) -> Recovered:
        octets = sum([len(message.body) for message, _ in self._on_disk.values()])
        return Recovered(len(self._on_disk), octets, 0, self.end_of_sequence())

    def end_of_sequence(self) -> int:
        return max(self._on_disk, default=-1) + 1

    def first_position(self) -> int:
        return self._first

    def write_retained(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms,
        stored: Sequence[StoredBody | None],
        acknowledged_at: Sequence[float],
        *,
        awaited: bool,
    ) -> None:
        for message, at in zip(messages, acknowledged_at, strict=True):
            assert message.position not in self._kept, f"{message.position} is taken"
            self._keep(message, at)
            self._unsynced[message.position] = (message, at)
        self._told.append((confirms, messages[-1].position))
        self._sync_later()

    def remove_range(self, start: int, end: int) -> None:
        super().remove_range(start, end)
        self._removed.append((start, end))
        self._sync_later()

    def delete(self) -> None:
        super().delete()
        self._disk.retained.pop(self._queue_id, None)

    def _sync_later(self) -> None:
        if self._timer is None:
            self._timer = self.clock.call_later(self._disk.sync_s(), self._sync)

    def _sync(self) -> None:
        self._timer = None
        self._disk.sync_all(self.clock)

    def sync(self) -> None:
        if not (self._unsynced or self._removed or self._told):
            return
        self._on_disk.update(self._unsynced)
        self._unsynced.clear()
        removed, self._removed = self._removed, []
        for start, end in removed:
            for position in [at for at in self._on_disk if start <= at < end]:
                if position not in self._kept:
                    del self._on_disk[position]
        told, self._told = self._told, []
        for confirms, publish_seq in told:
            confirms.settle(publish_seq)


class DiskQueue(MemoryQueue):
    """Implements `MirroredLevel`."""

    def __init__(self, disk: Disk, spec: BackingSpec, clock: Clock, incarnation: int) -> None:
        super().__init__()
        self.store_args = (disk, spec, clock, incarnation)
        self._disk = disk
        self.clock = clock
        self._queue_id = spec.queue_id
        self._unsynced: dict[int, tuple[Message, PublishConfirms | None, int]] = {}
        self._forgotten: set[int] = set()
        self._timer: Timer | None = None
        self.defers_confirms = spec.durable
        self._end_at_start = disk.ends.get(spec.queue_id, 0)
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

    @property
    def end_at_start(self) -> int:
        return self._end_at_start

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
            self._timer = self.clock.call_later(self._disk.sync_s(), self._sync)

    def _sync(self) -> None:
        self._timer = None
        self._disk.sync_all(self.clock)
        self.sync()

    def messages(self) -> list[Message]:
        """What is on disk, and what is to be."""
        return [*self._kept.values(), *[message for message, _, _ in self._unsynced.values()]]

    def sync(self) -> None:
        if not (self._unsynced or self._forgotten):
            return
        forgotten, self._forgotten = self._forgotten, set()
        for position, (message, _, _) in self._unsynced.items():
            self._disk.ends[self._queue_id] = position + 1
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


class DiskStore(FakeQueueStore):
    """A store whose persistent messages outlive the process of their node. Times are those of the
    clock on the wall there, as in the real one."""

    def __init__(self, disk: Disk, spec: BackingSpec, clock: Clock, incarnation: int) -> None:
        self._clock = clock
        self._sync_s = disk.sync_s
        self._on_disk = disk.delayed.setdefault(spec.queue_id, {})
        # The same for who opens it as it opens any queue, to look for what others lack.
        self._plain = disk.queues.setdefault(spec.queue_id, {})
        self._timer: Timer | None = None
        kept = {at: self._at_time_of_day(one, -1) for at, one in self._on_disk.items()}
        first = max(incarnation, 1 + (max(kept, default=0) >> START_SHIFT)) << START_SHIFT
        super().__init__(spec.durable, kept, first, redelivered_below=first)

    def _at_time_of_day(self, kept: Kept, way: int) -> Kept:
        if kept.expires_at is None:
            return kept
        ahead_s = self._clock.wall_time() - self._clock.now()
        return replace(kept, expires_at=kept.expires_at + way * ahead_s)

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        super().write(message, confirms, publish_seq)
        self._sync_later()

    def _remove(self, position: int) -> None:
        super()._remove(position)
        self._sync_later()

    def _sync_later(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(self._sync_s(), self.sync)

    def sync(self) -> None:
        self._timer = None
        self._on_disk.clear()
        self._plain.clear()
        for position, kept in sorted(self.kept.items()):
            if kept.survives:
                self._on_disk[position] = self._at_time_of_day(kept, 1)
                self._plain[position] = Message(kept.envelope, kept.body, position, kept.expires_at)
        super().sync()

    def delete(self) -> None:
        super().delete()
        self.sync()


class DiskStreamStore(MemoryStreamStore):
    """The store of a stream that outlives the process of its node."""

    def __init__(self, disk: Disk, spec: BackingSpec, clock: Clock, incarnation: int) -> None:
        super().__init__(clock.call_soon, clock.wall_time)
        self._clock = clock
        self._disk = disk
        self._queue_id = spec.queue_id
        self._on_disk = disk.streams.setdefault(spec.queue_id, {})
        self._unsynced: list[tuple[PublishConfirms | None, int]] = []
        self._timer: Timer | None = None
        for position in sorted(self._on_disk):
            message, at = self._on_disk[position]
            self._kept.append(KeptInStream(message, at))

    def recovered(self) -> Recovered:
        octets = sum([len(kept.message.body) for kept in self._kept])
        return Recovered(len(self._kept), octets, 0, self.end_of_sequence())

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        return super().list_positions(start, end, count_max)._replace(safe=True)

    def end_of_sequence(self) -> int:
        return self._kept[-1].message.position + 1 if self._kept else 0

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
        arrived_at: float | None = None,
    ) -> None:
        assert messages[0].position >= self.end_of_sequence(), "positions only grow"
        super().write_many(messages, None, (), arrived_at)
        self._unsynced += [(confirms, publish_seq) for publish_seq in publish_seqs]
        self._sync_later()

    def remove_range(self, start: int, end: int) -> None:
        super().remove_range(start, end)
        self._sync_later()

    def delete(self) -> None:
        super().delete()
        self._disk.streams.pop(self._queue_id, None)
        self._settle_all()
        if self._timer is not None:
            self._timer.cancel()

    def _sync_later(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(self._disk.sync_s(), self._sync)

    def _sync(self) -> None:
        self._timer = None
        self._on_disk.clear()
        self._on_disk.update(
            {kept.message.position: (kept.message, kept.arrived_at) for kept in self._kept}
        )
        self._settle_all()

    def _settle_all(self) -> None:
        unsynced, self._unsynced = self._unsynced, []
        for confirms, publish_seq in unsynced:
            if confirms is not None:
                confirms.settle(publish_seq)


def _stream_log(
    backing: BackingQueue,
    call_soon: Callable[[Callable[[], None]], object],
    wall_time: Callable[[], float],
) -> StreamLog:
    if isinstance(backing, DiskQueue):
        return StreamLog(DiskStreamStore(*backing.store_args))
    return stream_log(backing, call_soon, wall_time)


def _due_queue(backing: BackingQueue, let_go: Callable[[list[Any]], None]) -> DueQueue:
    if isinstance(backing, DiskQueue):
        return DueQueue(DiskStore(*backing.store_args), let_go)
    return due_queue(backing, let_go)


@contextmanager
def other_queues_on_disk() -> Iterator[None]:
    """Delay queues and streams are made of what is on these disks, too."""
    with ExitStack() as patches:
        for module in (queue_making, copies_here):
            patches.enter_context(patch.object(module, "due_queue", _due_queue))
        for module in (queue_making, copies_here, former_copies):
            patches.enter_context(patch.object(module, "stream_log", _stream_log))
        yield


def backings_on(disks: dict[str, Disk]) -> Callable[[Any, BackingSpec], DiskQueue | RetainedLog]:
    """What makes the backing queues of nodes, each on a disk of its own that takes 1 ms."""

    def new_backing(node: Any, spec: BackingSpec) -> DiskQueue | RetainedLog:
        disk = disks.setdefault(node.name, Disk(lambda: 0.001))
        return disk.open(spec, node.clock, node.incarnation)

    return new_backing
