"""What goes from one object to the next when a queue gets another leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from warren.core.message import Envelope
from warren.core.settlement import PublishConfirms

if TYPE_CHECKING:
    from warren.core.consumers import Consumer


class Unanswered(NamedTuple):
    """A publish of this node that the leader has not answered; it is kept until it has.

    `number` is 0 where it was never sent to one.
    """

    number: int
    envelope: Envelope
    body: bytes
    confirms: PublishConfirms | None
    publish_seq: int


class Moving(NamedTuple):
    """The consumers of this node's channels, and the publishes under way, in order."""

    consumers: list[Consumer]
    unanswered: list[Unanswered]
