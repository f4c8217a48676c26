"""Publishes that arrived one behind the other: each queue gets those for it together.

`Gathering` has the publishes that a connection has read and not handed over yet, in batches
(`GatheredPublishes`). One batch gathers as long as publishes are for the same queues. Publishes for
another queue may begin a second batch while the first one waits, and so on: a publisher that sends
to ten queues in turn then hands each of them every tenth message, in one call. Publishes on other
channels of the connection may join such batches. That is for publishes to single queues, so that
each queue gets its messages in the order in which they arrived. All else ends the waiting:
everything is handed over before it. The publishes have numbers by the order in which they arrived
on their channels (`ScatteredConfirms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from warren.amqp.channel import Channel
from warren.amqp.confirms import ChannelConfirms, ScatteredConfirms
from warren.amqp.errors import PUBLISH_IDS
from warren.amqp.publishing import QUEUE_US, Route
from warren.core.errors import ChannelFault
from warren.core.messages.message import Envelope
from warren.core.messages.settlement import Settlement
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


WAITING_MAX = 512
"""Publishes that wait at most while others are gathered for other queues."""

LARGE_BYTES = 4096
"""Persistent messages with bodies of this size are handed to several queues one after the other, as
the storage then writes them once; it writes small ones once for each queue anyway."""


class GatheredPublishes:
    """Publishes to the same queues, which are none until they are known.

    All have the same `expiration_ms`; None without one. They are added to `envelopes` and `bodies`,
    and handed over when there are as many as `room`; both are new lists afterwards. `channel` and
    `route` are those of the last publish. They are of one channel, unless other batches wait.
    `may_wait`: they may wait while others are gathered for other queues.

    For `Gathering`: `noted` is how many of the publishes it has noted in its order of arrival, and
    `waiters` have their confirms and numbers, once they have some.
    """

    __slots__ = (
        "bodies",
        "channel",
        "envelopes",
        "expiration_ms",
        "may_wait",
        "noted",
        "queues",
        "room",
        "route",
        "waiters",
    )

    def __init__(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], expiration_ms: int | None
    ) -> None:
        self.channel = channel
        self.route = route
        self.queues = queues
        self.expiration_ms = expiration_ms
        self.envelopes: list[Envelope] = []
        self.bodies: list[bytes] = []
        self.room = self._find_room()
        vhost = channel.vhost
        self.may_wait = (
            len(queues) == 1
            and channel.transaction is None
            and vhost.quotas is None
            and not route.is_observed
            and not self._one_by_one()
        )
        self.noted = 0
        self.waiters: list[tuple[ChannelConfirms, int]] = []

    def takes(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], expiration_ms: int | None
    ) -> bool:
        """Whether publishes of this channel and route to these queues, with this expiration, may
        be handed over with these."""
        return channel is self.channel and self._takes(route, queues, expiration_ms)

    def takes_beside(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], expiration_ms: int | None
    ) -> bool:
        """The same while other batches gather, when the channel may also be another one. Publishes
        with confirms are not handed over with those without."""
        alike = (channel.confirms is None) is (self.channel.confirms is None)
        return alike and channel.transaction is None and self._takes(route, queues, expiration_ms)

    def _takes(self, route: Route, queues: tuple[Queue, ...], expiration_ms: int | None) -> bool:
        mine = self.route
        return (
            route.mandatory is mine.mandatory
            and expiration_ms == self.expiration_ms
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
        if transaction is not None and not route.is_observed and self.expiration_ms is None:
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

    def hand_over_scattered(self) -> Sequence[Settlement]:
        """Publish what was gathered beside other batches, to the one queue. Returns its answers if
        there are `waiters`; the caller notes them."""
        envelopes, bodies, waiters = self.envelopes, self.bodies, self.waiters
        self.envelopes, self.bodies, self.waiters, self.noted = [], [], [], 0
        count = len(bodies)
        (queue,) = self.queues
        self.route.exchange.published_in += count
        self.route.exchange.published_out += count
        queue.published += count
        if count > 1 and not queue.one_by_one:
            return queue.publish_many(envelopes, bodies, ScatteredConfirms.of(waiters), 0)
        self.channel.connection.node.turns.spend(ALONE_US * count)
        if not waiters:
            for envelope, body in zip(envelopes, bodies, strict=True):
                queue.publish(envelope, body, None, 0)
            return ()
        each = zip(envelopes, bodies, waiters, strict=True)
        return [
            queue.publish(envelope, body, confirms, number)
            for envelope, body, (confirms, number) in each
        ]

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
        return self.expiration_ms == 0 or any([queue.one_by_one for queue in self.queues])

    def _find_room(self) -> int:
        count = len(self.queues)
        most = GATHERED_MAX if count <= 1 else SHARED_MAX
        if self._one_by_one():
            most = RULED_MAX
        elif self.route.is_observed:
            most = OBSERVED_MAX
        return max(1, most // max(1, count))


class Gathering:
    """The publishes that a connection has read and not handed over yet, in batches for different
    queues; those of `_waiting` wait while another one gathers."""

    __slots__ = ("_arrived", "_batch", "_count", "_waiting")

    def __init__(self) -> None:
        self._batch: GatheredPublishes | None = None
        self._waiting: dict[Queue, GatheredPublishes] = {}
        # While some wait: the publishes as they arrived, by the batch they are in, the channel they
        # came on, and how many there were in a row.
        self._arrived: list[tuple[GatheredPublishes, Channel, int]] = []
        self._count = 0

    def batch_for(
        self, channel: Channel, route: Route, queues: tuple[Queue, ...], expiration_ms: int | None
    ) -> GatheredPublishes | None:
        """The batch that gathers publishes of this channel and route, for these queues and with
        this expiration: the one at hand or another one, if need be after everything before was
        handed over. None if the turn is over then."""
        batch = self._batch
        if batch is None or not batch.takes(channel, route, queues, expiration_ms):
            batch = self._another_than(batch, channel, route, queues, expiration_ms)
            if batch is None and not self.hand_over():
                return None
            self._batch = batch = batch or GatheredPublishes(channel, route, queues, expiration_ms)
        batch.channel = channel
        batch.route = route
        return batch

    def _another_than(
        self,
        batch: GatheredPublishes | None,
        channel: Channel,
        route: Route,
        queues: tuple[Queue, ...],
        expiration_ms: int | None,
    ) -> GatheredPublishes | None:
        """The batch to gather next while this one waits, which may be the same one for another
        channel. None if it must not wait."""
        if batch is None or not batch.may_wait or len(queues) != 1:
            return None
        waiting = self._waiting
        waiting[batch.queues[0]] = batch
        other = waiting.get(queues[0]) or GatheredPublishes(channel, route, queues, expiration_ms)
        if not (other.may_wait and other.takes_beside(channel, route, queues, expiration_ms)):
            return None
        self._note_arrived(batch)
        return other if self._count < WAITING_MAX else None

    def _note_arrived(self, batch: GatheredPublishes) -> None:
        more = len(batch.bodies) - batch.noted
        batch.noted += more
        self._count += more
        self._arrived.append((batch, batch.channel, more))

    def hand_over(self) -> bool:
        """Publish everything that was gathered. Returns whether to go on."""
        batch = self._batch
        if batch is None:
            return True
        if not self._arrived:
            self._waiting.clear()
            return batch.hand_over()
        self._note_arrived(batch)
        self._waiting[batch.queues[0]] = batch
        arrived, self._arrived = self._arrived, []
        batches, self._waiting = self._waiting, {}
        self._count = 0
        topology = batch.channel.vhost.topology
        generation = topology.generation
        first_seq: dict[ChannelConfirms, int] = {}
        for one, channel, more in arrived:
            channel.published += more
            confirms = channel.confirms
            if confirms is not None:
                number = confirms.number_many(more)
                first_seq.setdefault(confirms, number)
                one.waiters += zip(repeat(confirms), range(number, number + more), strict=False)
        found: dict[ChannelConfirms, dict[int, Settlement]] = {one: {} for one in first_seq}
        for one in batches.values():
            waiters = one.waiters
            for (confirms, number), answer in zip(waiters, one.hand_over_scattered(), strict=False):
                found[confirms][number] = answer
        for confirms, answers in found.items():
            in_order = [answers[number] for number in sorted(answers)]
            confirms.record_many(first_seq[confirms], (in_order,))
        turns = batch.channel.connection.node.turns
        return not turns.over and topology.generation == generation
