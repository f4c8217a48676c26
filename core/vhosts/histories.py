"""The exchanges of a virtual host that keep what passes them, for queues that are bound later.

A history is in the memory of the node through which messages came, whichever exchange, alternate
exchange or dead letter brought them. Every node of a cluster hears of a new binding and sends what
it has; so a queue gets each message once, and those of different nodes in no certain order. The
bindings that a node finds when it starts meet empty histories, so nothing comes twice.

A message of a transaction is kept when the transaction is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from warren.core.access.quotas import VhostQuotas
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange, RecentHistoryExchange
from warren.core.exchanges.recent_history import KeptMessage, is_kept
from warren.core.exchanges.routing import Routed
from warren.core.field import Table
from warren.core.log_line import log_event
from warren.core.messages.message import Envelope
from warren.core.messages.stock import NOTHING, Stock
from warren.core.ports import ContentCodec
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import run

log = logging.getLogger("warren.vhost")

SEND_US = 3
"""What it costs to give one message of a history to a queue, as `turns` counts it."""


class HistoryOwner(Protocol):
    """The calls of histories to the virtual host."""

    @property
    def name(self) -> str: ...

    @property
    def exchanges(self) -> Mapping[str, Exchange]: ...

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    @property
    def quotas(self) -> VhostQuotas | None: ...

    def routed(self, exchange: Exchange, routing_keys: Sequence[str], header: bytes) -> Routed: ...


class Histories:
    """The histories of one virtual host, which go with their exchanges."""

    def __init__(self, routes: HistoryOwner, codec: ContentCodec, turns: Turns) -> None:
        self._routes = routes
        self._codec = codec
        self._turns = turns
        # As long as there is no such exchange, publishes are not looked at.
        self._exchanges: set[str] = set()

    def add(self, exchange: Exchange) -> None:
        """Take note of an exchange that was declared, if it keeps a history."""
        if isinstance(exchange, RecentHistoryExchange):
            self._exchanges.add(exchange.name)

    def remove(self, exchange: Exchange) -> None:
        """Forget an exchange that is gone."""
        self._exchanges.discard(exchange.name)

    def keep(
        self, exchange: Exchange, routing_keys: Sequence[str], envelope: Envelope, body: bytes
    ) -> None:
        """Have every history on the way of a message, from this exchange on, keep it."""
        if self._exchanges:
            keeping = self._keep(exchange, routing_keys, KeptMessage(envelope, body))
            run(keeping, lambda result: result())

    async def _keep(
        self,
        exchange: Exchange,
        routing_keys: Sequence[str],
        kept: KeptMessage,
        sender: Exchange | None = None,
    ) -> None:
        """Keep a message; the sender of a history does not keep again what it has sent."""
        reached = await self._routed(exchange, routing_keys, kept)
        histories = _histories(reached.exchanges, sender)
        if histories and is_kept(self._headers(kept)):
            for history in histories:
                history.history.keep(kept.envelope, kept.body)

    async def _routed(
        self, exchange: Exchange, routing_keys: Sequence[str], kept: KeptMessage
    ) -> Routed:
        header = kept.envelope.header
        return await self._turns.answer(lambda: self._routes.routed(exchange, routing_keys, header))

    def _headers(self, kept: KeptMessage) -> Table:
        return self._codec.headers(kept.envelope.header)

    def bound(self, source: Exchange, binding: Binding) -> None:
        """Send what the exchange has kept to the end of a new binding."""
        if not isinstance(source, RecentHistoryExchange):
            return
        messages = source.history.messages()
        if not messages:
            return
        if binding.destination_kind == "queue":
            self._send_to_queue(source, self._routes.queues[binding.destination], messages)
        else:
            destination = self._routes.exchanges[binding.destination]
            sending = self._send_to_exchange(source, destination, messages)
            run(sending, lambda result: result())

    def _send_to_queue(
        self, source: Exchange, queue: Queue, messages: Sequence[KeptMessage]
    ) -> None:
        octets = sum([len(message.body) for message in messages])
        if self._may_send(source, {queue: Stock(len(messages), octets)}):
            self._turns.spend(SEND_US * len(messages))
            for message in messages:
                _send(queue, message)

    async def _send_to_exchange(
        self, source: Exchange, destination: Exchange, messages: Sequence[KeptMessage]
    ) -> None:
        ways: list[tuple[KeptMessage, list[Queue]]] = []
        wanted: dict[Queue, Stock] = {}
        for message in messages:
            envelope = message.envelope
            keys = envelope.routing_keys
            names = (await self._routed(destination, keys, message)).queues
            queues = [self._routes.queues[name] for name in names if name in self._routes.queues]
            ways.append((message, queues))
            for queue in queues:
                one = Stock(1, len(message.body))
                wanted[queue] = wanted.get(queue, NOTHING).plus(one)
        if not self._may_send(source, wanted):
            return
        for message, queues in ways:
            self._turns.spend(SEND_US * (1 + len(queues)))
            for queue in queues:
                _send(queue, message)
            envelope = message.envelope
            keys = envelope.routing_keys
            await self._keep(destination, keys, message, source)

    def _may_send(self, source: Exchange, wanted: Mapping[Queue, Stock]) -> bool:
        """Whether the quotas have room for all messages; the log says if they have not."""
        quotas = self._routes.quotas
        if quotas is None:
            return True
        try:
            quotas.take(wanted)
        except PreconditionFailed as refused:
            log_event(
                log,
                logging.WARNING,
                "history_not_sent",
                exchange=source.name,
                vhost=self._routes.name,
                reason=refused.text,
            )
            return False
        return True


def _histories(reached: Iterable[Exchange], sender: Exchange | None) -> list[RecentHistoryExchange]:
    return [
        exchange
        for exchange in reached
        if isinstance(exchange, RecentHistoryExchange) and exchange is not sender
    ]


def _send(queue: Queue, message: KeptMessage) -> None:
    if not queue.deleted:
        queue.published += 1
        queue.publish(message.envelope, message.body, None, 0)
