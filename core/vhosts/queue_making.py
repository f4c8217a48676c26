"""Makes the queue that a definition describes, of the type that its settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.due_queue import due_queue
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.stream_log import stream_log
from warren.core.backing.windowed_queue import IDS, WindowedQueue
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

    vhost: QueueOwner
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
    if settings.type is QUORUM:
        level = quorum_level(new_backing_queue(spec), lasting)
        return QuorumQueue(vhost, name, level=level, codec=codec, **declared)
    if settings.type is STREAM:
        backing = new_backing_queue(spec)
        log = stream_log(backing, vhost.clock.call_soon, vhost.clock.wall_time)
        return StreamingQueue(vhost, name, log=log, codec=codec, **declared)
    if settings.delays is not None:
        backing = due_queue(new_backing_queue(spec), vhost.turns.let_go)
        return DelayQueue(vhost, name, backing=backing, codec=codec, **declared)
    if settings.deduplication_window is not None:
        backing = WindowedQueue(
            settings.deduplication_window,
            lambda level: new_backing_queue(
                spec._replace(queue_id=spec.queue_id + level, beside=level == IDS)
            ),
            codec,
        )
        return DeduplicatingQueue(vhost, name, backing=backing, codec=codec, **declared)
    if settings.max_priority is None:
        backing = new_backing_queue(spec)
    else:
        backing = PriorityQueue(
            settings.max_priority,
            lambda level: new_backing_queue(spec._replace(queue_id=spec.queue_id + level)),
        )
    return Queue(vhost, name, backing=backing, **declared)
