"""What a job reads: the messages of a queue, or those that the queue has retained."""

from __future__ import annotations

from warren.core.errors import PreconditionFailed
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.retention import Retention
from warren.core.queues.stream_queue import StreamingQueue
from warren.mgmt.messages.looking import Source
from warren.mgmt.messages.plan import Action, JobPlan


def source_of(queue: LocalQueue, plan: JobPlan) -> Source:
    """What a job with this plan reads.

    Raises `PreconditionFailed` for a replay of a queue that has nothing to replay.
    """
    if plan.action is not Action.REPLAY:
        return queue
    source = replayed_from(queue)
    if source is None:
        raise PreconditionFailed(why_no_replay(queue))
    return source


def replayed_from(queue: LocalQueue) -> StreamingQueue | Retention | None:
    """What a replay of this queue reads; None if it neither is a stream nor retains messages."""
    return queue if isinstance(queue, StreamingQueue) else queue.retention


def why_no_replay(queue: Queue) -> str:
    return (
        f"queue '{queue.name}' has nothing to replay: it is no stream, and no policy has it retain"
        " what is acknowledged"
    )
