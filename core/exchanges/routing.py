"""The way from a publish to the queues that it reaches (amqp_semantics.md section 3).

An exchange gives bindings; those to queues are targets, those to exchanges are followed with the
routing keys and headers of the message unchanged. An exchange is asked once per publish, so cycles
end, and a queue is a target once, however many ways lead to it. An exchange that itself matched
nothing passes the message to its alternate exchange, if that exists; an exchange whose bindings
lead to exchanges that match nothing has matched.

The default exchange has no bindings: each routing key stands for the queue of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from warren.core.exchanges.exchange import Exchange, Headers, PropertyText

DEFAULT_EXCHANGE = ""

BINDINGS_PER_US = 4
"""Bindings that are followed in a microsecond."""

EXCHANGES_PER_US = 2
"""Exchanges on the way that are asked in a microsecond."""

KEYS_PER_US = 2
"""Routing keys that are looked up in a microsecond."""


SMALL_TABLE = 256
"""Octets of a field table that cost nothing: few tables have more."""

TABLE_OCTETS_PER_US = 8
"""Octets of a field table, beyond those, that are decoded in a microsecond."""


class Routed(NamedTuple):
    """The queues, in the order in which they were found.

    `by_key_only`: they follow from exchange and routing keys alone, and may be remembered for them
    until a queue, exchange, binding or alternate exchange changes. `cost_us` is what it cost to
    find them, as `core/scheduling/turns.py` counts it; `exchanges` are those on the way.
    """

    queues: tuple[str, ...]
    by_key_only: bool
    cost_us: int = 0
    exchanges: Sequence[Exchange] = ()


def route(
    lookup: Callable[[str], Exchange | None],
    exchange: Exchange,
    routing_keys: Sequence[str],
    headers: Headers,
    property_text: PropertyText,
    queue_exists: Callable[[str], bool],
) -> Routed:
    """The queues that take a message published to the exchange.

    `routing_keys` are the message's own key and then those of CC and BCC. `headers` is called only
    if an exchange on the way needs them, once for each that does. `queue_exists` is asked for the
    targets of the default exchange only.
    """
    queues: dict[str, None] = {}
    by_key_only = True
    cost_us = followed = 0
    seen = {exchange.name}
    pending = [exchange]
    # `pending` grows while it is walked: breadth first, near queues before far ones.
    for current in pending:
        if current.name == DEFAULT_EXCHANGE:
            queues.update((key, None) for key in routing_keys if queue_exists(key))
            followed += len(routing_keys)
            continue
        by_key_only = by_key_only and current.by_key_only
        found_exchanges: list[str] = []
        matched = False
        keys = routing_keys if current.every_key else routing_keys[:1]
        # All of them first: a look may be `Unfinished`, and is repeated then.
        answers = [current.destinations(key, headers, property_text) for key in keys]
        cost_us += current.match_us + len(keys) // KEYS_PER_US
        # Many keys often lead to the very same bindings.
        for bindings in {id(bindings): bindings for bindings in answers}.values():
            followed += len(bindings)
            for binding in bindings:
                matched = True
                if binding.destination_kind == "queue":
                    queues[binding.destination] = None
                else:
                    found_exchanges.append(binding.destination)
        if not matched and current.alternate is not None:
            found_exchanges.append(current.alternate)
        for name in found_exchanges:
            found = None if name in seen else lookup(name)
            if found is not None:
                seen.add(name)
                pending.append(found)
    cost_us += followed // BINDINGS_PER_US + len(pending) // EXCHANGES_PER_US
    return Routed(tuple(queues), by_key_only, cost_us, pending)


def table_us(octets: int) -> int:
    """The cost of decoding a field table, or a header or method with little else in it."""
    return max(0, octets - SMALL_TABLE) // TABLE_OCTETS_PER_US
