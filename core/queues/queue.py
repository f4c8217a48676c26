"""A queue as the clients of this node use it, whichever node leads it.

A `LocalQueue` is led by this node, and has the messages. In a cluster, a `RemoteQueue`
(`mirror/remote/remote_queue.py`) stands for a queue that another node leads. This module has what
both have: the name and the arguments, the consumers of this node, and who may use the queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from warren.core.definitions.records import QueueRecord
from warren.core.errors import AccessRefused, ResourceLocked, locked_queue
from warren.core.field import Table
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import MessageObserver, TracedClient
from warren.core.messages.settlement import PublishConfirms, Settlement
from warren.core.messages.stock import Stock
from warren.core.ports import Key
from warren.core.queues.consumers import Consumer, ConsumerRing
from warren.core.queues.moving import Moving
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import QueueOwner
from warren.core.queues.queue_type import STREAM
from warren.core.scheduling.waiting import Event


class Fetched(NamedTuple):
    """The message that basic.get got, the number of messages still ready, and the queue that must
    hear the verdict."""

    message: Message | None
    left: int
    queue: Queue


class DeclaredQueue(NamedTuple):
    """The definition of a queue, and the connection that owns it if it is exclusive."""

    name: str
    record: QueueRecord
    exclusive_owner: object | None
    arguments: Table


class Queue(ABC):
    """One queue. `exclusive_owner` is the connection that owns it, if it is exclusive.

    The coroutines wait for the node that leads the queue, if that is another one.
    """

    is_here: bool
    """Whether this node leads the queue; then this is a `LocalQueue`."""

    __slots__ = (
        "_trace",
        "_vhost",
        "acked",
        "arguments",
        "auto_delete",
        "consumers",
        "declared_by",
        "deleted",
        "durable",
        "exclusive_owner",
        "given_back",
        "got",
        "got_no_ack",
        "got_nothing",
        "left_ready",
        "mirrored",
        "name",
        "published",
        "queue_id",
        "redelivered",
        "ring",
        "settings",
    )

    ring: ConsumerRing
    """The consumers that can be served."""

    consumers: list[Consumer]
    """All consumers, in the order in which they subscribed."""

    def __init__(
        self,
        vhost: QueueOwner[Queue],
        declared: DeclaredQueue,
        settings: QueueSettings,
    ) -> None:
        self._vhost = vhost
        self.queue_id = declared.record.queue_id
        self.name = declared.name
        self.durable = declared.record.durable
        self.auto_delete = declared.record.auto_delete
        self.exclusive_owner = declared.exclusive_owner
        self.arguments = declared.arguments
        self.settings = settings
        self.deleted = False
        # The number of messages that were ready when it was deleted.
        self.left_ready = 0
        # Whether another node may take the place of its leader.
        self.mirrored = False
        self.declared_by = ""
        # Counts since this object was made.
        self.published = self.redelivered = self.acked = self.given_back = 0
        self.got = self.got_no_ack = self.got_nothing = 0
        self._trace: MessageObserver | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Ready messages, as far as this node knows."""

    @property
    def vhost_name(self) -> str:
        return self._vhost.name

    @property
    def key(self) -> Key:
        """The key of its definition among those of the node."""
        return ("queue", self._vhost.name, self.name)

    @property
    def described(self) -> str:
        """The queue as error texts name it."""
        return f"queue '{self.name}' in vhost '{self._vhost.name}'"

    @property
    def is_stream(self) -> bool:
        return self.settings.type is STREAM

    def goes_on_at(self, consumer: Consumer) -> int | None:
        """The offset of the next message for this reader of a stream; None in other queues."""
        return None

    @property
    def survives(self) -> bool:
        """Whether the queue survives a restart; an exclusive one ends with its connection."""
        return self.durable and self.exclusive_owner is None

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of messages that clients publish to it; None if there is none."""
        return self._vhost.observer

    def trace_with(self, observer: MessageObserver | None) -> None:
        """Report to this observer what happens to its messages; None stops that."""
        self._trace = observer

    def stock(self) -> Stock:
        """What the queue holds, as far as this node knows: ready and pending messages, and the
        octets of ready ones."""
        return Stock(len(self), 0)

    # Access

    def check_access(self, connection: object) -> None:
        """Raise `ResourceLocked` if another connection owns the queue, and `AccessRefused` if it is
        a delay queue."""
        if self.settings.delays is not None:
            raise AccessRefused(
                f"{self.described} belongs to exchange '{self.settings.delays}' and cannot be used"
                " by clients"
            )
        if self.exclusive_owner is not None and self.exclusive_owner is not connection:
            raise self.locked()

    def locked(self) -> ResourceLocked:
        return locked_queue(self.name, self._vhost.name)

    # Publishing

    @property
    @abstractmethod
    def one_by_one(self) -> bool:
        """Whether the queue must look at each message by itself, so that `publish_many` is not for
        it."""

    @property
    def refuses_when_full(self) -> bool:
        """Whether the queue refuses messages when it has reached a length limit."""
        return self.settings.overflow != "drop-head" and self.settings.has_length_limit

    @abstractmethod
    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        """Hand the message to a waiting consumer, or keep it. The caller counts it (`published`).

        Answers `PENDING` only if `confirms` is given, which is later told `publish_seq`.
        """

    @abstractmethod
    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        """`publish` each of these messages, which are numbered from `first_seq` on. Without
        `confirms` the answer is empty.

        The messages must all have the same expiration above 0, or none, and the queue must not be
        `one_by_one`.
        """

    @abstractmethod
    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        """`publish` a message that another leader may have delivered already: it counts as
        redelivered."""

    # Consuming

    @abstractmethod
    async def subscribe(self, consumer: Consumer) -> None:
        """Add a consumer. It is blocked until the caller calls `deliver`, so that the reply to its
        client can go out first. Raises `AccessRefused` if the queue has an exclusive consumer."""

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> Event | None:
        """Unsubscribe. Its unacknowledged messages stay with the channel.

        Returns an event if another node deletes the queue for that reason; it happens when the
        queue is gone.
        """

    @abstractmethod
    def remove_consumers(self, consumers: Collection[Consumer]) -> Event | None:
        """`remove_consumer` for many, at less cost than one by one."""

    @property
    def active_consumer(self) -> Consumer | None:
        """The single active consumer, if this node leads the queue and it has one."""
        return None

    @property
    def has_ready(self) -> bool:
        """Whether a message waits at this node for a consumer."""
        return False

    @abstractmethod
    def deliver(self) -> None:
        """Hand ready messages to consumers that can take them, a slice at a time."""

    @abstractmethod
    def pause_delivery(self) -> None:
        """Deliver nothing until `resume_delivery`.

        Many messages will come back, in several turns; later ones must not overtake them.
        """

    @abstractmethod
    def resume_delivery(self) -> None:
        """End a pause: all messages have come back."""

    @abstractmethod
    async def get_one(self, no_ack: bool, client: TracedClient) -> Fetched:
        """Fetch one message for basic.get; it is unacknowledged unless `no_ack`.

        Raises `NotFound` if the queue is deleted meanwhile.
        """

    def envelope_got(self, message: Message, no_ack: bool) -> Envelope:
        """The envelope that a client is sent with a message that it got."""
        return message.envelope

    def _send(self, consumer: Consumer, envelope: Envelope, body: bytes, redelivered: bool) -> None:
        """Send a message to a consumer that acknowledges nothing."""
        consumer.send(envelope, body, redelivered)
        if self._trace is not None:
            self._trace.delivered(self, consumer.traced_as(), envelope, body, redelivered, True)

    # Verdicts

    @abstractmethod
    def ack(self, messages: Collection[Message]) -> None:
        """Remove these messages: they were acknowledged."""

    @abstractmethod
    def reject(self, messages: Iterable[Message]) -> None:
        """Remove these messages, which were rejected; the oldest becomes a dead letter first."""

    @abstractmethod
    def requeue(self, messages: list[Message], *, delivered: bool = True) -> None:
        """Put these messages back in their places. `delivered` false: they never reached their
        client.
        """

    @abstractmethod
    def abandoned(self, messages: list[Message]) -> None:
        """Take back the messages of a channel that has closed."""

    # Life

    @abstractmethod
    async def counts(self) -> tuple[int, int]:
        """The numbers of ready messages and of consumers. The call counts as use of the queue."""

    @abstractmethod
    async def empty(self) -> int:
        """Drop all ready messages; returns how many. Raises `NotFound` if the queue is deleted
        meanwhile."""

    @abstractmethod
    async def end(self, *, if_unused: bool, if_empty: bool) -> None:
        """Delete the queue; then `left_ready` says how many messages it had.

        Raises `PreconditionFailed` if a condition does not hold.
        """

    @abstractmethod
    def delete(self) -> None:
        """The definition is removed: end this object, forget the messages, cancel the consumers."""

    @abstractmethod
    def stop(self) -> None:
        """The node stops: have the next start find the queue as it is."""

    @abstractmethod
    def touch(self) -> None:
        """Begin the `expires` period anew: the queue was declared or asked for a message, or lost a
        consumer."""

    @abstractmethod
    def apply_settings(self, settings: QueueSettings) -> None:
        """Follow a changed policy (policies_and_parameters.md section 1.4)."""

    # Moving to another leader

    @abstractmethod
    def is_led_as(self, leader: str, epoch: int, here: bool) -> bool:
        """Whether this object can stand for the queue with this leader and epoch."""

    @abstractmethod
    def move_out(self) -> Moving:
        """Another object takes the place of this one: end, and return what the other one needs."""

    @abstractmethod
    def succeeded_by(self, queue: Queue) -> None:
        """`queue` takes the place of this object."""
