"""The messages of a queue that were published at the target and are not known to be gone.

    published -> confirmed by the target -> acknowledged at the source -> gone

An acknowledgement has no answer in AMQP. So a message counts as gone when the source has answered a
question that was asked on the same channel after the acknowledgement: a channel is served in order.

Deliveries are published in the order of their tags, so one acknowledgement can stand for all up to
the first that is not confirmed. After a refusal each is acknowledged by itself: refused messages
stay at the source.

A source that is killed may have forgotten acknowledgements that it has read: RabbitMQ writes them
to disk when it has time, or when it has 32,768 of them. So the last messages that are gone are
remembered, more of them than that.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

GONE_MAX = 65_536
"""How many messages that are gone are remembered: twice what RabbitMQ keeps unwritten."""


class MovedPublish(NamedTuple):
    delivery_tag: int
    header: bytes
    octets: int


class MovedAck(NamedTuple):
    delivery_tag: int
    multiple: bool


class MoveWindow:
    def __init__(self) -> None:
        self._unconfirmed: dict[int, MovedPublish] = {}
        self._confirmed: dict[int, MovedPublish] = {}
        self._acked: list[MovedPublish] = []
        self._gone: deque[MovedPublish] = deque(maxlen=GONE_MAX)
        self._refused = False
        self.unconfirmed_octets = 0

    def published(self, publish_tag: int, message: MovedPublish) -> None:
        self._unconfirmed[publish_tag] = message
        self.unconfirmed_octets += message.octets

    def confirmed(self, publish_tags: list[int]) -> None:
        for tag in publish_tags:
            message = self._settled(tag)
            self._confirmed[message.delivery_tag] = message

    def refused(self, publish_tag: int) -> None:
        """The target has refused the message, so it has certainly not taken it."""
        self._settled(publish_tag)
        self._refused = True

    def take_acks(self) -> list[MovedAck]:
        """The acknowledgements that are due; their messages count as acknowledged from here on."""
        if self._refused:
            tags = [*self._confirmed]
            acks = [MovedAck(tag, False) for tag in tags]
        else:
            first = next(iter(self._unconfirmed.values()), None)
            tags = [tag for tag in self._confirmed if first is None or tag < first.delivery_tag]
            acks = [MovedAck(max(tags), True)] if tags else []
        self._acked += [self._confirmed.pop(tag) for tag in tags]
        return acks

    @property
    def acked(self) -> int:
        """How many messages are acknowledged and not known to be gone; an argument for `gone`."""
        return len(self._acked)

    def gone(self, count: int) -> None:
        """The source answered a question that was asked when so many were acknowledged."""
        self._gone += self._acked[:count]
        del self._acked[:count]

    @property
    def awaits_confirms(self) -> bool:
        return bool(self._unconfirmed)

    def doubtful(self, *, source_forgets: bool = False) -> list[MovedPublish]:
        """Messages that may be at both brokers if a connection ended, or the source was killed."""
        gone = self._gone if source_forgets else ()
        return [*gone, *self._acked, *self._confirmed.values(), *self._unconfirmed.values()]

    def _settled(self, publish_tag: int) -> MovedPublish:
        message = self._unconfirmed.pop(publish_tag)
        self.unconfirmed_octets -= message.octets
        return message
