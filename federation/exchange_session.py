"""One pair of connections for a federated exchange: from the first login to the end of either.

At the upstream there are, under the names that RabbitMQ uses:

    exchange --bindings--> helper exchange (A or B) --> queue --> this session --> exchange here

The helper stops messages that were here already or came through too many brokers. It has the
bindings that the exchange has here. Each session makes a new helper beside the old one, if there is
one, binds it, and then deletes the old one. So bindings are gone that were removed here while no
session ran, and no message is missed meanwhile. (Both helpers lead to the same queue, which takes a
message once.)

Queue and helper stay when a session ends: messages published meanwhile wait in the queue. They are
deleted when the federation ends (`clean_up`); a queue that is not empty stays even then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from pamqp import commands

from warren.client.connection import BrokerTarget, ChannelFailed, ClientConnection, ConnectionFailed
from warren.client.events import Delivered
from warren.core.exchanges.exchange import Exchange, FederationUpstreamExchange
from warren.core.exchanges.federation_hops import (
    DOWNSTREAM_NAME,
    DOWNSTREAM_VHOST,
    MAX_HOPS,
    HopBroker,
    HopRule,
)
from warren.core.field import Field, Table, long, longstr, to_octets
from warren.federation.bindings import Carried, Way, carried
from warren.federation.marking import Marker
from warren.federation.session import (
    COMMANDS,
    LinkEnds,
    LinkObserver,
    exists,
    limit_deliveries,
    log,
    opened,
    until_one_ends,
    upstream_opened,
)
from warren.federation.status import WantedLink
from warren.shovel.flow import CHANNEL, Flow
from warren.shovel.transfer import AckMode, Transfer

HELPER_TYPE: Final = FederationUpstreamExchange.type
PLAIN_HELPER_TYPE: Final = "fanout"
"""The helper's type at upstreams that lack `HELPER_TYPE`; then this node drops the messages that
the helper would stop."""

PURPOSE: Final = "x-internal-purpose"
FEDERATION: Final = "federation"

COMMAND_INVALID: Final = 503
PRECONDITION_FAILED: Final = 406

BINDINGS_AT_A_TIME: Final = 100
"""Bindings requested before the first of them is answered."""

CHECK_S = 30.0
"""The time between checks whether the exchanges needed at the upstream still exist."""


class HelperTypeUnknown(Exception):
    """The upstream does not have the exchange type of helpers."""


class ExchangeSession:
    """One session of an exchange's link. `exchange` returns the exchange here as it is now; None if
    it no longer exists."""

    def __init__(
        self,
        wanted: WantedLink,
        observer: LinkObserver,
        *,
        exchange: Callable[[], Exchange | None],
        marker: Marker,
        helper_type: str,
    ) -> None:
        self._wanted = wanted
        self._upstream = wanted.upstream
        self._observer = observer
        self._exchange = exchange
        self._here = HopBroker(wanted.cluster, wanted.vhost)
        self._marker = marker
        self._helper_type = helper_type
        self._rule = HopRule(self._here, wanted.upstream.hops_max)
        self._flow = Flow(observer.progressed, log)
        self._changed = asyncio.Event()
        # The bindings of the helper.
        self._bound: Carried = {}
        self._source: ClientConnection
        self._destination: ClientConnection
        self._uri: str
        self._there: HopBroker

    def look_again(self) -> None:
        """Carry the bindings here to the upstream: they have changed."""
        self._changed.set()

    async def run(self, ends: LinkEnds) -> None:
        """Get messages until either end fails.

        Raises `ConnectionFailed`, `ChannelFailed`, ValueError, `SessionEnded`, and
        `HelperTypeUnknown`.
        """
        async with opened(ends, self._flow, self._upstream.ack_mode) as both:
            self._source, self._destination, self._uri, self._there = both
            queue = await self._set_up()
            transfer = Transfer(self._upstream.ack_mode, in_order=False, limit=None)
            await limit_deliveries(self._source, self._upstream)
            self._flow.begin(self._source, self._destination, transfer, self._publish)
            await self._source.ask(
                CHANNEL,
                commands.Basic.Consume,
                queue=queue,
                no_ack=self._upstream.ack_mode is AckMode.NO_ACK,
            )
            self._observer.running(self._uri)
            await until_one_ends(self._flow.finish(), self._keep_bindings(), self._keep_looking())

    async def clean_up(self, targets: Sequence[BrokerTarget]) -> None:
        """The federation has ended: delete its helper exchanges and its queue at the upstream.

        A queue with messages stays. Raises what `run` does.
        """
        async with upstream_opened(targets, self._flow) as (source, target):
            self._source, self._there = source, HopBroker("", target.login.vhost)
            for helper in ("A", "B"):
                await self._delete_helper(helper)
            try:
                await source.ask(COMMANDS, commands.Queue.Delete, queue=self._queue, if_empty=True)
            except ChannelFailed as failure:
                if failure.code != PRECONDITION_FAILED:
                    raise

    # Setting up

    @property
    def _queue(self) -> str:
        wanted = self._wanted
        name = f"federation: {wanted.remote_name} -> {self._here.cluster}"
        if self._there.vhost != wanted.vhost:
            return f"{name}:{wanted.vhost}:{wanted.name}"
        return name if wanted.remote_name == wanted.name else f"{name}:{wanted.name}"

    def _helper(self, which: str) -> str:
        return f"{self._queue} {which}"

    async def _set_up(self) -> str:
        """Make the objects that are missing at the upstream; returns the queue to consume from."""
        source, queue = self._source, self._queue
        exchange = self._exchange()
        if exchange is not None and not await exists(source, self._wanted.remote_name):
            await self._ask(
                commands.Exchange.Declare,
                exchange=self._wanted.remote_name,
                exchange_type=exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                arguments=self._marker.encode_table(exchange.arguments),
            )
        arguments = {**self._upstream.queue_arguments, PURPOSE: FEDERATION}
        await self._ask(
            commands.Queue.Declare,
            queue=queue,
            durable=True,
            arguments=self._marker.encode_table(_table(arguments)),
        )
        await self._renew_helper(queue)
        return queue

    async def _renew_helper(self, queue: str) -> None:
        """Put a new helper in the place of the old one, if there is one."""
        there = {which: await exists(self._source, self._helper(which)) for which in ("A", "B")}
        if all(there.values()):
            # An earlier session ended while both existed, and either may lack bindings. A gets all
            # of them, and B is deleted.
            self._bound = {}
            await self._carry("A")
            await self._bind_to_queue("A", queue)
            await self._delete_helper("B")
        new, old = ("B", "A") if there["A"] else ("A", "B")
        await self._declare_helper(new)
        self._bound = {}
        self._which = new
        await self._carry(new)
        await self._bind_to_queue(new, queue)
        await self._delete_helper(old)

    async def _declare_helper(self, which: str) -> None:
        arguments = {
            MAX_HOPS: long(self._upstream.hops_max),
            DOWNSTREAM_NAME: longstr(self._here.cluster),
            DOWNSTREAM_VHOST: longstr(self._here.vhost),
            PURPOSE: longstr(FEDERATION),
        }
        try:
            await self._ask(
                commands.Exchange.Declare,
                exchange=self._helper(which),
                exchange_type=self._helper_type,
                durable=True,
                internal=True,
                auto_delete=True,
                arguments=self._marker.encode_table(arguments),
            )
        except ConnectionFailed as failure:
            if failure.code == COMMAND_INVALID and self._helper_type == HELPER_TYPE:
                raise HelperTypeUnknown(failure.text) from failure
            raise

    async def _bind_to_queue(self, which: str, queue: str) -> None:
        await self._ask(
            commands.Queue.Bind, queue=queue, exchange=self._helper(which), routing_key=""
        )

    async def _delete_helper(self, which: str) -> None:
        await self._ask(commands.Exchange.Delete, exchange=self._helper(which))

    async def _ask(self, kind: Any, **arguments: Any) -> Any:
        return await self._source.ask(COMMANDS, kind, **arguments)

    # Bindings

    async def _keep_bindings(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._carry(self._which)

    async def _carry(self, which: str) -> None:
        """Give the helper the bindings that the exchange has here."""
        exchange = self._exchange()
        if exchange is None:
            return
        helper = f"{self._here.vhost}:{self._wanted.name} {which}"
        way = Way(self._here, self._there, helper, self._upstream.hops_max)
        wanted = carried(exchange.bindings, way)
        new = [(commands.Exchange.Bind, key, wanted[key]) for key in wanted.keys() - self._bound]
        gone = [
            (commands.Exchange.Unbind, key, self._bound[key]) for key in self._bound.keys() - wanted
        ]
        self._bound = wanted
        changes = [*new, *gone]
        for start in range(0, len(changes), BINDINGS_AT_A_TIME):
            asked = (
                self._ask(
                    kind,
                    destination=self._helper(which),
                    source=self._wanted.remote_name,
                    routing_key=routing_key,
                    arguments=self._marker.encode_table(arguments),
                )
                for kind, (routing_key, _), arguments in changes[start : start + BINDINGS_AT_A_TIME]
            )
            await asyncio.gather(*asked)

    async def _keep_looking(self) -> None:
        """Raise `ChannelFailed` when an upstream exchange was deleted: without it no messages
        come."""
        while True:
            await asyncio.sleep(CHECK_S)
            for exchange in (self._wanted.remote_name, self._helper(self._which)):
                await self._ask(commands.Exchange.Declare, exchange=exchange, passive=True)

    # Messages

    def _publish(self, message: Delivered) -> int | None:
        if self._helper_type == PLAIN_HELPER_TYPE:
            headers = self._marker.codec.headers(message.header)
            if not self._rule.lets_pass(headers):
                return None
        exchange = self._wanted.remote_name
        return self._destination.publish(
            CHANNEL,
            to_octets(self._wanted.name),
            message.routing_key,
            self._marker.of_exchange(message, self._uri, exchange, self._there),
            message.body,
            # A message that reaches no queue here is dropped: a binding may have gone meanwhile.
            mandatory=False,
        )


def _table(arguments: dict[str, str | int]) -> Table:
    return {name: _field(value) for name, value in arguments.items()}


def _field(value: str | int) -> Field:
    return longstr(value) if isinstance(value, str) else long(value)
