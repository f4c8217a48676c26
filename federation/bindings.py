"""The bindings of a federated exchange, as they are made at an upstream.

There the exchange is bound to the link's helper exchange once for each routing key and arguments,
however many queues and exchanges these bindings lead to here. `x-bound-from` in the arguments is an
array with a table for each broker that the binding came through, the newest first. The table has
the number of hops left, which limits how far a binding is carried on that came here through the
federation of another broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.federation_hops import (
    CLUSTER_NAME,
    VHOST,
    HopBroker,
    broker_of,
    tables_of,
)
from warren.core.field import INTEGER_KINDS, Field, Table, longstr

BOUND_FROM = "x-bound-from"
EXCHANGE = "exchange"
HOPS = "hops"

Carried: TypeAlias = Mapping[tuple[str, str], Table]
"""Arguments of bindings at the upstream, by routing key and fingerprint of the arguments here."""


class Way(NamedTuple):
    """The way of carried bindings, from downstream to upstream.

    `helper` names the exchange here and the helper in use, A or B.
    """

    downstream: HopBroker
    upstream: HopBroker
    helper: str
    hops_max: int


def carried(bindings: Iterable[Binding], way: Way) -> Carried:
    """The bindings to make at the upstream."""
    found: dict[tuple[str, str], Table] = {}
    for binding in bindings:
        key = (binding.routing_key, binding.fingerprint)
        if key not in found:
            arguments = _arguments(binding.arguments, way)
            if arguments is not None:
                found[key] = arguments
    return found


def _arguments(arguments: Table, way: Way) -> Table | None:
    """The arguments at the upstream; None if the binding is not carried there."""
    earlier = tables_of(arguments.get(BOUND_FROM))
    hops = way.hops_max
    if earlier:
        if way.upstream in map(broker_of, earlier):
            return None
        hops = min(hops, _hops(earlier[0]) - 1)
    if hops <= 0:
        return None
    entry = {
        CLUSTER_NAME: longstr(way.downstream.cluster),
        VHOST: longstr(way.downstream.vhost),
        EXCHANGE: longstr(way.helper),
        HOPS: Field("s", min(hops, 0x7FFF)),
    }
    tables = [Field("F", table) for table in (entry, *earlier)]
    return {**arguments, BOUND_FROM: Field("A", tables)}


def _hops(table: Table) -> int:
    hops = table.get(HOPS)
    return hops.value if hops is not None and hops.kind in INTEGER_KINDS else 0
