"""The helper exchanges of a link, when sessions end at any step: no message is missed meanwhile."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from pamqp import commands

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.field_table import encode_table
from warren.client.connection import ChannelFailed, ConnectionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange, make_exchange
from warren.core.exchanges.federation_hops import HopBroker
from warren.federation.exchange_session import HELPER_TYPE, ExchangeSession
from warren.federation.marking import Marker
from warren.federation.status import WantedLink
from warren.federation.upstream import parse
from warren.shovel.flow import FlowProgress

QUEUE = "federation: x -> down"


class Upstream:
    """A broker that does what is asked, and ends the connection at the question `ends_at`."""

    def __init__(self) -> None:
        self.exchanges = {"x"}
        self.queues: set[str] = set()
        # Source, destination and routing key.
        self.bindings: set[tuple[str, str, str]] = set()
        self.asked = 0
        self.ends_at = 0
        self.missed: list[str] = []

    async def ask(self, channel: int, kind: Any, **arguments: Any) -> None:
        self.asked += 1
        if self.asked == self.ends_at:
            raise ConnectionFailed(0, "the connection ended")
        self._do(kind, arguments)
        # What is whole once stays so, whatever happens to the next sessions.
        if not self.reaches("old"):
            self.missed.append(f"{self.asked}: {kind.__name__} {arguments}")

    async def open_channel(self, channel: int) -> None:
        """Nothing has to be done."""

    def _do(self, kind: Any, arguments: dict[str, Any]) -> None:
        if kind is commands.Exchange.Declare:
            if not arguments.get("passive"):
                self.exchanges.add(arguments["exchange"])
            elif arguments["exchange"] not in self.exchanges:
                raise ChannelFailed(404, "NOT_FOUND")
        elif kind is commands.Queue.Declare:
            self.queues.add(arguments["queue"])
        elif kind is commands.Exchange.Delete:
            self.exchanges.discard(arguments["exchange"])
            self.bindings = {b for b in self.bindings if arguments["exchange"] not in b[:2]}
        else:
            self._bind(kind, arguments)

    def _bind(self, kind: Any, arguments: dict[str, Any]) -> None:
        if kind is commands.Queue.Bind:
            source, destination = arguments["exchange"], arguments["queue"]
        else:
            source, destination = arguments["source"], arguments["destination"]
        assert {source, destination} <= self.exchanges | self.queues
        binding = (source, destination, arguments["routing_key"])
        if kind is commands.Exchange.Unbind:
            self.bindings.remove(binding)
        else:
            self.bindings.add(binding)

    def reaches(self, key: str) -> bool:
        """Whether a message with this key gets into the queue."""
        return any(
            (helper, QUEUE, "") in self.bindings
            for source, helper, bound in self.bindings
            if (source, bound) == ("x", key)
        )

    @property
    def helpers(self) -> list[str]:
        return sorted(name.removeprefix(f"{QUEUE} ") for name in self.exchanges - {"x"})


class Nobody:
    def running(self, uri: str) -> None: ...

    def progressed(self, progress: FlowProgress) -> None: ...


def exchange(*keys: str) -> Exchange:
    made = make_exchange("direct", "x", random=Random(1))
    for key in keys:
        made.add(Binding("x", "queue", "q", key, {}))
    return made


def set_up(upstream: Upstream, here: Exchange, ends_at: int = 0) -> bool:
    """One session's beginning; whether it got to its end."""
    wanted = WantedLink("/", "exchange", "x", parse("u", {"uri": []}, "/"), "fed", "", "down")

    async def work() -> None:
        session = ExchangeSession(
            wanted,
            Nobody(),
            exchange=lambda: here,
            marker=Marker(AmqpContentCodec(), encode_table, False),
            helper_type=HELPER_TYPE,
        )
        session._source = upstream  # type: ignore[assignment]
        session._there = HopBroker("up", "/")
        await session._set_up()

    upstream.asked, upstream.ends_at = 0, ends_at
    try:
        asyncio.run(work())
    except ConnectionFailed:
        return False
    return True


STEPS = range(1, 22)
"""Every question of a session that finds both helpers, and some that it does not ask."""


@pytest.mark.parametrize("whole", [1, 2])
@pytest.mark.parametrize("first", STEPS)
def test_sessions_that_end_at_any_step_leave_no_gap(first: int, whole: int) -> None:
    for second in STEPS:
        upstream = Upstream()
        for _ in range(whole):
            assert set_up(upstream, exchange("old", "gone"))
        upstream.missed.clear()
        here = exchange("old", "new")
        set_up(upstream, here, first)
        set_up(upstream, here, second)
        assert set_up(upstream, here)
        assert upstream.missed == []
        # One helper is left, and it has what is bound here and nothing else.
        (helper,) = upstream.helpers
        name = f"{QUEUE} {helper}"
        keys = {key for source, to, key in upstream.bindings if (source, to) == ("x", name)}
        assert keys == {"old", "new"}
        assert upstream.reaches("new") and not upstream.reaches("gone")


def test_each_session_makes_the_other_helper() -> None:
    upstream = Upstream()
    for helper in "ABAB":
        assert set_up(upstream, exchange("old"))
        assert upstream.helpers == [helper]
