"""The common part of both kinds of sessions: two connections, and tasks that end together.

The upstream is connected first, then this node. Messages take the channel `CHANNEL` on both
connections; all other methods to the upstream take `COMMANDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from pamqp import commands

from warren.client.connection import BrokerTarget, ChannelFailed, ClientConnection, open_any
from warren.core.exchanges.federation_hops import HopBroker
from warren.federation.upstream import Upstream
from warren.shovel.flow import CHANNEL, Flow, FlowProgress
from warren.shovel.transfer import AckMode

log = logging.getLogger("warren.federation")

COMMANDS: Final = 2
NOT_FOUND: Final = 404


class LinkObserver(Protocol):
    """The object that a session reports to."""

    def running(self, uri: str) -> None: ...

    def progressed(self, progress: FlowProgress) -> None: ...


class LinkEnds(NamedTuple):
    """The targets of the upstream, in the order in which they are tried, and this node."""

    upstream: Sequence[BrokerTarget]
    here: BrokerTarget


class LinkOpened(NamedTuple):
    """Both connections, with their channels. `uri` is the upstream's, without secrets."""

    source: ClientConnection
    destination: ClientConnection
    uri: str
    upstream: HopBroker


@asynccontextmanager
async def opened(ends: LinkEnds, flow: Flow, ack_mode: AckMode) -> AsyncIterator[LinkOpened]:
    """Connections to both ends, which last as long as the context. Raises `ConnectionFailed`,
    `ChannelFailed`."""
    async with upstream_opened(ends.upstream, flow) as (source, target):
        await source.open_channel(CHANNEL)
        destination, _ = await open_any([ends.here], flow)
        try:
            await destination.open_channel(CHANNEL, confirms=ack_mode is AckMode.ON_CONFIRM)
            cluster = str(source.server_properties.get("cluster_name", ""))
            yield LinkOpened(
                source, destination, target.shown, HopBroker(cluster, target.login.vhost)
            )
        finally:
            await destination.close()


@asynccontextmanager
async def upstream_opened(
    targets: Sequence[BrokerTarget], flow: Flow
) -> AsyncIterator[tuple[ClientConnection, BrokerTarget]]:
    """A connection to the upstream, with the channel for commands."""
    source, target = await open_any(targets, flow)
    try:
        await source.open_channel(COMMANDS)
        yield source, target
    finally:
        flow.end()
        # The broker carries out the acks already written before it answers the close.
        await source.close()


async def exists(source: ClientConnection, exchange: str) -> bool:
    """Whether the upstream has an exchange of this name."""
    return await found(source, commands.Exchange.Declare, exchange=exchange, passive=True)


async def found(source: ClientConnection, kind: Any, **arguments: Any) -> bool:
    """Whether a passive declaration succeeds, so that its object exists."""
    try:
        await source.ask(COMMANDS, kind, **arguments)
    except ChannelFailed as failure:
        if failure.code != NOT_FOUND:
            raise
        await source.open_channel(COMMANDS)
        return False
    return True


async def limit_deliveries(source: ClientConnection, upstream: Upstream) -> None:
    """Limit the unacknowledged messages to the prefetch count of the upstream."""
    if upstream.ack_mode is not AckMode.NO_ACK:
        await source.ask(CHANNEL, commands.Basic.Qos, prefetch_count=upstream.prefetch)


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run these until one of them has ended, and cancel the others. Raises what that one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
