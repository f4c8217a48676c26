"""A consumer of a queue that keeps what it is handed."""

from __future__ import annotations

from typing import Any

from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.queues.local_queue import LocalQueue

SOMEBODY = TracedClient("connection", 1, "user")


class Recorder(Consumer):
    """A consumer that keeps what it is handed."""

    def __init__(self, queue: LocalQueue, tag: str, **options: Any) -> None:
        chosen = {"no_ack": False, "exclusive": False, "priority": 0, "prefetch": 0} | options
        super().__init__(queue, tag, arguments={}, **chosen)
        self.got: list[tuple[bytes, bool]] = []
        self.held: list[Message] = []
        self.was_cancelled = False

    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        self.got.append((body, redelivered))

    def take(self, message: Message) -> None:
        self.got.append((message.body, message.redelivered))
        self.held.append(message)
        message.holder = self
        self.unacked += 1
        if self.unacked >= self.prefetch:
            self.block(Blocked.PREFETCH)

    def take_many(self, messages: list[Message]) -> None:
        assert len(messages) <= self.capacity()
        for message in messages:
            self.take(message)

    def capacity(self) -> int:
        return self.prefetch - self.unacked

    def traced_as(self) -> TracedClient:
        return SOMEBODY

    def move_to(self, queue: LocalQueue) -> None:
        raise AssertionError("there is no other node")

    def cancelled(self) -> None:
        self.was_cancelled = True
