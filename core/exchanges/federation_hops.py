"""How far a message of a federation may go: not back to where it was, and not through too many.

`x-received-from` of a message is an array with a table for each broker it came from, the newest
first. A table names a cluster and a virtual host, among others.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, Field, Table, to_octets, to_text

RECEIVED_FROM = "x-received-from"
HOP_NAMES = (to_octets(RECEIVED_FROM),)
"""The headers that a `HopRule` looks at."""

CLUSTER_NAME = "cluster-name"
VHOST = "vhost"

MAX_HOPS = "x-max-hops"
DOWNSTREAM_NAME = "x-downstream-name"
DOWNSTREAM_VHOST = "x-downstream-vhost"


class HopBroker(NamedTuple):
    """A virtual host of a cluster, as others know it."""

    cluster: str
    vhost: str


class HopRule(NamedTuple):
    """Which messages may go to `downstream`."""

    downstream: HopBroker
    hops_max: int

    def lets_pass(self, headers: Table) -> bool:
        """Whether a message with these headers may go there."""
        passed = tables_of(headers.get(RECEIVED_FROM))
        return len(passed) < self.hops_max and self.downstream not in map(broker_of, passed)


def hop_rule(arguments: Table) -> HopRule:
    """Read the arguments of a helper exchange. Raises `PreconditionFailed`."""
    hops_max = arguments.get(MAX_HOPS)
    if hops_max is None or hops_max.kind not in INTEGER_KINDS:
        raise PreconditionFailed(f"an exchange for federation needs a number as '{MAX_HOPS}'")
    downstream = HopBroker(
        text_of(arguments.get(DOWNSTREAM_NAME)), text_of(arguments.get(DOWNSTREAM_VHOST))
    )
    return HopRule(downstream, hops_max.value)


def tables_of(field: Field | None) -> list[Table]:
    """The tables in an array; none where it is something else."""
    if field is None or field.kind != "A":
        return []
    return [item.value for item in field.value if item.kind == "F"]


def broker_of(table: Table) -> HopBroker:
    """The cluster and the virtual host that the table names."""
    return HopBroker(text_of(table.get(CLUSTER_NAME)), text_of(table.get(VHOST)))


def text_of(field: Field | None) -> str:
    """A text, or "" where there is none."""
    return to_text(field.value) if field is not None and field.kind == "S" else ""
