"""Acknowledged messages that a node retains of queues that it mirrors, as their leaders do.

Before a leader tells its mirrors that a message is acknowledged, it tells them to retain it, and at
which position; each mirror that has the message then keeps it. A mirror is sent retained messages
that it lacks later (`retained_sync.py`).

A leader may have retained messages before its mirrors heard of that. If it is superseded by a
mirror in sync, that one still has these messages in the queue. So a node that learns how positions
have moved since (`renumbering.py`) drops its retained ones: otherwise they would be retained twice.

The log of retained messages has an id that follows from that of the queue. So it stays the same
when the copy is dropped, and when this node begins or ends to lead. The log is dropped when the
queue is deleted, when no policy lets the queue retain messages, and when the node starts without a
copy of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from warren.core.backing.backing_queue import RETAINED_LEVEL, BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.retained_log import RetainedLog, next_generation, retained_log
from warren.core.backing.stream_limits import StreamLimits
from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import Message
from warren.core.node import Node
from warren.core.ports import Clock, Key
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.retention import Retention
from warren.mirror.replication.copies.mirror import Retains
from warren.mirror.replication.levels.mirror_level import MirrorLevel

NewBacking: TypeAlias = Callable[[BackingSpec], BackingQueue]


class _Mirrored:
    """A queue of which this node has a copy, as `Retention` uses it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        _, self.vhost_name, self.name = key
        # An empty one: acknowledged messages leave the copy by an instruction of the leader.
        self.backing: BackingQueue = MemoryQueue()


class RetainedCopy(Retains):
    """Carries out the instructions of one mirror about retained messages."""

    def __init__(self, copies: RetainedCopies, queue_id: int) -> None:
        self._copies = copies
        self._queue_id = queue_id

    def next_is(self, position: int) -> None:
        self._copies.another_leads(self._queue_id)
        retention = self._copies.of_mirror(self._queue_id)
        if retention is None:
            # This node does not know the policy yet.
            self._copies.next_positions[self._queue_id] = position
        else:
            retention.log.skip_to(position)

    def retain(self, level: MirrorLevel, messages: Mapping[int, Message]) -> None:
        retention = self._copies.of_mirror(self._queue_id)
        if retention is not None and retention.active:
            retention.follow(level.backing, messages)

    def superseded(self, ranges: Iterable[Sequence[int]]) -> None:
        self._copies.another_leads(self._queue_id)
        self._copies.superseded(self._queue_id, ranges)


class RetainedCopies:
    """The retentions of queues that this node does not lead, by the ids of the queues.

    `next_positions` are those that leaders have told of queues that retain nothing here yet.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._retentions: dict[int, Retention] = {}
        self.next_positions: dict[int, int] = {}
        # The ranges of positions at which only superseded leaders had messages.
        self._superseded: dict[int, list[Sequence[int]]] = {}
        self._new_backing: NewBacking
        self._node: Node

    def begin(self, node: Node, new_backing: NewBacking) -> None:
        """`new_backing` opens the logs that are on disk."""
        self._new_backing = new_backing
        self._node = node

    def leads(self, queue_id: int) -> bool:
        """Whether the queue is led at this node."""
        return queue_id in self._node.local_queues

    def of(self, queue_id: int) -> Retention | None:
        """The retention of a queue at this node, whether it leads the queue or not."""
        led = self._node.local_queues[queue_id].retention if self.leads(queue_id) else None
        # A queue that is about to be led takes over what its mirror had when it is complete.
        return led or self._retentions.get(queue_id)

    def of_mirror(self, queue_id: int) -> Retention | None:
        """The retention of a queue that this node does not lead."""
        return self._retentions.get(queue_id)

    def of_copy(self, queue_id: int) -> RetainedCopy:
        return RetainedCopy(self, queue_id)

    def find(
        self,
        node: str,
        records: Iterable[tuple[Key, QueueRecord]],
        settings: Callable[[Key, QueueRecord], QueueSettings],
    ) -> None:
        """Open the logs of queues of which this node has a copy, before logs that are not open are
        dropped."""
        for key, record in records:
            is_here = node in record.mirrors or node in record.stores
            if is_here and record.leader != node:
                self.follow(key, record, settings(key, record).retention)

    def follow(self, key: Key, record: QueueRecord, limits: StreamLimits | None) -> None:
        """Follow the policy: the limits of retention may have changed."""
        retention = self._retentions.get(record.queue_id)
        if limits is not None and record.durable:
            if retention is None:
                retention = self._keep(key, record.queue_id, self._opened(record.queue_id))
            if not retention.active:
                # The leader may have known of it earlier, and have retained messages since then.
                retention.log.trimmed_below = 0
            retention.keep_within(limits)
        elif retention is not None:
            retention.cease()

    def _opened(self, queue_id: int) -> RetainedLog:
        """Open the log that the disk has; it goes on at the position that a leader has told."""
        spec = BackingSpec(queue_id + RETAINED_LEVEL, durable=True, mode="default", retained=True)
        log = retained_log(self._new_backing(spec), self._clock.call_soon)
        log.skip_to(self.next_positions.pop(queue_id, log.next_position))
        return log

    def _keep(self, key: Key, queue_id: int, log: RetainedLog) -> Retention:
        _drop(log, self._superseded.get(queue_id, ()))
        retention = Retention(_Mirrored(key), log, self._clock, self._node.turns)
        self._retentions[queue_id] = retention
        return retention

    def superseded(
        self, queue_id: int, ranges: Iterable[Sequence[int]], *, led: bool = False
    ) -> None:
        """Drop what is between these positions, and take nothing of it again.

        `led`: this node leads the queue.
        """
        known = list(ranges)
        if not known:
            self._superseded.pop(queue_id, None)
            return
        self._superseded[queue_id] = known
        retention = self.of(queue_id) if led else self.of_mirror(queue_id)
        if retention is not None:
            _drop(retention.log, known)

    def is_superseded(self, queue_id: int, position: int) -> bool:
        """Whether only a superseded leader had a message with this position."""
        ranges = self._superseded.get(queue_id, ())
        return any(start <= position < end for start, end in ranges)

    def begin_generation(
        self, queue: LocalQueue, later: int, since: int | None = None, *, lacks: bool = False
    ) -> Sequence[int]:
        """This node leads the queue from now on, and gives positions that no other leader gave.

        Returns the range of positions at which only the former leader may have retained messages,
        which this one still has in its queue; its own positions begin where the range ends. Nothing
        if the queue retains nothing. The range is empty if this leader `lacks` messages: then it
        need not have those in its queue. `since`: a leader that is back gave the positions from
        there on itself, and the range begins there if it finds nothing on its disk.
        """
        retention = self.of(queue.queue_id)
        if retention is None:
            told = self.next_positions.get(queue.queue_id)
            if told is not None:
                # The queue may retain something once more.
                self.next_positions[queue.queue_id] = next_generation(told, later)
            return ()
        log = retention.log
        tail, end = log.begin_generation(later)
        if lacks:
            return (end, end)
        superseded = (tail if log.length or since is None else since, end)
        self._superseded.setdefault(queue.queue_id, []).append(superseded)
        return superseded

    def take(self, queue_id: int) -> RetainedLog | None:
        """The log of a queue that this node leads from now on, or has led for a while; None if
        nothing has been retained yet."""
        retention = self._retentions.pop(queue_id, None)
        if retention is not None:
            return retention.let_go()
        return self._opened(queue_id) if queue_id in self.next_positions else None

    def another_leads(self, queue_id: int) -> None:
        """Another node leads. If an object still leads the queue here, it is about to go: take what
        it has retained, so that it retains nothing any more."""
        if self.leads(queue_id):
            queue = self._node.local_queues[queue_id]
            self._keep_of(queue.key, queue)

    def leads_no_more(self, key: Key, queue: LocalQueue, *, deleted: bool) -> None:
        """This node does not lead the queue any more, and may have a copy of it, unless it is
        deleted: then what is retained goes with it."""
        if deleted:
            self.delete(queue.queue_id)
        else:
            self._keep_of(key, queue)
            queue.retained = queue.retention = None

    def _keep_of(self, key: Key, queue: LocalQueue) -> None:
        """Go on with what the queue object has retained, unless that was done."""
        retained = queue.retained
        if retained is not None and not retained.ended:
            retention = self._keep(key, queue.queue_id, retained.let_go())
            if queue.retention is not None and queue.settings.retention is not None:
                retention.keep_within(queue.settings.retention)

    def delete(self, queue_id: int) -> None:
        """Delete the retained messages of a deleted queue."""
        retention = self._retentions.pop(queue_id, None)
        self._superseded.pop(queue_id, None)
        self.next_positions.pop(queue_id, None)
        if retention is not None:
            retention.delete()

    def stop(self) -> None:
        """The node stops."""
        for retention in self._retentions.values():
            retention.stop()


def _drop(log: RetainedLog, superseded: Iterable[Sequence[int]]) -> None:
    """Remove messages of which no later leader has heard. Their positions are not given again."""
    for start, end in superseded:
        log.drop(start, end)
        log.skip_to(max(end, log.next_position))


def retains_at(queue: LocalQueue) -> int | None:
    """The position at which a queue of this node retains the next message; None if it does not."""
    return None if queue.retention is None else queue.retention.log.next_position
