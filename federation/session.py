"""What sessions of both kinds have in common: two connections, and work that ends together.

The upstream is connected first, then this node. Messages take the channel `CHANNEL` on both; what
is asked of the upstream besides takes `COMMANDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from pamqp import commands

from warren.client.connection import ChannelFailed, Connection, Target, open_any
from warren.core.exchanges.federation_hops import Broker
from warren.federation.upstream import Upstream
from warren.shovel.flow import CHANNEL, Flow, FlowProgress
from warren.shovel.transfer import AckMode

log = logging.getLogger("warren.federation")

COMMANDS: Final = 2
NOT_FOUND: Final = 404


class Observer(Protocol):
    """Who follows a session."""

    def running(self, uri: str) -> None: ...

    def progressed(self, progress: FlowProgress) -> None: ...


class Ends(NamedTuple):
    """The upstream, in the order in which its brokers are tried, and this node."""

    upstream: Sequence[Target]
    here: Target


class Opened(NamedTuple):
    """Both connections, with their channels. `uri` is without secrets."""

    source: Connection
    destination: Connection
    uri: str
    upstream: Broker


@asynccontextmanager
async def opened(ends: Ends, flow: Flow, ack_mode: AckMode) -> AsyncIterator[Opened]:
    """Both ends, as long as the context lasts. Raises `ConnectionFailed`, `ChannelFailed`."""
    async with upstream_opened(ends.upstream, flow) as (source, target):
        await source.open_channel(CHANNEL)
        destination, _ = await open_any([ends.here], flow)
        try:
            await destination.open_channel(CHANNEL, confirms=ack_mode is AckMode.ON_CONFIRM)
            cluster = str(source.server_properties.get("cluster_name", ""))
            yield Opened(source, destination, target.shown, Broker(cluster, target.login.vhost))
        finally:
            await destination.close()


@asynccontextmanager
async def upstream_opened(
    targets: Sequence[Target], flow: Flow
) -> AsyncIterator[tuple[Connection, Target]]:
    """A connection to the upstream, with the channel for commands."""
    source, target = await open_any(targets, flow)
    try:
        await source.open_channel(COMMANDS)
        yield source, target
    finally:
        flow.end()
        # Acks that were written are carried out before the broker says goodbye.
        await source.close()


async def exists(source: Connection, exchange: str) -> bool:
    """Whether the upstream has an exchange of this name."""
    return await found(source, commands.Exchange.Declare, exchange=exchange, passive=True)


async def found(source: Connection, kind: Any, **arguments: Any) -> bool:
    """Whether a passive declaration finds something."""
    try:
        await source.ask(COMMANDS, kind, **arguments)
    except ChannelFailed as failure:
        if failure.code != NOT_FOUND:
            raise
        await source.open_channel(COMMANDS)
        return False
    return True


async def limit_deliveries(source: Connection, upstream: Upstream) -> None:
    """Ask for no more unacknowledged messages at a time than the upstream says."""
    if upstream.ack_mode is not AckMode.NO_ACK:
        await source.ask(CHANNEL, commands.Basic.Qos, prefetch_count=upstream.prefetch)


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of this until any of it has ended. Raises what that raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
