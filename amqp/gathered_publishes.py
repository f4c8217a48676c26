"""Publishes that arrived one behind the other for the same queues, which get them together."""

from __future__ import annotations

from warren.amqp.channel import Channel
from warren.amqp.errors import PUBLISH_IDS
from warren.amqp.publishing import QUEUE_US, Route
from warren.core.errors import ChannelFault
from warren.core.messages.message import Envelope
from warren.core.messages.stock import Stock
from warren.core.queues.queue import Queue

ALONE_US = 5
"""The cost of handing over a publish by itself, in the microseconds of
`core/scheduling/turns.py`."""

GATHERED_MAX = 512
"""Publishes gathered at most before their queue gets them."""

SHARED_MAX = 256
RULED_MAX = 32
OBSERVED_MAX = 64
"""The same limits for publishes to several queues, for those that queues get one by one, and for
publishes that observers want; each is divided by the number of queues. After each batch it is
checked whether the turn is over."""


LARGE_BYTES = 4096
"""Persistent messages with bodies of this size are handed to several queues one after the other, as
the storage then writes them once; it writes small ones once for each queue anyway."""


class GatheredPublishes:
    """Publishes of one channel to the same queues, which are none until they are known.

    `lives_ms` is their expiration; None without one. They are added to `envelopes` and `bodies`,
    and handed over when there are as many as `room`; both are new lists afterwards. `route` is that
    of the last publish.
    """

    __slots__ = ("bodies", "channel", "envelopes", "lives_ms", "queues", "room", "route")

    def __init__(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], lives_ms: int | None
    ) -> None:
        self.channel = channel
        self.route = route
        self.queues = queues
        self.lives_ms = lives_ms
        self.envelopes: list[Envelope] = []
        self.bodies: list[bytes] = []
        self.room = self._find_room()

    def takes(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], lives_ms: int | None
    ) -> bool:
        """Whether publishes of this channel and route to these queues, with this expiration, may
        be handed over with these."""
        mine = self.route
        return (
            channel is self.channel
            and route.mandatory is mine.mandatory
            and lives_ms == self.lives_ms
            and (queues is self.queues or (route.exchange, queues) == (mine.exchange, self.queues))
        )

    def hand_over(self) -> bool:
        """Publish what was gathered. Returns whether to go on."""
        envelopes, bodies = self.envelopes, self.bodies
        count = len(bodies)
        if not count:
            return True
        self.envelopes, self.bodies = [], []
        channel, route = self.channel, self.route
        turns, topology = channel.connection.node.turns, channel.vhost.topology
        generation = topology.generation
        queues, exchange = self.queues, route.exchange
        shared = len(queues) > 1
        transaction = channel.transaction
        if transaction is not None and not route.is_observed and self.lives_ms is None:
            channel.published += count
            exchange.published_in += count
            transaction.publish_many(route, queues, envelopes, bodies)
            return not turns.over
        if (
            count == 1
            or self._one_by_one()
            or (shared and self._are_written_once(envelopes, bodies))
            or transaction is not None
        ):
            all_taken = self._hand_over_each(envelopes, bodies)
            return all_taken and not turns.over and topology.generation == generation
        quotas = channel.vhost.quotas
        if quotas is not None:
            stock = Stock(count, sum(map(len, bodies)))
            quotas.add(dict.fromkeys(queues, stock))
        channel.published += count
        exchange.published_in += count
        exchange.published_out += count * len(queues)
        confirms = channel.confirms
        first_seq = confirms.number_many(count) if confirms is not None else 0
        if shared:
            turns.spend(QUEUE_US * count * len(queues))
        if route.is_observed:
            publisher = channel.traced_as()
            channel.vhost.observation.published_many(publisher, envelopes, bodies, queues)
        answers = []
        for queue in queues:
            queue.published += count
            answers.append(queue.publish_many(envelopes, bodies, confirms, first_seq))
        if confirms is not None:
            confirms.record_many(first_seq, answers)
        return not turns.over and topology.generation == generation

    def _hand_over_each(self, envelopes: list[Envelope], bodies: list[bytes]) -> bool:
        """Publish one by one. False if one is refused, which closes the channel."""
        channel, route, queues = self.channel, self.route, self.queues
        channel.connection.node.turns.spend(ALONE_US * len(bodies))
        try:
            for envelope, body in zip(envelopes, bodies, strict=True):
                channel.hand_over(route, queues, envelope, body)
        except ChannelFault as error:
            # Dead letters of the publishes before it have used up a quota.
            channel.connection.close_channel(channel.number, error, PUBLISH_IDS)
            return False
        return True

    @staticmethod
    def _are_written_once(envelopes: list[Envelope], bodies: list[bytes]) -> bool:
        """Whether one of the messages should be on disk once, and not once for each queue."""
        return max(map(len, bodies)) >= LARGE_BYTES and any([one.persistent for one in envelopes])

    def _one_by_one(self) -> bool:
        """Whether a queue must look at each message by itself."""
        return self.lives_ms == 0 or any([queue.one_by_one for queue in self.queues])

    def _find_room(self) -> int:
        count = len(self.queues)
        most = GATHERED_MAX if count <= 1 else SHARED_MAX
        if self._one_by_one():
            most = RULED_MAX
        elif self.route.is_observed:
            most = OBSERVED_MAX
        return max(1, most // max(1, count))
