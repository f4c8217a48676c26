"""What a publish resolves to, found once and kept while nothing changes.

The argument octets of basic.publish are the key of a cache for each connection: permission,
exchange, routing key and target queues follow from them alone. Under each route, the octets of
the content header are the key of a second cache for what follows from the properties. A change
of topology or permissions (`Topology.generation`) empties both.

The order of the checks is that of amqp_semantics.md section 5.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from warren.amqp import properties
from warren.amqp.confirms import ChannelConfirms
from warren.amqp.errors import FrameError
from warren.amqp.frames import BODY, HEAD, HEADER, METHOD, frame
from warren.amqp.names import clean_name
from warren.core.access import User
from warren.core.dead_letter import carbon_copies
from warren.core.erlang_text import binary_text
from warren.core.errors import AccessRefused, PreconditionFailed, Unsupported
from warren.core.exchange import Exchange
from warren.core.field import KIND_NAMES, to_text
from warren.core.message import Envelope
from warren.core.node import Node
from warren.core.queue import Queue
from warren.core.reply_to import REPLY_TO, REPLY_TO_PREFIX
from warren.core.settlement import (
    PENDING,
    REJECTED,
    SETTLED,
    PublishConfirms,
    Settlement,
)
from warren.core.vhost import Topology, VirtualHost

if TYPE_CHECKING:
    from warren.amqp.channel import Channel

ROUTES_MAX = 4096
"""Routes kept per connection; a publisher of more distinct routing keys starts anew."""

ENVELOPES_MAX = 512
"""Content headers kept per route; bodies of many sizes have as many headers."""

KEPT_OCTETS_MAX = 4 * 1024 * 1024
"""Octets of content headers kept per connection, their objects included."""

QUEUE_US = 2
"""What each queue costs that a message is published to, as `core/turns.py` counts it."""

QUEUES_AT_ONCE = 200
"""A message for more queues is published in turns."""

QUEUES_BETWEEN_LOOKS = 20
"""Queues that get it before it is looked whether the turn is over: limits may cost more."""

RUN = 1 << 30
RUN_BY_RULES = 32
"""Publishes of a run that are served at once, to a queue with rules and to any other."""

_ENVELOPE_OCTETS = 300
"""What an envelope costs besides its header."""

_PER_MESSAGE_PROPERTIES = 0x0400 | 0x0080 | 0x0040
"""Correlation id, message id, timestamp: who sets them hardly sends the same header twice."""

MALFORMED_TEXT = "Malformed UTF-8 in shortstr"

_MANDATORY = 1
_IMMEDIATE = 2


class Route:
    """Where publishes with the same arguments go.

    `queues` is None when more than the routing key decides, and every message is routed for
    itself. `is_reply`: it leads to a consumer of amq.rabbitmq.reply-to. `envelopes` are those of
    content headers seen before.
    """

    __slots__ = (
        "envelopes",
        "exchange",
        "exchange_name",
        "is_reply",
        "mandatory",
        "queues",
        "routing_key",
    )

    def __init__(
        self,
        exchange: Exchange,
        exchange_name: str,
        routing_key: str,
        mandatory: bool,
        queues: tuple[Queue, ...] | None,
    ) -> None:
        self.exchange = exchange
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.queues = queues
        self.is_reply = not exchange_name and routing_key.startswith(REPLY_TO_PREFIX)
        self.envelopes: dict[bytes, Envelope] = {}


class PublishRun:
    """A publish that can be repeated by comparing octets: one queue, one body frame.

    `head` is the method frame, the header frame and the head of the body frame. Of a run to a
    queue where a publish may be the cause of other work, such as dead letters, `octets_at_once`
    are served before somebody looks whether the turn is over.
    """

    __slots__ = (
        "body_size",
        "channel",
        "confirms",
        "envelope",
        "exchange",
        "generation",
        "head",
        "octets_at_once",
        "publish",
        "queue",
        "topology",
    )

    def __init__(
        self,
        head: bytes,
        body_size: int,
        envelope: Envelope,
        channel: Channel,
        exchange: Exchange,
        queue: Queue,
        confirms: ChannelConfirms | None,
        topology: Topology,
    ) -> None:
        self.head = head
        self.body_size = body_size
        self.envelope = envelope
        self.channel = channel
        self.exchange = exchange
        self.queue = queue
        self.publish: Callable[[Envelope, bytes, PublishConfirms | None, int], Settlement] = (
            queue.publish
        )
        self.confirms = confirms
        self.topology = topology
        self.generation = topology.generation
        publishes = RUN_BY_RULES if queue.has_rules else RUN
        self.octets_at_once = publishes * (len(head) + body_size + 1) + 1

    def count(self, publishes: int) -> None:
        """So many repetitions were served."""
        self.channel.published += publishes
        self.exchange.published_in += publishes
        self.exchange.published_out += publishes
        self.queue.published += publishes


class PublishRoutes:
    """The caches of one connection."""

    __slots__ = ("_generation", "_kept_octets", "_node", "_routes", "_topology", "_user", "vhost")

    def __init__(self, node: Node, vhost: VirtualHost, user: User) -> None:
        self._node = node
        self.vhost = vhost
        self._user = user
        self._topology = vhost.topology
        self._generation = vhost.topology.generation
        self._routes: dict[bytes, Route] = {}
        self._kept_octets = 0

    def route(self, arguments: bytes) -> Route:
        """The route for the argument octets of a basic.publish.

        Raises what the client is to be told: no permission, no such exchange.
        """
        if self._generation != self._topology.generation:
            self._routes.clear()
            self._generation = self._topology.generation
        route = self._routes.get(arguments)
        if route is None:
            route = self._resolve(arguments)
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[arguments] = route
        return route

    def envelope(self, route: Route, header: bytes, reply_address: bytes | None) -> Envelope:
        """The envelope for a content header that `route.envelopes` does not have.

        `reply_address` stands in for the pseudo queue amq.rabbitmq.reply-to. Raises
        `PreconditionFailed` for properties that cannot be.
        """
        try:
            facts = properties.scan(header)
        except properties.MalformedProperties as error:
            raise FrameError(f"cannot decode {binary_text(header)}") from error
        if facts is properties.NO_FACTS:
            envelope = Envelope(route.exchange_name, route.routing_key, header, False, 0, None)
        elif facts.reply_to == REPLY_TO:
            if reply_address is None:
                raise PreconditionFailed("fast reply consumer does not exist")
            addressed = properties.replace(header, reply_to=reply_address)
            return self._with_facts(route, addressed, properties.scan(addressed))
        else:
            envelope = self._with_facts(route, header, facts)
        if not (header[12] << 8 | header[13]) & _PER_MESSAGE_PROPERTIES:
            if len(route.envelopes) >= ENVELOPES_MAX:
                route.envelopes.clear()
            self._kept_octets += len(header) + _ENVELOPE_OCTETS
            if self._kept_octets > KEPT_OCTETS_MAX:
                for kept in self._routes.values():
                    kept.envelopes.clear()
                self._kept_octets = 0
            route.envelopes[header] = envelope
        return envelope

    def queues_for(self, route: Route, envelope: Envelope) -> tuple[Queue, ...]:
        """The queues for a publish whose queues do not follow from its routing key alone."""
        keys = (route.routing_key, *envelope.copies)
        return self.vhost.queues_for(route.exchange, keys, envelope.header)

    def _resolve(self, arguments: bytes) -> Route:
        exchange_name, routing_key, bits = _decode(arguments)
        if bits & _IMMEDIATE:
            raise Unsupported("immediate=true")
        vhost, user, access = self.vhost, self._user, self._node.access
        access.check_resource(user, vhost.name, "exchange", exchange_name, "write")
        exchange = vhost.exchange(exchange_name)
        if exchange.internal:
            raise AccessRefused(
                f"cannot publish to internal exchange '{exchange_name}' in vhost '{vhost.name}'"
            )
        if exchange.type == "topic":
            access.check_topic(user, vhost.name, exchange_name, routing_key, "write")
        queues = vhost.queues_by_key(exchange, routing_key)
        return Route(exchange, exchange_name, routing_key, bool(bits & _MANDATORY), queues)

    def _with_facts(self, route: Route, header: bytes, facts: properties.Facts) -> Envelope:
        """Check the properties, in RabbitMQ's order, and take the routing keys out of them."""
        if facts.user_id is not None:
            self._check_user_id(facts.user_id)
        expiration_ms = None
        if facts.expiration is not None:
            expiration_ms = _expiration_ms(facts.expiration)
        if facts.delivery_mode not in (None, 1, 2):
            raise PreconditionFailed(
                f"invalid message: {{delivery_mode_unknown,{facts.delivery_mode}}}"
            )
        copies: tuple[str, ...] = ()
        if facts.headers is not None:
            # A name in a table is its length and its octets: most tables need not be decoded.
            # (`find`: `in` raises and drops an error first, to learn that this is no number.)
            start, size = facts.headers
            end = start + size
            if header.find(b"\x02CC", start, end) > 0 or header.find(b"\x03BCC", start, end) > 0:
                header, copies = _copies(header)
                self._check_copies(route, copies)
        return Envelope(
            route.exchange_name,
            route.routing_key,
            header,
            facts.delivery_mode == 2,
            facts.priority or 0,
            expiration_ms,
            copies,
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
    """Publish to so many queues that others must have their turn in between."""
    turns = vhost.turns
    if confirms is not None:
        # Queues may have it safe before the last one gets it.
        confirms.record(publish_seq, (PENDING,) * len(queues))
    for at in range(0, len(queues), QUEUES_BETWEEN_LOOKS):
        for queue in queues[at : at + QUEUES_BETWEEN_LOOKS]:
            # One that is deleted by now is as good as one that has it.
            answer = SETTLED
            current = vhost.current(queue) if queue.deleted else queue
            if current is not None:
                current.published += 1
                answer = current.publish(envelope, body, confirms, publish_seq)
            if confirms is not None and answer is not PENDING:
                (confirms.refuse if answer is REJECTED else confirms.settle)(publish_seq)
        turns.spend(QUEUE_US * QUEUES_BETWEEN_LOOKS)
        await turns.pause()


def run_head(channel: int, arguments: bytes, header: bytes, body_size: int) -> bytes:
    """The octets every repetition of this publish starts with."""
    return (
        frame(METHOD, channel, struct.pack(">HH", 60, 40) + arguments)
        + frame(HEADER, channel, header)
        + HEAD.pack(BODY, channel, body_size)
    )


def _decode(arguments: bytes) -> tuple[str, str, int]:
    """Exchange, routing key and bits."""
    try:
        at = 3 + arguments[2]
        exchange = arguments[3:at]
        end = at + 1 + arguments[at]
        routing_key = arguments[at + 1 : end]
        bits = arguments[end]
    except IndexError as error:
        raise FrameError(f"cannot decode {binary_text(arguments)}") from error
    if end + 1 != len(arguments):
        raise FrameError(f"cannot decode {binary_text(arguments)}")
    try:
        return clean_name(exchange.decode()), routing_key.decode(), bits
    except UnicodeDecodeError as error:
        raise FrameError(MALFORMED_TEXT) from error


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
