"""What a node has retained of queues that it mirrors: acknowledged messages, each node its own.

A leader says of a message that is acknowledged whether it is to be retained, before it says that it
leaves the queue; each mirror that has the message keeps it then. Nobody sends retained messages to
others: a node has those that were acknowledged while it had a copy, or led.

The log of a queue has an id of its own, which follows from that of the queue. So it stays the same
whatever becomes of the copy, and when this node begins to lead, or does not lead any more. It is
dropped when the queue is deleted, when no policy has it retain anything, and at a start after which
the node has no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from warren.core.backing.backing_queue import RETAINED_LEVEL, BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.retained_log import RetainedLog, retained_log
from warren.core.backing.stream_limits import StreamLimits
from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import Message
from warren.core.ports import Clock, Key
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.retention import Retention
from warren.core.scheduling.turns import Turns
from warren.mirror.replication.mirror_level import MirrorLevel

NewBacking: TypeAlias = Callable[[BackingSpec], BackingQueue]


class _Mirrored:
    """A queue of which this node has a copy, as its retention knows it."""

    def __init__(self, key: Key) -> None:
        _, self.vhost_name, self.name = key
        # What is acknowledged leaves the copy when its leader says so.
        self.backing: BackingQueue = MemoryQueue()


class RetainedCopies:
    """The retentions of queues that this node does not lead, by the ids of the queues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._retentions: dict[int, Retention] = {}
        self._new_backing: NewBacking
        self._turns: Turns

    def begin(self, new_backing: NewBacking, turns: Turns) -> None:
        """`new_backing` opens what the disk has."""
        self._new_backing = new_backing
        self._turns = turns

    def find(
        self,
        node: str,
        records: Iterable[tuple[Key, QueueRecord]],
        settings: Callable[[Key, QueueRecord], QueueSettings],
    ) -> None:
        """Open the logs of queues of which this node has a copy, before those that nobody has
        opened are dropped."""
        for key, record in records:
            is_here = node in record.mirrors or node in record.stores
            if is_here and record.leader != node:
                self.follow(key, record, settings(key, record).retention)

    def follow(self, key: Key, record: QueueRecord, limits: StreamLimits | None) -> None:
        """What a queue is to retain may have changed."""
        retention = self._retentions.get(record.queue_id)
        if limits is not None and record.durable:
            (retention or self._open(key, record.queue_id)).keep_within(limits)
        elif retention is not None:
            retention.cease()

    def _open(self, key: Key, queue_id: int) -> Retention:
        spec = BackingSpec(queue_id + RETAINED_LEVEL, durable=True, mode="default", retained=True)
        backing = self._new_backing(spec)
        log = retained_log(backing, self._clock.call_soon, self._clock.wall_time)
        return self._keep(key, queue_id, log)

    def _keep(self, key: Key, queue_id: int, log: RetainedLog) -> Retention:
        retention = Retention(_Mirrored(key), log, self._clock, self._turns)
        self._retentions[queue_id] = retention
        return retention

    def retain(self, queue_id: int, level: MirrorLevel, messages: Sequence[Message]) -> None:
        """The leader retains these messages of the copy, which are about to be acknowledged."""
        retention = self._retentions.get(queue_id)
        if retention is not None and retention.active:
            retention.keep(level.backing, messages)

    def take(self, queue_id: int) -> RetainedLog | None:
        """What there is of a queue that this node leads from now on."""
        retention = self._retentions.pop(queue_id, None)
        return None if retention is None else retention.let_go()

    def leads_no_more(self, key: Key, queue: Queue, *, deleted: bool) -> None:
        """This node does not lead the queue any more, and may have a copy of it, unless it is
        deleted: then what is retained goes with it."""
        if deleted:
            return
        retained, queue.retained = queue.retained, None
        limits = None if queue.retention is None else queue.settings.retention
        queue.retention = None
        if retained is not None:
            retention = self._keep(key, queue.queue_id, retained.let_go())
            if limits is not None:
                retention.keep_within(limits)

    def delete(self, queue_id: int) -> None:
        """The queue is deleted."""
        retention = self._retentions.pop(queue_id, None)
        if retention is not None:
            retention.delete()

    def stop(self) -> None:
        """The node stops."""
        for retention in self._retentions.values():
            retention.stop()
