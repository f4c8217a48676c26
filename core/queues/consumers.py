"""Consumers and the ring in which a queue serves them.

A consumer stands in its queue's ring exactly while nothing blocks it. The queue serves the
highest priority that has anyone in the ring, round robin inside a priority; who gets blocked
leaves, and comes back at the tail (amqp_semantics.md sections 4.4 and 5.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from warren.core.field import Table
from warren.core.messages.message import Envelope, HeldQueue, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.scheduling.waiting import Event


class Blocked:
    """The reasons why a consumer gets nothing at the moment, as bits of one number.

    They are plain integers: arithmetic with members of an enumeration takes twenty times as long,
    and every acknowledgement does it.
    """

    PREFETCH: Final = 1
    CHANNEL_LIMIT: Final = 2
    SOCKET: Final = 4
    NOT_ACTIVE: Final = 8
    COMMITS: Final = 16
    MOVING: Final = 32
    CAUGHT_UP: Final = 64


NO_LIMIT = 1 << 62


class ConsumedQueue(HeldQueue, Protocol):
    """The part of a queue that its consumers and their channels use."""

    ring: ConsumerRing
    settings: QueueSettings
    redelivered: int
    deleted: bool
    is_here: bool
    mirrored: bool

    @property
    def active_consumer(self) -> Consumer | None: ...

    def remove_consumer(self, consumer: Consumer) -> Event | None:
        """Unsubscribe. If this may have been the last consumer of an auto-delete queue of another
        node, returns the event that the queue is gone or known to stay."""
        ...

    def remove_consumers(self, consumers: Collection[Consumer]) -> Event | None:
        """`remove_consumer` for one or more."""
        ...

    def pause_delivery(self) -> None: ...

    def resume_delivery(self) -> None: ...


class Consumer(ABC):
    """One subscription to one queue. Subclasses send the messages to the client.

    `prefetch` is the largest number of unacknowledged messages, `NO_LIMIT` for none;
    `asked_prefetch` is what the client asked for, 0 for no limit. `goes_on_at`: the offset at which
    a reader goes on in a stream that has another leader.
    """

    limited = True

    is_local = True
    """Whether its channel is at this node."""

    __slots__ = (
        "arguments",
        "asked_prefetch",
        "blocked",
        "exclusive",
        "goes_on_at",
        "no_ack",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        queue: ConsumedQueue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: Table,
    ) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.asked_prefetch = prefetch
        self.prefetch = NO_LIMIT if no_ack or not prefetch else prefetch
        self.arguments = arguments
        self.unacked = 0
        self.blocked = 0
        self.goes_on_at: int | None = None

    @abstractmethod
    def send(self, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        """Hand over a message that needs no acknowledgement."""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Hand over a message and remember it as unacknowledged."""

    @abstractmethod
    def take_many(self, messages: list[Message]) -> None:
        """`take` each of these; there are no more than `capacity`."""

    def send_many(self, envelopes: Sequence[Envelope], bodies: Sequence[bytes]) -> None:
        """`send` each of these, which were not delivered before."""
        for envelope, body in zip(envelopes, bodies, strict=True):
            self.send(envelope, body, False)

    @abstractmethod
    def capacity(self) -> int:
        """How many messages it can take before it is blocked; at least one if it is in the ring."""

    @abstractmethod
    def traced_as(self) -> TracedClient:
        """The client behind the consumer, for observers."""

    @property
    def node(self) -> str:
        """The node of its channel, where that is not this one."""
        return ""

    @abstractmethod
    def cancelled(self) -> None:
        """The queue was deleted, and this subscription with it."""

    @abstractmethod
    def move_to(self, queue: ConsumedQueue) -> None:
        """Another object stands for the queue now; it knows nothing of earlier deliveries.

        Verdicts on those still go to the old object, which ignores them.
        """

    @property
    def wants_cancel(self) -> bool:
        """Whether it is to be cancelled when the queue gets another leader."""
        cancel = self.arguments.get("x-cancel-on-ha-failover")
        return cancel is not None and cancel.value is True

    def block(self, reason: int) -> None:
        """Leave the ring for this reason, if not out of it already."""
        if not self.blocked:
            self.queue.ring.remove(self)
        self.blocked |= reason

    def unblock(self, reason: int) -> bool:
        """Lift one reason. True if that brought the consumer back into the ring."""
        if not self.blocked & reason:
            return False
        self.blocked &= ~reason
        if self.blocked:
            return False
        self.queue.ring.add(self)
        return True

    def settled(self, count: int) -> None:
        """`count` of its messages were acknowledged, rejected or requeued."""
        self.unacked -= count
        if self.blocked & Blocked.PREFETCH and self.unacked < self.prefetch:
            self.unblock(Blocked.PREFETCH)


class ConsumerRing:
    """The unblocked consumers of a queue.

    `top` are those of the highest priority that has any; an empty deque when no consumer can be
    served.
    """

    __slots__ = ("_levels", "_order", "_ordered", "top")

    def __init__(self) -> None:
        self._levels: dict[int, deque[Consumer]] = {}
        # A heap of the priorities, negated, each of them once. There may be tens of thousands, so
        # one whose level is empty stays in it until it is the highest.
        self._order: list[int] = []
        self._ordered: set[int] = set()
        self.top: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        priority = consumer.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = deque()
            if priority not in self._ordered:
                self._ordered.add(priority)
                heappush(self._order, -priority)
            self._find_top()
        level.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
            self._find_top()

    def remove_all(self, gone: Collection[Consumer]) -> None:
        """Remove those of these consumers that are in the ring."""
        for priority in {consumer.priority for consumer in gone if not consumer.blocked}:
            left = deque([c for c in self._levels[priority] if c not in gone])
            if left:
                self._levels[priority] = left
            else:
                del self._levels[priority]
        self._find_top()

    def _find_top(self) -> None:
        levels, order = self._levels, self._order
        while order and -order[0] not in levels:
            self._ordered.remove(-heappop(order))
        self.top = levels[-order[0]] if order else deque()
