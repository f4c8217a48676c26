"""The interface between a queue and its backing queue, which keeps the messages.

A queue decides who gets a message, when it expires and what happens to it then. Its backing queue
keeps the messages in order, in memory or on disk. A message is *ready* from `publish` to `fetch`,
and *pending* from `fetch` or `publish_delivered` to `ack` or `requeue`.

A `MemoryQueue` has everything in memory. A `VariableQueue` moves messages to a disk and back; a
durable one sets `defers_confirms` and settles persistent publishes later. Messages that the disk
has lost count as ready until a fetch finds that out. So a fetch may return None, or fewer messages
than `length` promised, and `length` is right afterwards. If it is not 0 then, the messages must not
be handed out yet (`LocalQueue.withhold`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PENDING, SETTLED, PublishConfirms, Settlement


class BackingSpec(NamedTuple):
    """What a backing queue has to be made for.

    `queue_id` names the queue on disk; another queue of the same name has another one. It is a
    multiple of `LEVELS`: each level of a priority queue has a number of its own. `beside`: each
    message belongs to one of another backing queue that was published just before, and must be on
    disk with that or not at all. `retained`: it is for messages that were acknowledged in another
    queue of the node.
    """

    queue_id: int
    durable: bool
    mode: str
    beside: bool = False
    retained: bool = False

    def of_level(self, level: int, remembers_ids: bool) -> BackingSpec:
        """Return the spec of another level; this is the spec of the first one. The second level of
        a queue that `remembers_ids` is for the ids."""
        beside = remembers_ids and level == 1
        return self._replace(queue_id=self.queue_id + level, beside=beside)


QUEUE_BYTES = 1500
MESSAGE_BYTES = 200
"""The memory of an empty queue, and of a message besides its body, in octets."""


@dataclass(frozen=True, slots=True)
class BackingQueueStatus:
    """What management shows as `backing_queue_status`, under RabbitMQ's names, and a bit more.

    `delta` is (start, count, end). Messages that RabbitMQ has in q2 and q3 count as delta. A
    `target_ram_count` of None is infinity. `ram_bytes` are the bodies of all ready messages except
    those in delta, `persistent` is the number of persistent messages, ready or not, of a durable
    queue, and the octets of their bodies.
    """

    mode: str = "default"
    q1: int = 0
    q2: int = 0
    delta: tuple[int, int, int] = (0, 0, 0)
    q3: int = 0
    q4: int = 0
    len: int = 0
    target_ram_count: int | None = None
    next_seq_id: int = 0
    avg_ingress_rate: float = 0.0
    avg_egress_rate: float = 0.0
    avg_ack_ingress_rate: float = 0.0
    avg_ack_egress_rate: float = 0.0
    ram_msg_count: int = 0
    ram_ack_count: int = 0
    ram_bytes: int = 0
    persistent: tuple[int, int] = (0, 0)
    disk_reads: int = 0
    disk_writes: int = 0

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory that the queue takes."""
        messages = self.ram_msg_count + self.ram_ack_count
        return QUEUE_BYTES + MESSAGE_BYTES * messages + self.ram_bytes


LEVELS = 256
"""Levels a priority queue can have (amqp_semantics.md section 10)."""

RETAINED_LEVEL = LEVELS - 1
"""The level for retained messages. A queue with so many priorities that it needs this level itself
retains none."""


class Peeked(NamedTuple):
    """Ready messages that were looked at: all those from some start to `next_position`."""

    messages: list[Message]
    next_position: int


class Listed(NamedTuple):
    """Positions of ready messages: all those from some start to `next_position`.

    `safe`: a restart would find each of them again.
    """

    positions: list[int]
    next_position: int
    safe: bool


class BackingQueue(Protocol):
    """Keeps the messages of one queue, or of one level of it."""

    @property
    def length(self) -> int:
        """The number of ready messages; a plain attribute, because every publish reads it."""
        ...

    @property
    def defers_confirms(self) -> bool:
        """Whether a persistent publish with `confirms` is settled later, by `confirms.settle`."""
        ...

    @property
    def defers_transient(self) -> bool:
        """Whether every publish with `confirms` is settled later, persistent or not."""
        ...

    @property
    def expiring(self) -> bool:
        """Whether one of the messages found at the start may expire."""
        ...

    @property
    def ready_bytes(self) -> int:
        """Body bytes of the ready messages."""
        ...

    @property
    def published(self) -> int:
        """The number of messages published since this object was made."""
        ...

    @property
    def next_position(self) -> int:
        """The position that the next message will have."""
        ...

    @property
    def undelivered_from(self) -> int:
        """Messages before this position were delivered once or are gone; later ones were not."""
        ...

    def status(self, now: float) -> BackingQueueStatus:
        """Where the messages are; `now` is the time on the node's clock."""
        ...

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        """Append a ready message."""
        ...

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        """Keep a message that a consumer gets at once: it is pending without having been ready.

        Allowed only while no message is ready.
        """
        ...

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        """`publish` each of these messages, which are numbered from `first_seq` on."""
        ...

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        """`publish_delivered` each of these messages."""
        ...

    def fetch(self) -> Message | None:
        """Make the first ready message pending and return it, for a client."""
        ...

    def fetch_many(self, limit: int) -> list[Message]:
        """`fetch` up to `limit` times."""
        ...

    def fetch_to_drop(self) -> Message | None:
        """`fetch` a message that no client gets."""
        ...

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        """Make up to `limit` messages pending that expired by `now`, and return them.

        Only a message at the head counts, or at the head of its priority.
        """
        ...

    def next_expiry(self) -> float | None:
        """The earliest expiry among the messages that `fetch_expired` would look at first."""
        ...

    def load(self, messages: Iterable[Message]) -> list[Message]:
        """Read the bodies of pending messages back that were paged out.

        Returns the messages, without those whose bodies are lost. The bodies stay in memory until
        the turn is over.
        """
        ...

    def ack(self, messages: Collection[Message]) -> None:
        """Remove pending messages."""
        ...

    def requeue(self, messages: Iterable[Message]) -> None:
        """Make pending messages ready again, in their original positions."""
        ...

    def purge(self) -> int:
        """Drop all ready messages; returns how many."""
        ...

    def set_mode(self, mode: str) -> None:
        """Keep as many messages in memory as there is room for (`default`), or none (`lazy`)."""
        ...

    def stop(self) -> None:
        """The node stops; no further call may follow."""
        ...

    def delete(self) -> None:
        """The queue is deleted: forget all messages, ready and pending."""
        ...


class OneByOne(ABC):
    """Publishes many messages one by one, for a backing queue that has no shorter way."""

    __slots__ = ()

    @abstractmethod
    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None: ...

    @abstractmethod
    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message: ...

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        for seq, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True), first_seq):
            self.publish(envelope, body, expires_at, confirms, seq)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        return [
            self.publish_delivered(envelope, body, expires_at, confirms, seq)
            for seq, (envelope, body) in enumerate(zip(envelopes, bodies, strict=True), first_seq)
        ]


class ReturningQueue(BackingQueue, Protocol):
    """The backing queue of a queue that counts how often messages come back."""

    def give_back(self, messages: Collection[Message], *, last: bool) -> None:
        """Count a return of each pending message, and make it ready again: behind the messages that
        were returned before, or behind all that are ready."""
        ...

    def mark_dead(self, messages: Collection[Message], why: int) -> None:
        """Remember why these pending messages died, so that a restart does not deliver them."""
        ...


class MirroredLevel(BackingQueue, Protocol):
    """A backing queue of which other nodes may have copies; of a priority queue, each level.

    Code that fills the level before a queue has it sets `expiring`.
    """

    expiring: bool

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        """Look at ready messages from a position on, in order; at least at one if there is one.

        They stay ready, and the caller must not change them.
        """
        ...

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        """The positions of the first ready messages in [start, end), without reading them."""
        ...

    def take(self, positions: Sequence[int]) -> list[Message]:
        """Make the ready messages at these positions pending, and return them in order.

        Positions without a ready message are passed over. `requeue` puts the messages back in
        their places.
        """
        ...

    def skip_to(self, position: int) -> None:
        """Give the next message this position, which is not below the one it would have."""
        ...

    @property
    def delivered_below(self) -> int:
        """Messages before this position count as delivered once, or are gone: those before
        `undelivered_from`, and those that an earlier run or leader may have delivered."""
        ...

    def count_as_delivered(self, below: int) -> None:
        """Count every message before this position as delivered once."""
        ...

    @property
    def end_at_start(self) -> int:
        """The position behind the last message that the disk was found to know of when the node
        started, even if that message had left the queue; 0 where there was none."""
        ...


def answer_of(
    backing: BackingQueue, envelope: Envelope, confirms: PublishConfirms | None
) -> Settlement:
    """The answer of a backing queue to a publish that it was given."""
    if confirms is None or not backing.defers_confirms:
        return SETTLED
    return PENDING if envelope.persistent or backing.defers_transient else SETTLED


def answers_of(
    backing: BackingQueue, envelopes: Sequence[Envelope], confirms: PublishConfirms | None
) -> Sequence[Settlement]:
    """The answers of a backing queue to publishes that it was given."""
    if confirms is None:
        return ()
    if not backing.defers_confirms:
        return (SETTLED,) * len(envelopes)
    if backing.defers_transient:
        return (PENDING,) * len(envelopes)
    return [PENDING if envelope.persistent else SETTLED for envelope in envelopes]
