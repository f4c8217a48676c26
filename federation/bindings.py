"""The bindings of a federated exchange, as they are made at an upstream.

There the exchange is bound to the helper exchange of the link, once for each routing key and
arguments, however many queues and exchanges these bindings lead to here. `x-bound-from` in the
arguments is an array with a table for each broker that the binding came through, the newest first.
It says how many hops are left: a binding that was carried here by the federation of another broker
goes on as far as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.federation_hops import CLUSTER_NAME, VHOST, Broker, broker_of, tables_of
from warren.core.field import INTEGER_KINDS, Field, Table, longstr

BOUND_FROM = "x-bound-from"
EXCHANGE = "exchange"
HOPS = "hops"

Carried: TypeAlias = Mapping[tuple[str, str], Table]
"""Arguments at the upstream, by routing key and fingerprint of the arguments here."""


class Way(NamedTuple):
    """From where to where bindings are carried.

    `helper` names the exchange here, and which of its two helpers is in use.
    """

    downstream: Broker
    upstream: Broker
    helper: str
    hops_max: int


def carried(bindings: Iterable[Binding], way: Way) -> Carried:
    """What has to be bound at the upstream."""
    found: dict[tuple[str, str], Table] = {}
    for binding in bindings:
        key = (binding.routing_key, binding.fingerprint)
        if key not in found:
            arguments = _arguments(binding.arguments, way)
            if arguments is not None:
                found[key] = arguments
    return found


def _arguments(arguments: Table, way: Way) -> Table | None:
    """None where the binding goes no further."""
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
