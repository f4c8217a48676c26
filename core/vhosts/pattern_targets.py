"""The queues behind the patterns of topic exchanges, found once for each set of patterns.

Routing keys may all be different, but what they fit are few sets of bindings, for each of which a
topic exchange answers one and the same object until a binding changes (`TopicTrie.match`). So the
queues that follow are kept by that object. Where bindings lead to other exchanges, which look at
the key for themselves, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange, TopicExchange
from warren.core.queues.queue import Queue

KEPT_MAX = 100_000
"""Bindings and queues that are kept in all sets; beyond that it begins anew."""

Queues = tuple[Queue, ...] | None
"""The queues for a routing key; None where more than the key decides."""


class KeptQueues:
    """The queues behind sets of bindings of one exchange, by the identities of the bindings. The
    bindings are kept, too, so that nothing else can have their identities."""

    __slots__ = ("_size", "found")

    def __init__(self) -> None:
        self.found: dict[Hashable, tuple[Collection[Binding], tuple[Queue, ...]]] = {}
        self._size = 0

    def keep(
        self, identity: Hashable, bindings: Collection[Binding], queues: tuple[Queue, ...]
    ) -> None:
        """Add what was found; beyond `KEPT_MAX` everything else is forgotten."""
        size = 1 + len(bindings) + len(queues)
        self._size += size
        if self._size > KEPT_MAX:
            self.found.clear()
            self._size = size
        self.found[identity] = (bindings, queues)


class PatternTargets:
    """The queues behind the patterns of one exchange.

    They are good until anything changes that a publish depends on (`Topology`).

    `route` finds the queues for a routing key in the general way.
    """

    __slots__ = ("_exchange", "_found", "_kept", "_match", "_route")

    def __init__(self, exchange: TopicExchange, route: Callable[[Exchange, str], Queues]) -> None:
        self._exchange = exchange
        self._match = exchange.patterns.match
        self._route = route
        self._kept = KeptQueues()
        self._found = self._kept.found

    def queues(self, routing_key: str) -> Queues:
        """The queues for a key; for the same bindings, the same object."""
        bindings = self._match(routing_key)
        found = self._found.get(id(bindings))
        if found is not None:
            return found[1]
        queues = self._route(self._exchange, routing_key)
        if queues is not None and decide_alone(self._exchange, bindings):
            self._kept.keep(id(bindings), bindings, queues)
        return queues


def decide_alone(exchange: Exchange, bindings: Collection[Binding]) -> bool:
    """Whether the queues follow from these bindings and nothing else."""
    if not bindings:
        return exchange.alternate is None
    return all([binding.destination_kind == "queue" for binding in bindings])
