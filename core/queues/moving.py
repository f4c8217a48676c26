"""What goes from one object to the next when a queue gets another leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from warren.core.messages.message import Envelope
from warren.core.messages.settlement import PublishConfirms

if TYPE_CHECKING:
    from warren.core.queues.consumers import Consumer


class Unanswered(Struct, frozen=True, gc=False):
    """A publish of this node that the leader has not answered; it is kept until it has.

    `number` is 0 where it was never sent to one. `sent_to` is the leader it was sent to last, and
    the epoch of that; `may_be_delivered` says that a leader before may have delivered it.

    The collector does not look at these, of which there may be tens of thousands: whoever keeps
    them lets go of them when they are answered, or refused.
    """

    number: int
    envelope: Envelope
    body: bytes
    confirms: PublishConfirms | None
    publish_seq: int
    sent_to: tuple[str, int] | None = None
    may_be_delivered: bool = False

    def for_leader(self, leader: str, epoch: int) -> Unanswered:
        """As it is for a leader that has not got it, or not yet."""
        if self.sent_to is None or self.sent_to == (leader, epoch):
            return replace(self, sent_to=None)
        return replace(self, sent_to=None, may_be_delivered=True)


class Moving(NamedTuple):
    """The consumers of this node's channels, and the publishes under way, in order."""

    consumers: list[Consumer]
    unanswered: list[Unanswered]
