"""Makes the queue that a definition describes, of the type that its settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.due_queue import due_queue
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.stream_log import stream_log
from warren.core.backing.windowed_queue import WindowedQueue
from warren.core.queues.deduplicating_queue import DeduplicatingQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.core.queues.queue_type import QUORUM, STREAM
from warren.core.queues.quorum_level import LastingEnvelopes, quorum_level
from warren.core.queues.quorum_queue import QuorumQueue
from warren.core.queues.stream_queue import StreamingQueue
from warren.core.vhosts.delay_queue import DelayQueue


class Makings(NamedTuple):
    """What a virtual host makes its queues of."""

    vhost: QueueOwner[Queue]
    new_backing_queue: Callable[[BackingSpec], BackingQueue]
    lasting: LastingEnvelopes


def made_queue(
    makings: Makings, name: str, settings: QueueSettings, spec: BackingSpec, **declared: Any
) -> Queue:
    """The queue of this name. `spec` says where its messages are, `declared` what every queue has
    of its declaration."""
    vhost, new_backing_queue, lasting = makings
    declared["settings"] = settings
    codec = vhost.codec

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
