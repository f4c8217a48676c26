"""A virtual host: its exchanges, queues and bindings, and the rules between them.

Every change of what a publish would resolve to bumps `topology.generation`, which is how the
caches of the connections notice. Durable entities are written to the metadata store in the same
call; the caller asks the store when they are on disk (`MetadataStore.uncommitted`).

The rules are those of amqp_semantics.md sections 2.1, 3 and 4.1. Permissions are the caller's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import cast

import msgspec

from warren.core import dead_letter, queue_arguments
from warren.core.backing_queue import LEVELS, BackingQueue, BackingSpec
from warren.core.binding import Binding, DestinationKind
from warren.core.errors import (
    BrokerError,
    CommandInvalid,
    PreconditionFailed,
    no_exchange,
    no_queue,
)
from warren.core.exchange import EXCHANGE_TYPES, Exchange, make_exchange
from warren.core.field import KIND_NAMES, Field, Table, from_plain, to_plain, to_text
from warren.core.firehose import TRACE_EXCHANGE, Firehose
from warren.core.limits import VhostLimits
from warren.core.log_line import log_event
from warren.core.message import Envelope, Message
from warren.core.message_stats import NOTHING, MessageStats
from warren.core.node_counts import NodeCounts
from warren.core.policy import Policies
from warren.core.ports import Clock, ContentCodec, Key, MetadataStore, Stored, Write
from warren.core.priority_queue import PriorityQueue
from warren.core.queue import DeathReason, Queue
from warren.core.records import BindingRecord, ExchangeRecord, QueueRecord
from warren.core.reply_to import REPLY_TO_PREFIX, Replies
from warren.core.routing import DEFAULT_EXCHANGE, route

log = logging.getLogger("warren.vhost")
queue_log = logging.getLogger("warren.queue")

ALTERNATE_EXCHANGE = "alternate-exchange"

QUEUE_ID_BITS = 54
"""Random bits that tell queues apart on disk, deleted ones included."""

BURIALS_A_TURN = 200
"""Dead letters published before other work gets a turn; some milliseconds."""

PREDECLARED = (
    (DEFAULT_EXCHANGE, "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    (TRACE_EXCHANGE, "topic", True),
)
"""Name, type and whether internal of the exchanges every virtual host has."""


class Topology:
    """Counts the changes of what a publish resolves to."""

    __slots__ = ("generation",)

    def __init__(self) -> None:
        self.generation = 0


class VirtualHost:
    """One virtual host. `new_backing_queue` makes what holds the messages of one queue."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        codec: ContentCodec,
        store: MetadataStore,
        policies: Policies,
        limits: VhostLimits,
        replies: Replies,
        counts: NodeCounts,
        random: Random,
        new_backing_queue: Callable[[BackingSpec], BackingQueue],
    ) -> None:
        self.name = name
        self.clock = clock
        self.topology = Topology()
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.firehose: Firehose | None = None
        # What passed through channels and queues that are gone.
        self.past_channels = NOTHING
        self.past_received = 0
        self.past_sent = 0
        self._ended = False
        self._codec = codec
        self._store = store
        self._policies = policies
        self._limits = limits
        self._replies = replies
        self._counts = counts
        self._random = random
        self._new_backing_queue = new_backing_queue
        self._bindings_to: dict[tuple[str, str], dict[Binding, None]] = {}
        self._exclusive: dict[object, dict[str, Queue]] = {}
        self._dying: deque[tuple[Queue, Message, DeathReason]] = deque()
        self._burying = False
        self._burial_scheduled = False
        for exchange, kind, internal in PREDECLARED:
            self._add_exchange(
                exchange, kind, durable=True, auto_delete=False, internal=internal, arguments={}
            )

    def recover(self) -> None:
        """Bring back the durable entities the store has.

        What cannot be brought back, such as an exchange of a type this version does not know, is
        logged and left in the store. What a queue drops when it comes back is dead-lettered when
        all is there that it may be meant for.
        """
        self._burying = True
        try:
            self._recover_all()
        finally:
            self._burying = False
        self._bury_dead()

    def _recover_all(self) -> None:
        for kind, bring_back in (
            ("exchange", self._recover_exchange),
            ("queue", self._recover_queue),
            ("binding", self._recover_binding),
        ):
            for stored in self._store.records((kind, self.name)):
                try:
                    bring_back(stored)
                except BrokerError as error:
                    log_event(
                        log,
                        logging.ERROR,
                        "definition_skipped",
                        key="/".join(stored.key),
                        reason=error.text,
                    )

    def _recover_exchange(self, stored: Stored) -> None:
        exchange = stored.record
        assert isinstance(exchange, ExchangeRecord)
        self._add_exchange(
            stored.key[2],
            exchange.type,
            durable=True,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=from_plain(exchange.arguments),
        )

    def _recover_queue(self, stored: Stored) -> None:
        queue = stored.record
        assert isinstance(queue, QueueRecord)
        if not queue.queue_id:
            # Declared before queues had a storage.
            queue = msgspec.structs.replace(queue, queue_id=self._new_queue_id())
            self._store.transact([Write(stored.key, queue)])
        self._add_queue(
            stored.key[2],
            durable=True,
            exclusive_owner=None,
            auto_delete=queue.auto_delete,
            arguments=from_plain(queue.arguments),
            queue_id=queue.queue_id,
        )

    def _recover_binding(self, stored: Stored) -> None:
        record = stored.record
        assert isinstance(record, BindingRecord)
        _, _, source, kind, destination, routing_key, _ = stored.key
        binding = Binding(
            source,
            cast(DestinationKind, kind),
            destination,
            routing_key,
            from_plain(record.arguments),
        )
        self.exchange(source).check_binding(binding)
        if kind == "queue":
            self.queue(destination)
        else:
            self.exchange(destination)
        self._add_binding(binding)

    # Exchanges

    def exchange(self, name: str) -> Exchange:
        """Raises `NotFound`."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise no_exchange(name, self.name)
        return exchange

    def check_exchange_type(self, kind: str) -> None:
        """Raise `CommandInvalid` when there is no such type."""
        if kind not in EXCHANGE_TYPES:
            raise CommandInvalid(f"unknown exchange type '{kind}'")

    def check_exchange_arguments(self, name: str, arguments: Table) -> None:
        """Raise `PreconditionFailed` when what names the alternate exchange is no string."""
        alternate = arguments.get(ALTERNATE_EXCHANGE)
        if alternate is not None and alternate.kind != "S":
            raise PreconditionFailed(
                f"invalid type '{KIND_NAMES[alternate.kind]}' for arg '{ALTERNATE_EXCHANGE}' in "
                f"exchange '{name}' in vhost '{self.name}'"
            )

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
    ) -> Exchange:
        """Make an exchange that does not exist yet."""
        exchange = self._add_exchange(
            name,
            kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        if durable:
            record = ExchangeRecord(kind, auto_delete, internal, to_plain(arguments))
            self._store.transact([Write(("exchange", self.name, name), record)])
        return exchange

    def check_exchange_equivalent(
        self,
        exchange: Exchange,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
    ) -> None:
        """Raise `PreconditionFailed` when a declaration contradicts the exchange there is."""
        described = f"exchange '{exchange.name}' in vhost '{self.name}'"
        for name, received, current in (
            ("type", kind, exchange.type),
            ("durable", durable, exchange.durable),
            ("auto_delete", auto_delete, exchange.auto_delete),
            ("internal", internal, exchange.internal),
        ):
            if received != current:
                raise _inequivalent(name, described, _shown(received), _shown(current))
        received_alternate = arguments.get(ALTERNATE_EXCHANGE)
        current_alternate = exchange.arguments.get(ALTERNATE_EXCHANGE)
        if received_alternate != current_alternate:
            both = received_alternate is not None and current_alternate is not None
            raise _inequivalent(
                ALTERNATE_EXCHANGE,
                described,
                _shown_argument(received_alternate, both),
                _shown_argument(current_alternate, both),
            )

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete the exchange and its bindings; one that does not exist is no error."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        self._delete_exchanges([exchange], [])

    # Queues

    def queue(self, name: str) -> Queue:
        """Raises `NotFound`."""
        queue = self.queues.get(name)
        if queue is None:
            raise no_queue(name, self.name)
        return queue

    def check_queue_limit(self, name: str) -> None:
        """Raise `PreconditionFailed` when the virtual host may have no further queue."""
        self._limits.check_queue(self.name, name, len(self.queues))

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: Table,
    ) -> Queue:
        """Make a queue that does not exist yet. Raises `PreconditionFailed` for its arguments."""
        queue_id = self._new_queue_id()
        self._counts.queues_created += 1
        queue = self._add_queue(
            name,
            durable=durable,
            exclusive_owner=exclusive_owner,
            auto_delete=auto_delete,
            arguments=arguments,
            queue_id=queue_id,
        )
        log_event(queue_log, logging.DEBUG, "queue_declared", queue=name, vhost=self.name)
        if queue.survives:
            record = QueueRecord(auto_delete, to_plain(arguments), queue_id)
            self._store.transact([Write(("queue", self.name, name), record)])
        return queue

    def _new_queue_id(self) -> int:
        return self._random.getrandbits(QUEUE_ID_BITS) * LEVELS

    def check_queue_equivalent(
        self,
        queue: Queue,
        connection: object,
        *,
        exclusive: bool,
        durable: bool,
        auto_delete: bool,
        arguments: Table,
    ) -> None:
        """Raise when a declaration contradicts the queue there is.

        `ResourceLocked` where exclusiveness differs, `PreconditionFailed` for all else.
        """
        owner = connection if exclusive else None
        if queue.exclusive_owner is not owner:
            raise queue.locked()
        described = f"queue '{queue.name}' in vhost '{self.name}'"
        for name, received, current in (
            ("durable", durable, queue.durable),
            ("auto_delete", auto_delete, queue.auto_delete),
        ):
            if received != current:
                raise _inequivalent(name, described, _shown(received), _shown(current))
        queue_arguments.check_equivalent(queue.name, self.name, arguments, queue.arguments)

    def delete_queue(self, queue: Queue) -> int:
        """Delete the queue and its bindings. Returns how many messages were ready."""
        return self._delete_queues([queue])

    def delete_exclusive_queues(self, connection: object) -> None:
        """The connection ends, and its exclusive queues with it."""
        owned = self._exclusive.get(connection)
        if owned:
            self._delete_queues(list(owned.values()))

    def queue_unused(self, queue: Queue) -> None:
        """`QueueOwner`: an auto-delete or expired queue goes."""
        if not queue.deleted:
            self._delete_queues([queue])

    # Bindings

    def bind(self, binding: Binding, connection: object) -> None:
        """Bind. The same binding again is no error.

        Raises `NotFound`, `ResourceLocked`, or what the exchange has against the binding.
        """
        source = self.exchange(binding.source)
        if binding.destination_kind == "queue":
            self.queue(binding.destination).check_access(connection)
        else:
            self.exchange(binding.destination)
        source.check_binding(binding)
        if self._add_binding(binding) and self._durable(binding):
            self._store.transact(
                [Write(self._binding_key(binding), BindingRecord(to_plain(binding.arguments)))]
            )

    def unbind(self, binding: Binding, connection: object) -> None:
        """Unbind. What does not exist is no error."""
        if binding.destination_kind == "queue":
            queue = self.queues.get(binding.destination)
            if queue is not None:
                queue.check_access(connection)
        writes: list[Write] = []
        self._delete_exchanges(self._remove_bindings([binding], writes), writes)

    def bindings(self) -> Iterator[Binding]:
        """All bindings but the implicit ones of the default exchange."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings

    def bindings_to(self, kind: str, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return list(self._bindings_to.get((kind, name), ()))

    # Publishing

    def queues_by_key(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...] | None:
        """The queues for this key, or None when the message decides too."""
        routed = route(
            self.exchanges.get,
            exchange,
            (routing_key,),
            dict,
            lambda name: None,
            self.queues.__contains__,
        )
        return self._queues(routed.queues) if routed.by_key_only else None

    def queues_for(
        self, exchange: Exchange, routing_keys: Sequence[str], header: bytes
    ) -> tuple[Queue, ...]:
        """The queues for a message with these keys and this content header."""
        routed = route(
            self.exchanges.get,
            exchange,
            routing_keys,
            lambda: self._codec.headers(header),
            lambda name: self._codec.property_text(header, name),
            self.queues.__contains__,
        )
        return self._queues(routed.queues)

    def reply(self, envelope: Envelope, body: bytes, routing_keys: Iterable[str]) -> None:
        """Hand a message for the default exchange to the waiting channels its keys name."""
        for key in routing_keys:
            if key.startswith(REPLY_TO_PREFIX):
                self._replies.deliver(key, envelope, body)

    def publish(self, envelope: Envelope, body: bytes, routing_keys: Sequence[str]) -> None:
        """Publish for the broker itself: nobody is asked and nobody is told."""
        exchange = self.exchanges.get(envelope.exchange)
        if exchange is not None:
            for queue in self.queues_for(exchange, routing_keys, envelope.header):
                queue.published += 1
                queue.publish(envelope, body, None, 0)

    def dead_letter(self, queue: Queue, message: Message, reason: DeathReason) -> None:
        """`QueueOwner`: a message died. One death at a time, however they cascade."""
        if queue.settings.dead_letter_exchange is None:
            return
        self._counts.dead_lettered[reason] += 1
        self._dying.append((queue, message, reason))
        self._bury_dead()

    def dead_letter_all(
        self, queue: Queue, messages: Iterable[Message], reason: DeathReason
    ) -> None:
        """`QueueOwner`: many messages died, the oldest first."""
        if queue.settings.dead_letter_exchange is not None:
            dead = [(queue, message, reason) for message in messages]
            self._counts.dead_lettered[reason] += len(dead)
            self._dying.extend(dead)
            self._bury_dead()

    def _bury_dead(self) -> None:
        """Publish what died, so many at a time: a burial may be the cause of further deaths."""
        if self._burying:
            return
        self._burying = True
        left = BURIALS_A_TURN
        try:
            while self._dying and left:
                left -= 1
                self._bury(*self._dying.popleft())
        finally:
            self._burying = False
        if self._dying and not self._burial_scheduled:
            self._burial_scheduled = True
            self.clock.call_soon(self._bury_more)

    def _bury_more(self) -> None:
        self._burial_scheduled = False
        self._bury_dead()

    def _bury(self, queue: Queue, message: Message, reason: DeathReason) -> None:
        exchange = self.exchanges.get(queue.settings.dead_letter_exchange or DEFAULT_EXCHANGE)
        if exchange is None:
            return
        envelope, keys, headers = dead_letter.dead_lettered(
            message.envelope,
            queue.name,
            reason,
            queue.settings,
            self.clock.wall_time(),
            self._codec,
        )
        if exchange.name == DEFAULT_EXCHANGE:
            self.reply(envelope, message.body, keys)
        for target in self.queues_for(exchange, keys, envelope.header):
            if not dead_letter.goes_in_circles(headers, target.name, reason):
                target.published += 1
                target.publish(envelope, message.body, None, 0)

    def count_past(self, stats: MessageStats) -> None:
        """Count what passed through a channel that is gone, or was none, as with HTTP."""
        if self._ended:
            self._counts.past_channels = self._counts.past_channels.plus(stats)
        else:
            self.past_channels = self.past_channels.plus(stats)

    def connection_ended(self, received_octets: int, sent_octets: int) -> None:
        """A connection to the virtual host is gone; what passed through it still counts."""
        if self._ended:
            self._counts.past_received += received_octets
            self._counts.past_sent += sent_octets
        else:
            self.past_received += received_octets
            self.past_sent += sent_octets

    # Policies and tracing

    def apply_policies(self) -> None:
        """A policy of the virtual host changed: every queue and exchange follows."""
        for queue in list(self.queues.values()):
            queue.apply_settings(self._settings(queue.name, queue.arguments))
        for exchange in self.exchanges.values():
            exchange.alternate = self._alternate(exchange)
        self.topology.generation += 1

    def trace_with(self, firehose: Firehose | None) -> None:
        """Start or stop copying every publish and delivery to amq.rabbitmq.trace."""
        self.firehose = firehose
        for queue in self.queues.values():
            queue.trace_with(firehose)
        self.topology.generation += 1

    def stop(self) -> None:
        """The node stops; what is durable is to be found again."""
        while self._dying:
            self._bury_dead()
        for queue in self.queues.values():
            queue.stop()

    def end(self) -> None:
        """The virtual host is deleted: its queues end, and with them their consumers."""
        self._ended = True
        self.count_past(self.past_channels)
        self.connection_ended(self.past_received, self.past_sent)
        for queue in list(self.queues.values()):
            queue.delete()
        self.queues.clear()
        self.exchanges.clear()
        self._bindings_to.clear()
        self._exclusive.clear()
        self.topology.generation += 1

    # What keeps the maps in step

    def _add_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
    ) -> Exchange:
        exchange = make_exchange(
            kind,
            name,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
            random=self._random,
        )
        self.exchanges[name] = exchange
        exchange.alternate = self._alternate(exchange)
        self.topology.generation += 1
        return exchange

    def _add_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: Table,
        queue_id: int,
    ) -> Queue:
        settings = self._settings(name, arguments)
        # An exclusive queue ends with its connection, and so at the latest with the node.
        spec = BackingSpec(queue_id, durable and exclusive_owner is None, settings.queue_mode)
        backing: BackingQueue
        if settings.max_priority is None:
            backing = self._new_backing_queue(spec)
        else:
            backing = PriorityQueue(
                settings.max_priority,
                lambda level: self._new_backing_queue(spec._replace(queue_id=queue_id + level)),
            )
        queue = Queue(
            self,
            name,
            durable=durable,
            auto_delete=auto_delete,
            exclusive_owner=exclusive_owner,
            arguments=arguments,
            settings=settings,
            backing=backing,
        )
        if self.firehose is not None:
            queue.trace_with(self.firehose)
        self.queues[name] = queue
        if exclusive_owner is not None:
            self._exclusive.setdefault(exclusive_owner, {})[name] = queue
        self.topology.generation += 1
        return queue

    def _add_binding(self, binding: Binding) -> bool:
        if not self.exchanges[binding.source].add(binding):
            return False
        destination = (binding.destination_kind, binding.destination)
        self._bindings_to.setdefault(destination, {})[binding] = None
        self.topology.generation += 1
        return True

    def _delete_queues(self, queues: Iterable[Queue]) -> int:
        """Delete queues, their bindings and the auto-delete exchanges that leaves unused."""
        ready = 0
        writes: list[Write] = []
        orphans: list[Binding] = []
        for queue in queues:
            if self.queues.pop(queue.name, None) is None:
                continue
            log_event(queue_log, logging.DEBUG, "queue_deleted", queue=queue.name, vhost=self.name)
            self._counts.queues_deleted += 1
            if queue.exclusive_owner is not None:
                owned = self._exclusive[queue.exclusive_owner]
                del owned[queue.name]
                if not owned:
                    del self._exclusive[queue.exclusive_owner]
            if queue.survives:
                writes.append(Write(("queue", self.name, queue.name), None))
            orphans += self.bindings_to("queue", queue.name)
            ready += queue.delete()
        self._delete_exchanges(self._remove_bindings(orphans, writes), writes)
        return ready

    def _delete_exchanges(self, exchanges: Iterable[Exchange], writes: list[Write]) -> None:
        """Delete exchanges and what goes with them, however far that cascades.

        All of it, `writes` included, is one transaction: a crash leaves no exchange behind that
        only its last binding would have deleted.
        """
        doomed = deque(exchanges)
        while doomed:
            exchange = doomed.popleft()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            del self.exchanges[exchange.name]
            if exchange.durable:
                writes.append(Write(("exchange", self.name, exchange.name), None))
            for binding in exchange.bindings:
                self._forget_destination(binding)
                self._unstore(binding, exchange.durable, writes)
            doomed += self._remove_bindings(self.bindings_to("exchange", exchange.name), writes)
        self.topology.generation += 1
        if writes:
            self._store.transact(writes)

    def _remove_bindings(
        self, bindings: Iterable[Binding], writes: list[Write]
    ) -> Iterable[Exchange]:
        """Remove bindings; returns the auto-delete exchanges that lost their last one."""
        unused: dict[str, Exchange] = {}
        for binding in bindings:
            source = self.exchanges.get(binding.source)
            if source is None or not source.remove(binding):
                continue
            self._forget_destination(binding)
            self._unstore(binding, source.durable, writes)
            if source.auto_delete and not source.bindings:
                unused[source.name] = source
        return unused.values()

    def _forget_destination(self, binding: Binding) -> None:
        destination = (binding.destination_kind, binding.destination)
        bindings = self._bindings_to[destination]
        del bindings[binding]
        if not bindings:
            del self._bindings_to[destination]

    def _unstore(self, binding: Binding, source_durable: bool, writes: list[Write]) -> None:
        key = self._binding_key(binding)
        if source_durable and self._store.get(key) is not None:
            writes.append(Write(key, None))

    def _durable(self, binding: Binding) -> bool:
        """A binding survives a restart if both its ends do."""
        if not self.exchanges[binding.source].durable:
            return False
        if binding.destination_kind == "queue":
            return self.queues[binding.destination].survives
        return self.exchanges[binding.destination].durable

    def _binding_key(self, binding: Binding) -> Key:
        return (
            "binding",
            self.name,
            binding.source,
            binding.destination_kind,
            binding.destination,
            binding.routing_key,
            binding.fingerprint,
        )

    def _queues(self, names: Iterable[str]) -> tuple[Queue, ...]:
        queues = self.queues
        return tuple([queues[name] for name in names if name in queues])

    def _settings(self, name: str, arguments: Table) -> queue_arguments.QueueSettings:
        declared = queue_arguments.parse(name, self.name, arguments)
        return self._policies.queue_settings(self.name, name, declared)

    def _alternate(self, exchange: Exchange) -> str | None:
        argument = exchange.arguments.get(ALTERNATE_EXCHANGE)
        if argument is not None:
            return to_text(argument.value)
        return self._policies.alternate_exchange(self.name, exchange.name)


def _inequivalent(name: str, described: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {described}: received {received} but current is {current}"
    )


def _shown(value: str | bool) -> str:
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return f"'{value}'"


def _shown_argument(argument: Field | None, both: bool) -> str:
    if argument is None:
        return "none"
    text = to_text(argument.value) if argument.kind == "S" else str(argument.value)
    return f"'{text}'" if both else f"the value '{text}' of type '{KIND_NAMES[argument.kind]}'"
