"""The routes of publishes, found once and kept while nothing changes.

The octets of the method frame are the key of a cache for each connection: permission, exchange,
routing key and target queues follow from them alone. A change of topology or permissions
(`Topology.generation`) empties it.

The order of the checks is that of amqp_semantics.md section 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from warren.amqp import properties
from warren.amqp.confirms import ChannelConfirms
from warren.amqp.errors import FrameError, MalformedArguments
from warren.amqp.frames import HEAD
from warren.core.access.access_control import User
from warren.core.erlang_text import binary_text, octets_text
from warren.core.errors import AccessRefused, PreconditionFailed, Unsupported
from warren.core.exchanges.exchange import Exchange, HeadersExchange, TopicExchange
from warren.core.exchanges.routing import table_us
from warren.core.field import KIND_NAMES, to_octets, to_text
from warren.core.messages.message import Envelope
from warren.core.messages.settlement import (
    PENDING,
    REJECTED,
    SETTLED,
)
from warren.core.node import Node
from warren.core.queues.queue import Queue
from warren.core.vhosts.dead_letter import carbon_copies
from warren.core.vhosts.header_targets import HeaderTargets
from warren.core.vhosts.pattern_targets import PatternTargets
from warren.core.vhosts.reply_to import REPLY_TO, REPLY_TO_PREFIX
from warren.core.vhosts.vhost import VirtualHost

ROUTES_MAX = 4096
"""Routes kept per connection; beyond that number the cache is emptied and begins anew."""

EXCHANGES_MAX = 256
"""Exchanges kept per connection, by their names as sent."""

QUEUE_US = 2
"""The cost of publishing a message to one queue, in the microseconds of
`core/scheduling/turns.py`."""

ROUTE_US = 5
"""The cost of finding a route, in the same microseconds."""

QUEUES_AT_ONCE = 200
"""A message for more queues than that is published in several turns."""

QUEUES_BETWEEN_LOOKS = 20
"""Queues that get a message between two checks whether the turn is over. There are few, since a
queue whose limits are reached costs more than `QUEUE_US`."""

ARGUMENTS_AT = HEAD.size + 4
"""The offset of a method's arguments in its frame."""

_MANDATORY = 1
_IMMEDIATE = 2


class Route(Struct, frozen=True, eq=False):
    """The destination of publishes with the same arguments.

    `queues` is None when more than the routing key decides, so that every message is routed by
    itself. `is_reply`: it leads to a consumer of amq.rabbitmq.reply-to. `address` has the octets of
    exchange and routing key as methods carry them. `is_observed`: observers may want these
    publishes. `by_key` returns the queues for another routing key of the same exchange, if nothing
    else depends on the key; it exists for topic exchanges only, whose keys may all differ, and may
    raise `Unfinished`. `by_headers` returns the queues for a content header, or none where they
    have to be found in the general way; it exists for headers exchanges only.
    """

    exchange: Exchange
    exchange_name: str
    routing_key: str
    mandatory: bool
    queues: tuple[Queue, ...] | None
    is_reply: bool
    address: bytes
    is_observed: bool
    by_key: Callable[[str], tuple[Queue, ...] | None] | None
    by_headers: Callable[[bytes], tuple[Queue, ...]] | None


class _KnownExchange(Struct, frozen=True, eq=False):
    """An exchange to which the user may publish.

    `checks_keys`: each routing key needs a permission of its own. `queues` returns the queues for
    a routing key. `has_many_keys`: only the queues depend on the key, and keys may all differ.
    `by_headers` is that of its routes.
    """

    exchange: Exchange
    name: str
    checks_keys: bool
    queues: Callable[[str], tuple[Queue, ...] | None]
    has_many_keys: bool
    by_headers: Callable[[bytes], tuple[Queue, ...]] | None


class PublishRoutes:
    """The routes of one connection, by the octets of whole method frames."""

    __slots__ = (
        "_exchanges",
        "_generation",
        "_node",
        "_observed",
        "_routes",
        "_topology",
        "_user",
        "user_octets",
        "vhost",
    )

    def __init__(self, node: Node, vhost: VirtualHost, user: User) -> None:
        self._node = node
        self.vhost = vhost
        self._user = user
        self.user_octets = to_octets(user.name)
        self._topology = vhost.topology
        self._generation = vhost.topology.generation
        self._routes: dict[bytes, Route] = {}
        self._exchanges: dict[bytes, _KnownExchange] = {}
        # Whether observers want the publishes of a route, by its queues.
        self._observed: dict[tuple[Queue, ...] | None, bool] = {}

    def known(self) -> Mapping[bytes, Route]:
        """The routes found so far, which are valid until the topology changes."""
        if self._generation != self._topology.generation:
            self._routes.clear()
            self._exchanges.clear()
            self._observed.clear()
            self._generation = self._topology.generation
        return self._routes

    def route(self, method: bytes) -> Route:
        """The route of a basic.publish, given as its whole frame.

        Raises the errors to report to the client, such as no permission and no such exchange; and
        `Unfinished` if finding the queues takes more than a turn.
        """
        return self.known().get(method) or self.resolve(method)

    def reads_headers(self, method: bytes, header: bytes) -> bool:
        """Whether routing a publish reads its headers, which takes long if there are many."""
        route = self.known().get(method)
        return route is None or route.queues is None or b"CC" in header

    def resolve(self, method: bytes) -> Route:
        """`route` for a frame that is not in `known`."""
        route = self.route_of(method[ARGUMENTS_AT:-1])
        self._node.turns.spend(ROUTE_US)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
            self._observed.clear()
        self._routes[method] = route
        return route

    def envelope(self, route: Route, header: bytes, reply_address: bytes | None) -> Envelope:
        """The envelope for a content header.

        `reply_address` stands in for the pseudo queue amq.rabbitmq.reply-to. Raises
        `PreconditionFailed` for properties that are not allowed.
        """
        try:
            facts = properties.scan(header)
        except properties.MalformedProperties as error:
            raise FrameError(f"cannot decode {binary_text(header)}") from error
        if facts.reply_to == REPLY_TO:
            if reply_address is None:
                raise PreconditionFailed("fast reply consumer does not exist")
            header = properties.replace(header, reply_to=reply_address)
            facts = properties.scan(header)
        return self._with_facts(route, header, facts)

    def addressed(
        self, route: Route, header: bytes, reply_address: bytes | None
    ) -> tuple[tuple[Queue, ...], Envelope]:
        """The queues for a publish, and its envelope (`envelope`).

        Raises `Unfinished` if finding the queues takes more than a turn.
        """
        envelope = self.envelope(route, header, reply_address)
        if route.queues is not None and not envelope.copies:
            return route.queues, envelope
        keys = envelope.routing_keys
        return self.vhost.queues_for(route.exchange, keys, envelope.header), envelope

    def route_of(self, arguments: bytes) -> Route:
        """The route for the argument octets of a basic.publish; it is not kept."""
        try:
            at = 3 + arguments[2]
            end = at + 1 + arguments[at]
            bits = arguments[end]
        except IndexError as error:
            raise MalformedArguments(f"cannot decode {octets_text(arguments)}") from error
        if end + 1 != len(arguments):
            raise MalformedArguments(f"cannot decode {octets_text(arguments)}")
        routing_key = to_text(arguments[at + 1 : end])
        if bits & _IMMEDIATE:
            raise Unsupported("immediate=true")
        known = self._exchanges.get(arguments[3:at]) or self._exchange(arguments[3:at])
        exchange, name = known.exchange, known.name
        if known.checks_keys:
            self._node.access.check_topic(self._user, self.vhost.name, name, routing_key, "write")
        queues = known.queues(routing_key)
        is_reply = not name and routing_key.startswith(REPLY_TO_PREFIX)
        # The octets between the reserved short and the bits.
        address = arguments[2:end]
        mandatory = bool(bits & _MANDATORY)
        observed = self.vhost.observation.is_needed
        return Route(
            exchange,
            name,
            routing_key,
            mandatory,
            queues,
            is_reply,
            address,
            is_observed=observed and self._is_observed(queues),
            by_key=known.queues if known.has_many_keys else None,
            # Whether observers want a publish depends on its queues.
            by_headers=None if observed else known.by_headers,
        )

    def _is_observed(self, queues: tuple[Queue, ...] | None) -> bool:
        """Whether observers may want the publishes to these queues."""
        known = self._observed.get(queues)
        if known is None:
            known = self._observed[queues] = self.vhost.observation.observes(
                self._user.name, queues
            )
        return known

    def _exchange(self, octets: bytes) -> _KnownExchange:
        """The exchange of that name, with the facts that hold for all publishes to it."""
        name = to_text(octets)
        vhost, user, access = self.vhost, self._user, self._node.access
        access.check_resource(user, vhost.name, "exchange", name, "write")
        exchange = vhost.exchange(name)
        if exchange.internal:
            raise AccessRefused(
                f"cannot publish to internal exchange '{name}' in vhost '{vhost.name}'"
            )
        queues: Callable[[str], tuple[Queue, ...] | None] = partial(vhost.queues_by_key, exchange)
        checks_keys = has_many_keys = False
        if isinstance(exchange, TopicExchange):
            checks_keys = access.has_topic_permission(user, vhost.name, name)
            has_many_keys = not checks_keys
            queues = PatternTargets(exchange, vhost.queues_by_key).queues
        by_headers: Callable[[bytes], tuple[Queue, ...]] | None = None
        if isinstance(exchange, HeadersExchange):
            targets = HeaderTargets(exchange, vhost.queues_for, vhost.codec, self._node.turns)
            by_headers = targets.queues
        if len(self._exchanges) >= EXCHANGES_MAX:
            self._exchanges.clear()
        known = self._exchanges[octets] = _KnownExchange(
            exchange, name, checks_keys, queues, has_many_keys, by_headers
        )
        return known

    def _with_facts(self, route: Route, header: bytes, facts: properties.Facts) -> Envelope:
        """The envelope, with the routing keys in CC and BCC. The properties are checked in
        RabbitMQ's order."""
        if facts.user_id is not None:
            self._check_user_id(facts.user_id)
        expiration_ms = None
        if facts.expiration is not None:
            expiration_ms = _expiration_ms(facts.expiration)
        copies: tuple[str, ...] = ()
        if properties.may_have_copies(header, facts):
            self._node.turns.spend(table_us(len(header)))
            header, copies = _copies(header)
            self._check_copies(route, copies)
        if facts.delivery_mode not in (None, 1, 2):
            raise PreconditionFailed(
                f"invalid message: {{delivery_mode_unknown,{facts.delivery_mode}}}"
            )
        return Envelope(
            route.exchange_name,
            route.routing_key,
            header,
            facts.delivery_mode == 2,
            facts.priority or 0,
            expiration_ms,
            copies,
            route.address,
        )

    def _check_copies(self, route: Route, copies: tuple[str, ...]) -> None:
        """A key in CC or BCC needs the permission that it needs as a routing key."""
        if route.exchange.type == "topic":
            vhost, exchange = self.vhost.name, route.exchange_name
            for key in copies:
                self._node.access.check_topic(self._user, vhost, exchange, key, "write")

    def _check_user_id(self, user_id: bytes) -> None:
        claimed = to_text(user_id)
        if claimed != self._user.name and not self._user.impersonator:
            raise PreconditionFailed(
                f"user_id property set to '{claimed}' but authenticated user was "
                f"'{self._user.name}'"
            )


async def publish_to_many(
    queues: Sequence[Queue],
    envelope: Envelope,
    body: bytes,
    confirms: ChannelConfirms | None,
    publish_seq: int,
    vhost: VirtualHost,
) -> None:
    """Publish to many queues; other work of the node has its turn in between."""
    turns = vhost.turns
    if confirms is not None:
        # Some queues may report the message safe before the last queue gets it.
        confirms.record(publish_seq, (PENDING,) * len(queues))
    for at in range(0, len(queues), QUEUES_BETWEEN_LOOKS):
        for queue in queues[at : at + QUEUES_BETWEEN_LOOKS]:
            # A queue that has been deleted meanwhile counts as if it had stored the message.
            answer = SETTLED
            current = vhost.current(queue)
            if current is not None:
                current.published += 1
                answer = current.publish(envelope, body, confirms, publish_seq)
            if confirms is not None and answer is not PENDING:
                (confirms.refuse if answer is REJECTED else confirms.settle)(publish_seq)
        turns.spend(QUEUE_US * QUEUES_BETWEEN_LOOKS)
        await turns.pause()


def _expiration_ms(raw: bytes) -> int:
    try:
        return properties.parse_expiration(raw)
    except properties.InvalidExpiration as error:
        raise PreconditionFailed(f"invalid expiration '{to_text(raw)}': {error.reason}") from error


def _copies(header: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The header without BCC, and the routing keys in CC and in BCC."""
    try:
        table = properties.headers(header)
    except properties.MalformedProperties as error:
        raise FrameError(f"cannot decode {binary_text(header)}") from error
    for name in ("CC", "BCC"):
        field = table.get(name)
        if field is not None and field.kind != "A":
            kind = KIND_NAMES[field.kind]
            raise PreconditionFailed(
                f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
            )
    copies = carbon_copies(table, "CC") + carbon_copies(table, "BCC")
    if "BCC" in table:
        del table["BCC"]
        header = properties.replace(header, headers=table)
    return header, copies
