"""Makes the queue that a definition describes, of the type that its settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from warren.core.backing.backing_queue import RETAINED_LEVEL, BackingQueue, BackingSpec
from warren.core.backing.due_queue import due_queue
from warren.core.backing.handing_over import tell_next
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.retained_log import retained_log
from warren.core.backing.stream_log import stream_log
from warren.core.backing.windowed_queue import WindowedQueue
from warren.core.definitions.records import QueueRecord
from warren.core.field import Table
from warren.core.queues.deduplicating_queue import DeduplicatingQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.core.queues.queue_type import QUORUM, STREAM
from warren.core.queues.quorum_level import LastingEnvelopes, quorum_level
from warren.core.queues.quorum_queue import QuorumQueue
from warren.core.queues.retention import Retention
from warren.core.queues.stream_queue import StreamingQueue
from warren.core.vhosts.delay_queue import DelayQueue


class Makings(NamedTuple):
    """The parts of which a virtual host makes its queues."""

    vhost: QueueOwner[Queue]
    new_backing_queue: Callable[[BackingSpec], BackingQueue]
    lasting: LastingEnvelopes


class DeclaredQueue(NamedTuple):
    """A queue that is to be: its definition, and the connection that it belongs to, if any."""

    name: str
    record: QueueRecord
    exclusive_owner: object | None
    arguments: Table

    def named(self, settings: QueueSettings) -> dict[str, Any]:
        """The arguments with which every queue is made."""
        return {
            "durable": self.record.durable,
            "auto_delete": self.record.auto_delete,
            "exclusive_owner": self.exclusive_owner,
            "arguments": self.arguments,
            "queue_id": self.record.queue_id,
            "settings": settings,
        }


def made_queue(
    makings: Makings, of: DeclaredQueue, settings: QueueSettings, spec: BackingSpec
) -> Queue:
    """The queue that was declared so; `spec` says where its messages are."""
    vhost, new_backing_queue, lasting = makings
    codec = vhost.codec
    name, declared = of.name, of.named(settings)

    def new_level(level: int) -> BackingQueue:
        return new_backing_queue(spec.of_level(level, settings.remembers_ids))

    if settings.type is QUORUM:
        members = quorum_level(new_level(0), lasting)
        return QuorumQueue(vhost, name, level=members, codec=codec, **declared)
    if settings.type is STREAM:
        clock = vhost.clock
        log = stream_log(new_level(0), clock.call_soon, clock.wall_time)
        return StreamingQueue(vhost, name, log=log, codec=codec, **declared)
    if settings.delays is not None:
        due = due_queue(new_level(0), vhost.turns.let_go)
        return DelayQueue(vhost, name, backing=due, codec=codec, **declared)
    if settings.deduplication_window is not None:
        windowed = WindowedQueue(settings.deduplication_window, new_level, codec)
        return DeduplicatingQueue(vhost, name, backing=windowed, codec=codec, **declared)
    backing: BackingQueue
    if settings.max_priority is None:
        backing = new_level(0)
    else:
        backing = PriorityQueue(settings.max_priority, new_level)
    return Queue(vhost, name, backing=backing, **declared)


def follow_retention(makings: Makings, queue: Queue) -> None:
    """Have a queue retain what its settings say, or nothing any more.

    Its log stays open until the queue is gone: it may be wanted again, and is empty until then.
    """
    limits = queue.settings.retention if queue.survives and queue.is_here else None
    if limits is not None and queue.retained is None:
        queue.retained = _retention(makings, queue)
    queue.retention = None if limits is None else queue.retained
    if queue.retention is not None and limits is not None:
        queue.retention.keep_within(limits)
    elif queue.retained is not None:
        queue.retained.cease()


def _retention(makings: Makings, queue: Queue) -> Retention:
    clock = makings.vhost.clock
    spec = BackingSpec(queue.queue_id + RETAINED_LEVEL, durable=True, mode="default", retained=True)
    log = retained_log(makings.new_backing_queue(spec), clock.call_soon)
    tell_next(queue.backing, log.next_position)

    def on_full(full: bool) -> None:
        (queue.pause_delivery if full else queue.resume_delivery)()

    return Retention(queue, log, clock, makings.vhost.turns, on_full)
