"""Exchanges: a name, some flags and the bindings of which it is the source.

Each type answers one question: to which bindings does a message go? The answers of topic, headers
and x-consistent-hash are worked out in the modules of these names, that of x-federation-upstream in
`federation_hops.py`, what is a delay in `delay.py`, and what a history keeps in
`recent_history.py`. Following bindings to other
exchanges, alternate exchanges and the default exchange is `routing.py`'s; permissions, existence
and declaration rules are the virtual host's.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import ClassVar, TypeAlias
from zlib import crc32

from warren.core.errors import unknown_type
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.consistent_hash import (
    ConsistentHash,
    hash_source,
    hashed_value,
    weight_of,
)
from warren.core.exchanges.delay import (
    DELAY_NAMES,
    DELAYED_TYPE,
    delay_ms,
    delay_queue_name,
    routing_type,
)
from warren.core.exchanges.federation_hops import HOP_NAMES, hop_rule
from warren.core.exchanges.headers import HeadersRules, check_x_match
from warren.core.exchanges.recent_history import HISTORY_TYPE, RecentHistory, history_length
from warren.core.exchanges.topic import TopicTrie
from warren.core.field import Table, to_octets

Headers: TypeAlias = Callable[[Collection[bytes]], Table]
"""The headers with these names of the message being routed."""

ALTERNATE_EXCHANGE = "alternate-exchange"
"""The argument that names the alternate exchange, which gets messages not routed here."""

TRIED_PER_US = 4
"""Bindings of headers exchanges that are tried in a microsecond."""

PropertyText: TypeAlias = Callable[[str], bytes | None]
"""Returns a property of the message being routed, as `ContentCodec.property_text` does."""


class Exchange:
    """The base of all exchange types.

    `alternate` is the name of the effective alternate exchange, from argument or policy; the owner
    of the exchange sets it, and `declared_by`, the name of a user. `random` serves the types that
    choose by chance. `published_in` counts the publishes of clients, `published_out` the queues
    they reached; the code that publishes counts them.
    """

    type: ClassVar[str]

    by_key_only: bool = True
    """The answer depends on the routing key and the bindings alone, so it may be remembered."""

    @property
    def match_us(self) -> int:
        """The cost of the last call of `destinations`, if it grows with the number of bindings."""
        return 0

    every_key: bool = False
    """A message with CC or BCC keys is matched by each of its keys, not by the first alone."""

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
        random: Random,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.declared_by = ""
        self.alternate: str | None = None
        self.published_in = 0
        self.published_out = 0
        self._bindings: dict[Binding, None] = {}
        self._random = random
        self._prepare()

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} of type {self.type}, {len(self._bindings)} bindings>"

    @property
    def bindings(self) -> Collection[Binding]:
        """The bindings of which this exchange is the source, oldest first; a live view."""
        return self._bindings.keys()

    def check_binding(self, binding: Binding) -> None:
        """Raise `PreconditionFailed` if the type cannot have this binding; call it before `add`."""

    def add(self, binding: Binding) -> bool:
        """Add a checked binding; False if it existed already."""
        assert binding.source == self.name
        if binding in self._bindings:
            return False
        self._bindings[binding] = None
        self._index(binding)
        return True

    def remove(self, binding: Binding) -> bool:
        """Remove a binding; False if it did not exist."""
        if binding not in self._bindings:
            return False
        del self._bindings[binding]
        self._unindex(binding)
        return True

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        """The bindings that take a message, in an order that depends only on the history of
        bindings. Several may name one destination."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Create the state that the type keeps besides the bindings."""

    def _index(self, binding: Binding) -> None:
        """Make a new binding known to `destinations`."""

    def _unindex(self, binding: Binding) -> None:
        """Make a removed binding unknown to `destinations`."""


class DirectExchange(Exchange):
    """Takes the bindings with the message's routing key."""

    type = "direct"
    every_key = True

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self._by_key.get(routing_key, ())

    def _prepare(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def _index(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding] = None

    def _unindex(self, binding: Binding) -> None:
        bindings = self._by_key[binding.routing_key]
        del bindings[binding]
        if not bindings:
            del self._by_key[binding.routing_key]


class FanoutExchange(Exchange):
    """Takes every binding."""

    type = "fanout"

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self._bindings


class TopicExchange(Exchange):
    """Takes the bindings whose pattern the routing key fits."""

    type = "topic"
    every_key = True

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self.patterns.match(routing_key)

    def _prepare(self) -> None:
        self.patterns = TopicTrie()

    def _index(self, binding: Binding) -> None:
        self.patterns.add(binding)

    def _unindex(self, binding: Binding) -> None:
        self.patterns.remove(binding)


class HeadersExchange(Exchange):
    """Takes the bindings whose arguments the headers of the message satisfy."""

    type = "headers"
    by_key_only = False

    @property
    def match_us(self) -> int:
        return self._rules.tried // TRIED_PER_US

    @property
    def names(self) -> Collection[bytes]:
        """The names of all headers that its bindings ask for; a live view."""
        return self._rules.names

    def match(self, headers: Table) -> list[Binding]:
        """The bindings that take a message which has these of the headers with these `names`."""
        return self._rules.match(headers)

    def check_binding(self, binding: Binding) -> None:
        check_x_match(binding.arguments)

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self.match(headers(self.names))

    def _prepare(self) -> None:
        self._rules = HeadersRules()

    def _index(self, binding: Binding) -> None:
        self._rules.add(binding)

    def _unindex(self, binding: Binding) -> None:
        self._rules.remove(binding)


class ConsistentHashExchange(Exchange):
    """Takes one binding, the same for equal routing keys, headers or properties.

    Arguments that make no sense raise `PreconditionFailed` when the exchange is made.
    """

    type = "x-consistent-hash"

    def check_binding(self, binding: Binding) -> None:
        weight_of(binding.routing_key)

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        chosen = self._ring.choose(self._hashed(routing_key, headers, property_text))
        return () if chosen is None else (chosen,)

    def _hashed(self, routing_key: str, headers: Headers, property_text: PropertyText) -> bytes:
        if self._source.header is not None:
            name = self._source.header
            return hashed_value(headers((to_octets(name),)).get(name))
        if self._source.property is not None:
            return property_text(self._source.property) or b""
        return to_octets(routing_key)

    def _prepare(self) -> None:
        self._source = hash_source(self.arguments)
        self._ring = ConsistentHash()
        self.by_key_only = self._source.header is None and self._source.property is None

    def _index(self, binding: Binding) -> None:
        self._ring.add(binding)

    def _unindex(self, binding: Binding) -> None:
        self._ring.remove(binding)


class RandomExchange(Exchange):
    """Takes one binding by chance, each with the same probability."""

    type = "x-random"
    by_key_only = False

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return (self._random.choice(self._candidates),) if self._candidates else ()

    def _prepare(self) -> None:
        self._candidates: list[Binding] = []
        self._places: dict[Binding, int] = {}

    def _index(self, binding: Binding) -> None:
        self._places[binding] = len(self._candidates)
        self._candidates.append(binding)

    def _unindex(self, binding: Binding) -> None:
        # The last one takes the place of the one that goes.
        place = self._places.pop(binding)
        last = self._candidates.pop()
        if last is not binding and place < len(self._candidates):
            self._candidates[place] = last
            self._places[last] = place


class ModulusHashExchange(Exchange):
    """Takes one binding, the same for equal routing keys as long as the bindings stay.

    The hash of the key, modulo the number of bindings, says which; binding keys do not matter. The
    bindings are counted in the order of their names, which is the same on every node and after a
    restart. Each that comes or goes moves most keys elsewhere, which x-consistent-hash avoids.
    """

    type = "x-modulus-hash"

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        if not self._ordered:
            return ()
        hashed = crc32(to_octets(routing_key))
        return (self._ordered[hashed % len(self._ordered)],)

    def _prepare(self) -> None:
        self._ordered: list[Binding] = []

    def _index(self, binding: Binding) -> None:
        insort(self._ordered, binding, key=_in_order)

    def _unindex(self, binding: Binding) -> None:
        del self._ordered[bisect_left(self._ordered, _in_order(binding), key=_in_order)]


class FederationUpstreamExchange(Exchange):
    """Takes every binding, unless the message was downstream already, or has come too far.

    The federation of another broker declares it here, between an exchange and the queue from which
    it takes messages. Arguments that make no sense raise `PreconditionFailed`.
    """

    type = "x-federation-upstream"
    by_key_only = False

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self._bindings if self._rule.lets_pass(headers(HOP_NAMES)) else ()

    def _prepare(self) -> None:
        self._rule = hop_rule(self.arguments)


class RecentHistoryExchange(Exchange):
    """Takes every binding; what is bound later gets the last messages.

    `core/vhosts/histories.py` fills the history and sends it. Arguments that make no sense raise
    `PreconditionFailed` when the exchange is made.
    """

    type = HISTORY_TYPE
    # The history has to see each message that passes.
    by_key_only = False

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        return self._bindings

    def _prepare(self) -> None:
        self.history = RecentHistory(history_length(self.arguments))


class DelayedExchange(Exchange):
    """Keeps a message with a delay in its delay queue, and routes others as another type does.

    Arguments that name no such type raise `PreconditionFailed` or `CommandInvalid` when the
    exchange is made.
    """

    type = DELAYED_TYPE
    by_key_only = False

    @property
    def match_us(self) -> int:
        return self._routing.match_us

    @property
    def delay_queue(self) -> str:
        """The name of the queue in which delayed messages wait."""
        return self._to_delay_queue.destination

    def check_binding(self, binding: Binding) -> None:
        self._routing.check_binding(binding)

    def destinations(
        self, routing_key: str, headers: Headers, property_text: PropertyText
    ) -> Collection[Binding]:
        if delay_ms(headers(DELAY_NAMES)) is not None:
            return (self._to_delay_queue,)
        return self._routing.destinations(routing_key, headers, property_text)

    def _prepare(self) -> None:
        self._routing = make_exchange(
            routing_type(self.arguments), self.name, arguments=self.arguments, random=self._random
        )
        self.every_key = self._routing.every_key
        self._to_delay_queue = Binding(self.name, "queue", delay_queue_name(self.name), "", {})

    def _index(self, binding: Binding) -> None:
        self._routing.add(binding)

    def _unindex(self, binding: Binding) -> None:
        self._routing.remove(binding)


def _in_order(binding: Binding) -> tuple[str, str, str, str]:
    kind = binding.destination_kind
    return kind, binding.destination, binding.routing_key, binding.fingerprint


EXCHANGE_TYPES: Mapping[str, type[Exchange]] = {
    kind.type: kind
    for kind in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
        RandomExchange,
        ModulusHashExchange,
        FederationUpstreamExchange,
        RecentHistoryExchange,
        DelayedExchange,
    )
}


INTERNAL_USER = "rmq-internal"
"""The user who declares objects that the broker makes by itself."""


def make_exchange(
    kind: str,
    name: str,
    *,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Table | None = None,
    random: Random,
) -> Exchange:
    """An exchange of the named type. Raises `CommandInvalid` if there is no such type, and
    `PreconditionFailed` if the type does not have these arguments."""
    made = EXCHANGE_TYPES.get(kind)
    if made is None:
        raise unknown_type(kind)
    return made(
        name,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments={} if arguments is None else arguments,
        random=random,
    )
