"""The links of a node: they follow the definitions, as `plan.py` reads them.

A change of a definition makes the exchanges and queues due that it may concern. Each turn of the
loop examines some of those that are due: it compares the links that they should have with the links
that they have. A changed link is started anew. A link that is no longer wanted ends for good, and
its objects at the upstream are deleted. When a link only moves to another node, or its node stops,
these objects stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from random import Random
from typing import Any, TypeAlias

from warren.client.connection import BrokerTarget
from warren.core.access.access_control import User
from warren.core.exchanges.exchange import Exchange
from warren.core.log_line import log_event, log_fault
from warren.core.node import Node
from warren.core.policies.parameters import CLUSTER_NAME
from warren.core.ports import Clock, Key
from warren.core.queues.queue import Queue
from warren.core.scheduling.periodic import Periodic
from warren.federation import sets, upstream
from warren.federation.exchange_session import ExchangeSession
from warren.federation.link import FederationLink, LinkSession
from warren.federation.marking import EncodeTable, Marker
from warren.federation.plan import Federated, LinkPlan
from warren.federation.queue_session import QueueSession
from warren.federation.session import LinkObserver
from warren.federation.status import LinkState, WantedLink, row
from warren.shovel.assignments import LOOK_S, Assignments, ClusterPlace
from warren.shovel.reach import ConnectWithin, Reach
from warren.shovel.uri import Uri, parse_uri

log = logging.getLogger("warren.federation")

AT_A_TIME = 100
"""Exchanges and queues examined in one turn of the loop; each takes some 25 µs."""

QUEUES_LOOK_S = 0.05
"""The time between checks whether consumers of federated queues wait for messages: queues do not
report that, so queues without a federation pay nothing for it."""

WITHIN = "amqp://"


LinkId: TypeAlias = str


class FederationLinks:
    """The links that this node runs, from `start` to `stop`."""

    def __init__(
        self,
        node: Node,
        *,
        place: ClusterPlace,
        connect_within: ConnectWithin,
        encode_table: EncodeTable,
        clock: Clock,
        random: Random,
    ) -> None:
        self._node = node
        self._store = node.metadata
        self._place = place
        self._assignments = Assignments(upstream.COMPONENT, node.name, self._store, place, log)
        self._plan = LinkPlan(node, self._assignments, place)
        self._reach = Reach(node.access, connect_within)
        self._encode_table = encode_table
        self._clock = clock
        self._random = random
        self._links: dict[Federated, dict[LinkId, FederationLink]] = {}
        # Links that close their connections, or delete their objects at the upstream. The next link
        # with the same id waits for them.
        self._ending: dict[tuple[Federated, LinkId], asyncio.Task[None]] = {}
        # Links that have ended. `_follow` decides from the definitions whether their objects at the
        # upstream stay for a next link or are deleted.
        self._ended: dict[Federated, list[FederationLink]] = {}
        self._due: dict[Federated, None] = {}
        self._work_scheduled = False
        self._periodic = Periodic(clock, self._look)
        self._looking_at_queues = Periodic(clock, self._look_at_queues)
        self._looks_at_queues = False
        self._unwatch: list[Callable[[], None]] = []
        self._could_run = False
        self._received = 0
        node.policies.watch(self._vhost_due)

    def start(self) -> None:
        watch = self._store.watch
        self._unwatch = [
            watch(("parameter", upstream.COMPONENT), self._parameter_changed),
            watch(("parameter", sets.COMPONENT), self._parameter_changed),
            watch(("exchange",), self._exchange_changed),
            watch(("queue",), self._queue_changed),
            watch(("binding",), self._binding_changed),
            watch(("vhost",), self._vhost_changed),
            watch(("global_parameter", CLUSTER_NAME), lambda key, record: self._all_due()),
        ]
        self._plan.forget()
        self._could_run = self._place.may_run()
        self._all_due()
        self._periodic.start()

    async def stop(self) -> None:
        """Stop all links and close their connections; unacked messages stay at their upstream."""
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch = []
        self._periodic.stop()
        self._looking_at_queues.stop()
        self._looks_at_queues = False
        self._due.clear()
        for federated in list(self._links):
            for link_id in list(self._links[federated]):
                self._end(federated, link_id)
        if self._ending:
            await asyncio.wait(self._ending.values())
        self._ended.clear()

    def look_again(self) -> None:
        """Check all links again: nodes have come or gone, or this node no longer counts as up."""
        if self._unwatch:
            self._periodic.start()

    # Checks of parameters

    def check_upstream(self, vhost: str, name: str, value: Any, user: User | None) -> None:
        """Raises `ValidationFailed` with every problem of a parameter that the user sets."""
        upstream.check(name, value)
        for uri in upstream.uris(value, vhost):
            self._reach.check(uri, user)

    def check_set(self, _vhost: str, name: str, value: Any, _user: User | None) -> None:
        """Raises `ValidationFailed` with every problem of a parameter."""
        sets.check(name, value)

    # Views and commands

    def rows(self) -> list[dict[str, Any]]:
        """The links that run here, as the HTTP API shows them."""
        return [row(link.wanted, self._node.name, link.status) for link in self._all()]

    def restart(self, vhost: str, link_id: LinkId) -> bool:
        """Restart a link of this node; False if the node has no link of this id."""
        for federated, links in self._links.items():
            if federated.vhost == vhost and link_id in links:
                # The next link begins when this one has ended.
                self._end(federated, link_id)
                return True
        return False

    def counts(self) -> dict[tuple[str, str], int]:
        """The numbers of links of this node, by kind and state."""
        counts = {(kind, state.value): 0 for kind in ("exchange", "queue") for state in LinkState}
        for link in self._all():
            counts[link.wanted.kind, link.status.state.value] += 1
        return counts

    def messages_received(self) -> int:
        """Messages that links of this node have received since it started."""
        return self._received + sum(link.status.received for link in self._all())

    def _all(self) -> Iterator[FederationLink]:
        for links in self._links.values():
            yield from links.values()

    # Exchanges and queues that are due

    def _parameter_changed(self, key: Key, _record: object | None) -> None:
        self._plan.forget()
        self._vhost_due(key[2])

    def _exchange_changed(self, key: Key, _record: object | None) -> None:
        if self._plan.federates(key[1]):
            self._make_due(Federated(key[1], "exchange", key[2]))

    def _queue_changed(self, key: Key, _record: object | None) -> None:
        if self._plan.federates(key[1]):
            self._make_due(Federated(key[1], "queue", key[2]))

    def _binding_changed(self, key: Key, _record: object | None) -> None:
        for link in self._links.get(Federated(key[1], "exchange", key[2]), {}).values():
            link.look_again()

    def _vhost_changed(self, key: Key, _record: object | None) -> None:
        self._vhost_due(key[1])

    def _look(self, _now: float) -> float:
        """See that each link runs where it has to. Returns the seconds until the next check."""
        for key, record in list(self._assignments.records()):
            self._assignments.claim_left(key, record)
        may_run = self._place.may_run()
        if may_run != self._could_run:
            self._could_run = may_run
            self._all_due()
        return LOOK_S

    def _look_at_queues(self, _now: float) -> float | None:
        """Check the links of queues. Returns the seconds until the next check, None without
        links."""
        for link in self._all():
            if link.wanted.kind == "queue":
                link.look_again()
        self._looks_at_queues = bool(self._links)
        return QUEUES_LOOK_S if self._links else None

    def _all_due(self) -> None:
        for vhost in self._node.vhosts:
            self._vhost_due(vhost)

    def _vhost_due(self, name: str) -> None:
        if not self._unwatch:
            return
        for federated in list(self._links):
            if federated.vhost == name:
                self._make_due(federated)
        vhost = self._node.vhosts.get(name)
        if vhost is None or not self._plan.federates(name):
            return
        for exchange in list(vhost.exchanges):
            self._make_due(Federated(name, "exchange", exchange))
        for queue in list(vhost.queues):
            self._make_due(Federated(name, "queue", queue))

    def _make_due(self, federated: Federated) -> None:
        self._due[federated] = None
        self._work_soon()

    def _work_soon(self) -> None:
        if not self._work_scheduled:
            self._work_scheduled = True
            self._clock.call_soon(self._work)

    def _work(self) -> None:
        self._work_scheduled = False
        for federated in list(islice(self._due, AT_A_TIME)):
            del self._due[federated]
            try:
                self._follow(federated)
            except Exception:
                # A fault of the broker is logged, and does not end the node.
                log_fault(log, "federation_fault", vhost=federated.vhost, name=federated.name)
        if self._due:
            self._work_soon()

    def _follow(self, federated: Federated) -> None:
        """Start the wanted links of an exchange or queue, and end its others."""
        if not self._unwatch:
            return
        wanted = {one.id: (one, here) for one, here in self._plan.wanted(federated)}
        for link_id, link in list(self._links.get(federated, {}).items()):
            if wanted.get(link_id) != (link.wanted, True):
                self._end(federated, link_id)
        # The upstream objects of an ended link may still be of use to this or another node.
        of_use = {(one.id, one.cluster) for one, _ in wanted.values()}
        for link in self._ended.pop(federated, ()):
            if (link.wanted.id, link.wanted.cluster) not in of_use:
                self._ending_of(federated, link, self._clean_up(federated, link))
        for link_id, (one, here) in wanted.items():
            busy = (federated, link_id) in self._ending
            if here and not busy and link_id not in self._links.get(federated, {}):
                self._begin(federated, one)

    # Links

    def _begin(self, federated: Federated, wanted: WantedLink) -> None:
        for uri in wanted.upstream.uris:
            if uri.tls is not None and not uri.tls.verify:
                log_event(
                    log,
                    logging.WARNING,
                    "upstream_peer_not_verified",
                    upstream=wanted.upstream.name,
                    uri=uri.shown,
                )
        link = FederationLink(
            wanted,
            new_session=lambda observer, helper_type: self._session(wanted, observer, helper_type),
            target=lambda uri: self._target(uri, wanted),
            here=self._target(parse_uri(WITHIN, wanted.vhost), wanted),
            clock=self._clock,
            random=self._random,
        )
        self._links.setdefault(federated, {})[wanted.id] = link
        link.start()
        if wanted.kind == "queue" and not self._looks_at_queues:
            self._looking_at_queues.start()

    def _target(self, uri: Uri, wanted: WantedLink) -> BrokerTarget:
        trusts = wanted.upstream.trusts_user_id
        return self._reach.target(uri, wanted.connection_name, wanted.user, impersonates=trusts)

    def _session(self, wanted: WantedLink, observer: LinkObserver, helper_type: str) -> LinkSession:
        if wanted.kind == "exchange":
            return self._exchange_session(wanted, observer, helper_type)
        return QueueSession(
            wanted,
            observer,
            queue=lambda: self._queue(wanted),
            marker=self._marker(wanted),
        )

    def _exchange_session(
        self, wanted: WantedLink, observer: LinkObserver, helper_type: str
    ) -> ExchangeSession:
        return ExchangeSession(
            wanted,
            observer,
            exchange=lambda: self._exchange(wanted),
            marker=self._marker(wanted),
            helper_type=helper_type,
        )

    def _marker(self, wanted: WantedLink) -> Marker:
        return Marker(self._node.codec, self._encode_table, wanted.upstream.trusts_user_id)

    def _exchange(self, wanted: WantedLink) -> Exchange | None:
        vhost = self._node.vhosts.get(wanted.vhost)
        return vhost.exchanges.get(wanted.name) if vhost is not None else None

    def _queue(self, wanted: WantedLink) -> Queue | None:
        vhost = self._node.vhosts.get(wanted.vhost)
        return vhost.queues.get(wanted.name) if vhost is not None else None

    def _end(self, federated: Federated, link_id: LinkId) -> None:
        links = self._links[federated]
        link = links.pop(link_id)
        if not links:
            del self._links[federated]
        self._ending_of(federated, link, self._stop_link(federated, link))

    def _ending_of(
        self, federated: Federated, link: FederationLink, work: Coroutine[Any, Any, None]
    ) -> None:
        key = (federated, link.wanted.id)
        self._ending[key] = asyncio.get_running_loop().create_task(self._until_over(key, work))

    async def _until_over(
        self, key: tuple[Federated, LinkId], work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        finally:
            del self._ending[key]
            if self._unwatch:
                self._make_due(key[0])

    async def _stop_link(self, federated: Federated, link: FederationLink) -> None:
        await link.stop()
        self._received += link.status.received
        self._ended.setdefault(federated, []).append(link)

    async def _clean_up(self, federated: Federated, link: FederationLink) -> None:
        wanted = link.wanted
        if wanted.kind != "exchange" or wanted.upstream.keeps_queue:
            return
        try:
            await link.clean_up(self._exchange_session(wanted, link, link.helper_type))
        except Exception:
            log_fault(log, "federation_fault", vhost=federated.vhost, name=federated.name)
