"""The links that an exchange or queue is to have, and which of them run at this node.

They follow from the policy that applies to the exchange or queue, and from the parameters of
upstreams and sets. A link of an exchange runs at the node that carries out the parameter of its
upstream (`shovel/assignments.py`), a link of a queue at the node that leads the queue. In both
cases it runs only as long as the other nodes cannot count that node as down, so two nodes never run
the same link.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from warren.core.definitions.records import ParameterRecord
from warren.core.exchanges.routing import DEFAULT_EXCHANGE
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.policies.policy import Applied
from warren.core.policies.policy_set import Kind, Policy
from warren.core.ports import Key
from warren.core.vhosts.vhost import VirtualHost
from warren.federation import sets, upstream
from warren.federation.exchange_session import PURPOSE
from warren.federation.status import WantedLink
from warren.shovel.assignments import Assignments, ClusterPlace

log = logging.getLogger("warren.federation")


class Federated(NamedTuple):
    """An exchange or queue of a virtual host."""

    vhost: str
    kind: Kind
    name: str


class LinkPlan:
    """Finds the links that exchanges and queues are to have."""

    def __init__(self, node: Node, assignments: Assignments, place: ClusterPlace) -> None:
        self._node = node
        self._assignments = assignments
        self._place = place
        self._read: dict[Key, dict[str, ParameterRecord]] = {}
        # The policies of a virtual host at the last look, and whether they ask for federation.
        self._asked: dict[str, tuple[list[Policy], bool]] = {}

    def forget(self) -> None:
        """Read parameters anew: they have changed."""
        self._read.clear()

    def federates(self, vhost: str) -> bool:
        """Whether a policy of this virtual host asks for federation."""
        policies = self._node.policies.of_vhost(vhost)
        asked = self._asked.get(vhost)
        if asked is None or asked[0] is not policies:
            # This is called for every queue, and there may be thousands of policies.
            asks = any(sets.asks_for_federation(policy.definition) for policy in policies)
            asked = self._asked[vhost] = (policies, asks)
        return asked[1]

    def wanted(self, federated: Federated) -> Iterator[tuple[WantedLink, bool]]:
        """The links that an exchange or queue is to have, and whether each is to run here."""
        vhost = self._node.vhosts.get(federated.vhost)
        if vhost is None or not self.federates(federated.vhost):
            return
        applied = self._applied(vhost, federated)
        if applied is None or not sets.asks_for_federation(applied.definition):
            return
        upstreams = self._parameters(upstream.COMPONENT, federated.vhost)
        named_sets = self._parameters(sets.COMPONENT, federated.vhost)
        for member in sets.members(applied.definition, _values(upstreams), _values(named_sets)):
            record = upstreams[member.upstream]
            try:
                parsed = upstream.parse(member.upstream, member.value, federated.vhost)
            except (ValueError, LookupError, TypeError, AttributeError):
                # The parameter was checked by a node of another version. The error is not logged,
                # as it may name a URI with its password.
                log_event(
                    log,
                    logging.ERROR,
                    "upstream_not_understood",
                    upstream=member.upstream,
                    vhost=federated.vhost,
                )
                continue
            policy = applied.policy or ""
            wanted = WantedLink(*federated, parsed, policy, record.user, self._node.cluster_name)
            yield wanted, self._is_here(vhost, federated, record)

    def _applied(self, vhost: VirtualHost, federated: Federated) -> Applied | None:
        """The policies that apply to an exchange or queue; None if it cannot be federated."""
        name = federated.name
        if federated.kind == "exchange":
            exchange = vhost.exchanges.get(name)
            if exchange is None or exchange.internal or name == DEFAULT_EXCHANGE:
                return None
            return self._node.policies.applied(vhost.name, name, "exchange")
        queue = vhost.queues.get(name)
        if queue is None or PURPOSE in queue.arguments or self._is_exclusive(vhost, name):
            return None
        if queue.settings.delays is not None:
            return None
        return self._node.policies.applied(vhost.name, name, "queue", queue.settings.type)

    def _is_exclusive(self, vhost: VirtualHost, name: str) -> bool:
        """Whether the queue ends with its connection: the queue made for it at the upstream would
        be left over."""
        return vhost.queues[name].exclusive_owner is not None

    def _is_here(self, vhost: VirtualHost, federated: Federated, record: ParameterRecord) -> bool:
        if federated.kind == "exchange":
            return self._assignments.is_mine(record)
        return vhost.queues[federated.name].is_here and self._place.may_run()

    def _parameters(self, component: str, vhost: str) -> dict[str, ParameterRecord]:
        """Parameters by name, read anew after `forget`."""
        prefix = ("parameter", component, vhost)
        found = self._read.get(prefix)
        if found is None:
            found = self._read[prefix] = {}
            for key, record, _ in self._node.metadata.records(prefix):
                assert isinstance(record, ParameterRecord)
                found[key[3]] = record
        return found


def _values(parameters: dict[str, ParameterRecord]) -> dict[str, Any]:
    return {name: record.value for name, record in parameters.items()}
