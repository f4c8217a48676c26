"""How a node describes a consumer to the leader of its queue, and how far readers of streams
are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from warren.core.field import to_plain
from warren.core.messages.message import Envelope, Message
from warren.core.ports import ContentCodec
from warren.core.queues.consumers import NO_LIMIT, Blocked, Consumer
from warren.core.queues.stream_arguments import STREAM_OFFSET

Who: TypeAlias = tuple[str, int, str]
"""A client: its connection, the number of its channel, and its user."""

TAKES_NOTHING = ~(Blocked.PREFETCH | Blocked.SOCKET)
"""What stops a consumer from taking messages that are under way to it."""


class Subscription(NamedTuple):
    """A consumer, by the number that its node has given it.

    A `prefetch` of 0 is no limit. `blocked`: something stops it at its node. `goes_on_at`: the
    offset at which a reader of a stream goes on that has begun at another leader; it is left out
    where there is none.
    """

    number: int
    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    arguments: dict[str, Any]
    blocked: bool
    client: Who
    goes_on_at: int | None = None

    @classmethod
    def of(cls, consumer: Consumer, number: int, *, blocked: bool) -> Subscription:
        return cls(
            number,
            consumer.tag,
            consumer.no_ack,
            consumer.exclusive,
            consumer.priority,
            0 if consumer.prefetch == NO_LIMIT else consumer.prefetch,
            to_plain(consumer.arguments),
            blocked,
            consumer.traced_as()[:3],
            consumer.goes_on_at,
        )

    def plain(self) -> Sequence[Any]:
        """Return the values to send: without an offset, in the form that earlier versions know."""
        return self if self.goes_on_at is not None else self[:-1]


class LastRead:
    """The last message that each reader of a stream here has got."""

    __slots__ = ("_envelopes",)

    def __init__(self) -> None:
        self._envelopes: dict[Consumer, Envelope] = {}

    def note(self, reader: Consumer, messages: Sequence[Message]) -> None:
        if messages:
            self._envelopes[reader] = messages[-1].envelope

    def forget(self, reader: Consumer) -> None:
        self._envelopes.pop(reader, None)

    def begins(self, reader: Consumer, offset: int | None) -> None:
        """Note at which offset a reader begins, as its leader says; None if not known yet."""
        if reader not in self._envelopes:
            reader.goes_on_at = offset

    def end(self, readers: Iterable[Consumer], codec: ContentCodec) -> None:
        """The queue gets another leader: note at which offset these readers go on there."""
        for reader in readers:
            if reader in self._envelopes:
                last = codec.headers(self._envelopes[reader].header)[STREAM_OFFSET]
                reader.goes_on_at = last.value + 1
        self._envelopes.clear()


def take_each(consumer: Consumer, messages: list[Message]) -> int:
    """Hand over messages until something stops the consumer; returns how many it got."""
    for taken, message in enumerate(messages):
        if consumer.blocked & TAKES_NOTHING:
            return taken
        consumer.take(message)
    return len(messages)
