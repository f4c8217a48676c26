"""The queues of other nodes that clients of this node use, and the frames of their leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from warren.core.ports import Clock
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.mirror.links.ports import Part
from warren.mirror.messages.calls import Call, Calls
from warren.mirror.messages.cargo import CarriedMessage, Unpacker
from warren.mirror.messages.post import Post, PostKind
from warren.mirror.remote import frame_heads as heads
from warren.mirror.remote.remote_queue import RemoteQueue
from warren.mirror.remote.settling import unpack_report

OWED_BYTES_HIGH = 16 << 20
OWED_BYTES_LOW = 8 << 20
"""Octets of publishes that other nodes have not answered: above `OWED_BYTES_HIGH`, publishers wait
until they are below `OWED_BYTES_LOW`."""


class RemoteQueues:
    """All remote queues of this node; implements `leaders.Leaders` for them.

    `on_flow` is called with whether publishers have to wait.
    """

    def __init__(
        self,
        post: Post,
        calls: Calls,
        clock: Clock,
        on_flow: Callable[[bool], None],
        origin: str,
    ) -> None:
        # The name under which leaders know the publishes of this run of this node.
        self.origin = origin
        self.clock = clock
        self._post = post
        self._calls = calls
        self._on_flow = on_flow
        self._queues: dict[int, RemoteQueue] = {}
        self._unpacker = Unpacker()
        self._numbered = 0
        self._owed = 0
        self._flow = False
        self._to_flush: dict[RemoteQueue, None] = {}
        post.handle(PostKind.PUBLISHED, self._published)
        post.handle(PostKind.DELIVER, self._delivered)
        post.handle(PostKind.CANCELLED, self._cancelled)
        post.watch(on_up=self._up, on_down=self._down)

    def queue(
        self,
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> RemoteQueue:
        """A new object that stands for a queue that another node leads."""
        queue = RemoteQueue(self, vhost, declared, settings)
        self._queues[queue.queue_id] = queue
        return queue

    def forget(self, queue: RemoteQueue) -> None:
        if self._queues.get(queue.queue_id) is queue:
            del self._queues[queue.queue_id]
        self._to_flush.pop(queue, None)

    def led_by(self, node: str) -> Iterable[RemoteQueue]:
        return [queue for queue in self._queues.values() if queue.leader == node]

    # For the queues

    def is_up(self, node: str) -> bool:
        return self._post.is_up(node)

    def send(self, node: str, kind: PostKind, *parts: Part) -> bool:
        return self._post.send(node, kind, *parts)

    def ask(self, node: str, method: str, *arguments: Any) -> Call:
        return self._calls.ask(node, method, *arguments)

    def next_numbers(self, count: int) -> range:
        first = self._numbered + 1
        self._numbered += count
        return range(first, first + count)

    def entry(self, packed: bytes) -> CarriedMessage:
        return self._unpacker.message(packed)

    def flush_soon(self, queue: RemoteQueue) -> None:
        if not self._to_flush:
            self.clock.call_soon(self._flush)
        self._to_flush[queue] = None

    def owe(self, octets: int) -> None:
        self._owed += octets
        if self._owed > OWED_BYTES_HIGH and not self._flow:
            self._flow = True
            self._on_flow(True)
        elif self._flow and self._owed < OWED_BYTES_LOW:
            self._flow = False
            self._on_flow(False)

    # Frames of leaders

    def _published(self, node: str, payload: bytes) -> None:
        queue = self._named(node, payload)
        if queue is not None:
            queue.answered(unpack_report(payload, heads.QUEUE.size))

    def _delivered(self, node: str, payload: bytes) -> None:
        queue = self._named(node, payload)
        if queue is not None:
            _, consumer = heads.unpacked(heads.CONSUMER, payload)
            queue.delivered(consumer, self._unpacker.messages(payload, heads.CONSUMER.size))

    def _cancelled(self, node: str, payload: bytes) -> None:
        queue = self._named(node, payload)
        if queue is not None:
            _, consumer = heads.unpacked(heads.CONSUMER, payload)
            queue.cancelled_by_leader(consumer)

    def _named(self, node: str, payload: bytes) -> RemoteQueue | None:
        """The queue that the frame is about; None if it was deleted meanwhile, or if the node no
        longer leads it as this node knows."""
        (queue_id,) = heads.unpacked(heads.QUEUE, payload)
        queue = self._queues.get(queue_id)
        return queue if queue is not None and queue.is_told_by(node) else None

    def _down(self, node: str) -> None:
        for queue in self.led_by(node):
            queue.leader_down()

    def _up(self, node: str) -> None:
        for queue in self.led_by(node):
            queue.leader_up()

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, {}
        for queue in to_flush:
            queue.flush()
