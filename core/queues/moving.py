"""The consumers and publishes that go from one object to the next when a queue gets another
leader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from warren.core.errors import AccessRefused
from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement
from warren.core.queues.consumers import ConsumedQueue, Consumer


class Unanswered(Struct, frozen=True, gc=False):
    """A publish of this node that the leader has not answered; it is kept until it has.

    `number` is 0 where it was never sent to one. `sent_to` is the leader it was sent to last, and
    the epoch of that; `may_be_delivered` says that a leader before may have delivered it.

    The collector does not look at these, of which there may be tens of thousands: the
    queue that keeps them lets go of them when they are answered, or refused.
    """

    number: int
    envelope: Envelope
    body: bytes
    confirms: PublishConfirms | None
    publish_seq: int
    sent_to: tuple[str, int] | None = None
    may_be_delivered: bool = False

    def for_leader(self, leader: str, epoch: int) -> Unanswered:
        """Return the publish for a leader that has not got it: `may_be_delivered` if it was sent to
        another leader before."""
        if self.sent_to is None or self.sent_to == (leader, epoch):
            return replace(self, sent_to=None)
        return replace(self, sent_to=None, may_be_delivered=True)


class Moving(NamedTuple):
    """The consumers of this node's channels, and the publishes under way, in order."""

    consumers: list[Consumer]
    unanswered: list[Unanswered]


class MovingQueue(ConsumedQueue, Protocol):
    """A queue that stays after all, or that takes the place of another object."""

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe. Raises `AccessRefused`."""
        ...

    def publish(
        self, envelope: Envelope, body: bytes, confirms: PublishConfirms | None, publish_seq: int
    ) -> Settlement: ...

    def publish_again(
        self, envelope: Envelope, body: bytes, confirms: PublishConfirms | None, publish_seq: int
    ) -> Settlement:
        """`publish` a message that another leader may have delivered."""
        ...


def publish_held(queue: MovingQueue, held: Iterable[Unanswered]) -> None:
    """Publish the messages that waited while the queue was held, and answer the publishers."""
    for publish in held:
        confirms, publish_seq = publish.confirms, publish.publish_seq
        send = queue.publish_again if publish.may_be_delivered else queue.publish
        answer = send(publish.envelope, publish.body, confirms, publish_seq)
        if confirms is not None and answer is not PENDING:
            # The publisher was told, when the message was held back, that an answer would come.
            (confirms.refuse if answer is REJECTED else confirms.settle)(publish_seq)


def move_consumers(consumers: Iterable[Consumer], queue: MovingQueue) -> None:
    """Have the consumers of the object that stood for the queue before consume from this one, or
    cancel them."""
    for consumer in consumers:
        if consumer.wants_cancel:
            consumer.cancelled()
            continue
        consumer.move_to(queue)
        try:
            queue.add_consumer(consumer)
        except AccessRefused:
            consumer.cancelled()
