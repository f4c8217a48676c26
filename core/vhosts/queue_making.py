"""Makes the queue that a definition describes, of the type that its settings say."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from warren.core.backing.backing_queue import RETAINED_LEVEL, BackingQueue, BackingSpec
from warren.core.backing.due_queue import due_queue
from warren.core.backing.handing_over import tell_next
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.retained_log import retained_log
from warren.core.backing.stream_log import stream_log
from warren.core.backing.windowed_queue import WindowedQueue
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.deduplicating_queue import DeduplicatingQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.placement import Placement
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import LocalQueueOwner
from warren.core.queues.queue_type import QUORUM, STREAM
from warren.core.queues.quorum_level import LastingEnvelopes, quorum_level
from warren.core.queues.quorum_queue import QuorumQueue
from warren.core.queues.retention import Retention
from warren.core.queues.stream_queue import StreamingQueue
from warren.core.vhosts.delay_queue import DelayQueue


class Makings(NamedTuple):
    """The parts of which a virtual host makes its queues and exchanges."""

    vhost: LocalQueueOwner[Queue, LocalQueue]
    new_backing_queue: Callable[[BackingSpec], BackingQueue]
    lasting: LastingEnvelopes
    placement: Placement
    random: Random


def made_queue(
    makings: Makings, declared: DeclaredQueue, settings: QueueSettings, storage_id: int
) -> LocalQueue:
    """The queue that was declared so; the storage knows its messages by `storage_id`."""
    vhost, new_backing_queue = makings.vhost, makings.new_backing_queue
    survives = declared.record.durable and declared.exclusive_owner is None
    spec = BackingSpec(storage_id, survives, settings.queue_mode)

    def new_level(level: int) -> BackingQueue:
        return new_backing_queue(spec.of_level(level, settings.remembers_ids))

    if settings.type is QUORUM:
        members = quorum_level(new_level(0), makings.lasting)
        return QuorumQueue(vhost, declared, settings, members)
    if settings.type is STREAM:
        clock = vhost.clock
        log = stream_log(new_level(0), clock.call_soon, clock.wall_time)
        return StreamingQueue(vhost, declared, settings, log)
    if settings.delays is not None:
        due = due_queue(new_level(0), vhost.turns.let_go)
        return DelayQueue(vhost, declared, settings, due)
    if settings.deduplication_window is not None:
        windowed = WindowedQueue(settings.deduplication_window, new_level, vhost.codec)
        return DeduplicatingQueue(vhost, declared, settings, windowed)
    if settings.max_priority is None:
        return ClassicQueue(vhost, declared, settings, new_level(0))
    backing = PriorityQueue(settings.max_priority, new_level)
    return ClassicQueue(vhost, declared, settings, backing)


def follow_retention(makings: Makings, queue: LocalQueue) -> None:
    """Have a queue retain what its settings say, or nothing any more.

    Its log stays open until the queue is gone: it may be wanted again, and is empty until then.
    """
    limits = queue.settings.retention if queue.survives else None
    if limits is not None and queue.retained is None:
        queue.retained = _retention(makings, queue)
    queue.retention = None if limits is None else queue.retained
    if queue.retention is not None and limits is not None:
        queue.retention.keep_within(limits)
    elif queue.retained is not None:
        queue.retained.cease()


def _retention(makings: Makings, queue: LocalQueue) -> Retention:
    clock = makings.vhost.clock
    spec = BackingSpec(queue.queue_id + RETAINED_LEVEL, durable=True, mode="default", retained=True)
    log = retained_log(makings.new_backing_queue(spec), clock.call_soon)
    tell_next(queue.backing, log.next_position)

    def on_full(full: bool) -> None:
        (queue.pause_delivery if full else queue.resume_delivery)()

    return Retention(queue, log, clock, makings.vhost.turns, on_full)
