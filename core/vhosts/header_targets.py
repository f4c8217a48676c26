"""The queues behind the bindings of headers exchanges, found once for each set of bindings.

The headers of messages may all be different, but the sets of bindings that take them are few. So
the queues that follow from a set are kept. Where bindings lead to other exchanges, which look at
the message for themselves, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warren.core.exchanges.exchange import Exchange, HeadersExchange
from warren.core.exchanges.routing import table_us
from warren.core.ports import ContentCodec
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import TURN_US, Turns
from warren.core.vhosts.pattern_targets import KeptQueues, decide_alone


class HeaderTargets:
    """The queues behind the bindings of one headers exchange.

    They are good until anything changes that a publish depends on (`Topology`).

    `route` finds the queues for routing keys and a content header in the general way.
    """

    __slots__ = ("_codec", "_exchange", "_kept", "_route", "_turns")

    def __init__(
        self,
        exchange: HeadersExchange,
        route: Callable[[Exchange, Sequence[str], bytes], tuple[Queue, ...]],
        codec: ContentCodec,
        turns: Turns,
    ) -> None:
        self._exchange = exchange
        self._route = route
        self._codec = codec
        self._turns = turns
        self._kept = KeptQueues()

    def queues(self, header: bytes) -> tuple[Queue, ...]:
        """The queues for a message with this content header; for the same bindings, the same
        object. No queues where they have to be found in the general way."""
        exchange, turns = self._exchange, self._turns
        if turns.left_us < -TURN_US:
            # What costs this much must not be found in one turn for all that is gathered.
            return ()
        bindings = exchange.match(self._codec.named_headers(header, exchange.names))
        turns.spend(exchange.match_us + table_us(len(header)))
        identities = tuple(map(id, bindings))
        found = self._kept.found.get(identities)
        if found is not None:
            return found[1]
        if not decide_alone(exchange, bindings):
            return ()
        queues = self._route(exchange, ("",), header)
        self._kept.keep(identities, bindings, queues)
        return queues
