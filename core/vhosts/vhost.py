"""A virtual host: its exchanges, queues and bindings, and the rules between them.

The definitions in the metadata store are the truth, and what lives here follows them. A method
that declares, binds or deletes decides what is to be written and hands it to the store; exchanges,
queues and bindings come and go when the store tells of the change. On a single node that is
before the call returns; in a cluster it is when the commit is `visible`, and the call has to be
made again when it was `refused`.

Every change of what a publish would resolve to bumps `topology.generation`, which is how the
caches of the connections notice.

The rules are those of amqp_semantics.md sections 2.1, 3 and 4.1. Permissions are the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from warren.core.access.quotas import VhostQuotas
from warren.core.definitions.records import (
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
    VirtualHostRecord,
    group_key,
)
from warren.core.errors import (
    NotFound,
    PreconditionFailed,
    unknown_type,
)
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.delay import DELAYED_TYPE, check_name, delay_queue_name
from warren.core.exchanges.exchange import (
    ALTERNATE_EXCHANGE,
    EXCHANGE_TYPES,
    INTERNAL_USER,
    Exchange,
)
from warren.core.exchanges.removal import Removal
from warren.core.exchanges.routing import DEFAULT_EXCHANGE, Routed, route, table_us
from warren.core.field import KIND_NAMES, Table, to_plain
from warren.core.log_line import log_event
from warren.core.messages.firehose import TRACE_EXCHANGE
from warren.core.messages.message import Envelope
from warren.core.messages.message_observer import MessageObserver
from warren.core.messages.message_stats import NOTHING, MessageStats
from warren.core.ports import (
    Commit,
    Conflict,
    Key,
    Precondition,
    Write,
)
from warren.core.queues import argument_equivalence, queue_arguments
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import CLASSIC, MEMBER_TYPES, majority_of, with_default_type
from warren.core.queues.quorum_level import LastingEnvelopes
from warren.core.scheduling.waiting import Waiting, run
from warren.core.vhosts.applied_policies import AppliedPolicies
from warren.core.vhosts.burials import Burials
from warren.core.vhosts.contents import Contents
from warren.core.vhosts.ending import Ending
from warren.core.vhosts.equivalence import inequivalent, shown
from warren.core.vhosts.following import Following, made_exchange, new_queue_id
from warren.core.vhosts.histories import Histories
from warren.core.vhosts.observation import Observation
from warren.core.vhosts.queue_making import Makings, follow_retention
from warren.core.vhosts.reply_to import REPLY_TO_PREFIX
from warren.core.vhosts.shared_parts import SharedParts

log = logging.getLogger("warren.vhost")
queue_log = logging.getLogger("warren.queue")

FEW = 20
"""Queues that may go with their virtual host in one transaction."""

DECLARE_US = 100
LEVEL_US = 4
BIND_US, ARGUMENT_US = 40, 5
DELETE_US = 20
"""The cost of declaring a queue or exchange, of each level of a queue, of a binding and of each of
its arguments, of deleting."""

CHECKED_MAX = 100
"""Definitions of which a deletion checks that no other node has changed them meanwhile."""

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


class VirtualHost:
    """One virtual host."""

    def __init__(self, name: str, parts: SharedParts) -> None:
        self.name = name
        self.clock = clock = parts.clock
        self.turns = turns = parts.turns
        self.codec = codec = parts.codec
        self._store = store = parts.store
        self._placement = placement = parts.placement
        self._local_queues = local_queues = parts.local_queues
        self._contents = contents = Contents(name)
        self.topology = contents.topology
        self.exchanges, self.queues = contents.exchanges, contents.queues
        # The exchanges that have a delay queue.
        self.delayed = contents.delayed
        self.observation = Observation(self.queues, self.topology)
        # The quotas of its queues; `Node` sets them.
        self.quotas: VhostQuotas | None = None
        # Messages of channels, and octets of connections, that are gone.
        self.past_channels = NOTHING
        self.past_received = self.past_sent = 0
        self._ended = False
        # Whether it is being deleted, in turns.
        self._is_going = False
        self.histories = Histories(self, codec, turns)
        self._applied = AppliedPolicies(contents, parts.policies, turns)
        self._limits = parts.limits
        self._replies = parts.replies
        self._counts = parts.counts
        self._makings = Makings(
            self, parts.new_backing_queue, LastingEnvelopes(), placement, parts.random
        )
        self.ending = Ending(self, turns)
        self.burials = Burials(self, clock, codec, turns, parts.counts)
        self._following = Following(
            self,
            contents,
            store,
            self._makings,
            self._applied,
            local_queues,
            self.histories,
            self.observation,
        )
        for exchange, kind, internal in PREDECLARED:
            record = ExchangeRecord(
                kind, auto_delete=False, internal=internal, arguments={}, declared_by=INTERNAL_USER
            )
            self._following.add_exchange(exchange, record)
        self._following.begin()

    def recover(self) -> None:
        """Bring to life what the store has.

        What cannot be, such as an exchange of a type this version does not know, is logged and
        left in the store. What a queue drops when it comes back is dead-lettered when all is
        there that it may be meant for.
        """
        self.burials.hold()
        self._following.recover()
        self.burials.release()

    # Exchanges

    def exchange(self, name: str) -> Exchange:
        """Raises `NotFound`."""
        return self._contents.exchange(name)

    def check_exchange_type(self, kind: str) -> None:
        """Raise `CommandInvalid` when there is no such type."""
        if kind not in EXCHANGE_TYPES:
            raise unknown_type(kind)

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
        declared_by: str = "",
    ) -> Commit:
        """Make an exchange that does not exist yet, and the delay queue of a delayed one. Raises
        for what its type cannot have."""
        plain = to_plain(arguments)
        record = ExchangeRecord(kind, auto_delete, internal, plain, durable, declared_by)
        made_exchange(name, record, self._makings.random)
        self.turns.spend(DECLARE_US)
        key = ("exchange", self.name, name)
        writes = [Write(key, record, not durable)]
        if kind == DELAYED_TYPE:
            check_name(name, self.name)
            writes.append(self._delay_queue(name, durable))
        preconditions = [self._unchanged(write.key) for write in writes]
        return self._store.transact(writes, preconditions)

    def _delay_queue(self, exchange: str, durable: bool) -> Write:
        """The write that declares the queue in which delayed messages of a new exchange wait."""
        name = delay_queue_name(exchange)
        leader = self._placement.leader_of_new(self.name, self._applied.settings(name, {}), False)
        record = QueueRecord(
            auto_delete=False,
            arguments={},
            queue_id=new_queue_id(self._makings.random),
            durable=durable,
            leader=leader,
            declared_by=INTERNAL_USER,
        )
        return Write(("queue", self.name, name), record, not durable)

    async def placed_exchange(self, name: str) -> None:
        """Return when the delay queue of an exchange that was just declared, if it has one, has
        the mirrors it is to have."""
        queue = self.queues.get(delay_queue_name(name))
        if queue is not None:
            await self._placement.placed(queue)

    def delay_queue(self, exchange: str) -> Queue | None:
        """The queue in which the delayed messages of an exchange wait; None without one."""
        return self._contents.delay_queue(exchange)

    async def end_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete the exchange and its bindings, in turns if they are many.

        One that does not exist is no error; raises `PreconditionFailed` for one in use.
        """
        exchange = self.exchanges.get(name)
        bindings: list[Binding] = []
        if exchange is not None and not (if_unused and exchange.bindings):
            bindings = [*exchange.bindings, *self.bindings_to("exchange", name)]
        delete = partial(self.delete_exchange, name, if_unused=if_unused)
        await self.ending.exchange(bindings, delete)

    def delete_exchange(self, name: str, *, if_unused: bool) -> Commit:
        """Delete the exchange and its bindings; one that does not exist is no error."""
        exchange = self.exchanges.get(name)
        if if_unused and exchange is not None and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        return self.delete(exchanges=[] if exchange is None else [exchange])

    # Queues

    def queue(self, name: str) -> Queue:
        """Raises `NotFound`."""
        return self._contents.queue(name)

    def queues_here(self) -> Iterator[LocalQueue]:
        """The queues that this node has."""
        return (queue for queue in self.queues.values() if isinstance(queue, LocalQueue))

    def check_queue_limit(self, name: str) -> None:
        """Raise `PreconditionFailed` when the virtual host may have no further queue."""
        self._limits.check_queue(self.name, name, len(self.queues) - len(self.delayed))

    def with_default_type(
        self, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> Table:
        """The arguments of a declaration, with the virtual host's default type of queues where the
        client has not said which it wants."""
        stored = self._store.get(("vhost", self.name))
        if stored is None:
            return arguments
        assert isinstance(stored.record, VirtualHostRecord)
        default = stored.record.default_queue_type
        return with_default_type(
            arguments, default, durable=durable, exclusive=exclusive, auto_delete=auto_delete
        )

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: Table,
        declared_by: str = "",
        may_wait: bool = False,
    ) -> Commit:
        """Make a queue that does not exist yet. Raises `PreconditionFailed` for its arguments, and
        `NotFound` when the node stops: no client could use the queue any more.

        Raises `InternalFault` for a quorum queue or a stream of which too few members are up,
        unless it `may_wait` for them.
        """
        if self._following.is_stopped:
            raise NotFound(f"vhost '{self.name}' is down")
        settings = self._applied.settings(name, arguments)
        exclusive = exclusive_owner is not None
        queue_arguments.check_properties(
            name,
            self.name,
            arguments,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
        )
        queue_id = new_queue_id(self._makings.random)
        leader = self._placement.leader_of_new(self.name, settings, exclusive)
        members: Sequence[str] = ()
        if settings.type in MEMBER_TYPES:
            described = f"queue '{name}' in vhost '{self.name}'"
            members = self._placement.members_of_new(described, settings, leader, may_wait=may_wait)
        record = QueueRecord(
            auto_delete,
            to_plain(arguments),
            queue_id,
            durable=durable,
            exclusive=exclusive,
            leader=leader,
            members=list(members),
            acks=majority_of(members) if members else 0,
            declared_by=declared_by,
        )
        if exclusive_owner is not None:
            self._contents.exclusive.declaring(queue_id, exclusive_owner)
        self._counts.queues_created += 1
        self.turns.spend(DECLARE_US + LEVEL_US * settings.levels)
        # An exclusive queue ends with its connection, and so at the latest with the node.
        write = Write(("queue", self.name, name), record, not durable or record.exclusive)
        commit = self._store.transact([write], [self._unchanged(write.key)])
        self._placement.declaring(leader, commit)
        if not commit.visible:
            commit.then(partial(self._contents.exclusive.decided, queue_id))
        log_event(queue_log, logging.DEBUG, "queue_declared", queue=name, vhost=self.name)
        return commit

    async def placed(self, queue: Queue) -> None:
        """Return when a queue that was just declared has the mirrors it is to have."""
        await self._placement.placed(queue)

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
                raise inequivalent(name, described, shown(received), shown(current))
        argument_equivalence.check_equivalent(queue.name, self.name, arguments, queue.arguments)

    async def end_queue(self, queue: Queue, check: Callable[[], None]) -> None:
        """`QueueOwner`: delete the queue and its bindings, in turns if they are many."""
        await self.ending.queue(queue, check)

    def delete_exclusive_queues(self, connection: object) -> None:
        """Delete the exclusive queues of a connection that ends, the first few at once."""
        owned = self._contents.exclusive.owner_ends(connection)
        if owned:
            self._in_background(self.ending.queues(owned))

    def queue_unused(self, queue: LocalQueue) -> None:
        """`QueueOwner`: an auto-delete or expired queue goes, but not because the node stops."""
        if not queue.deleted and not self._following.is_stopped:
            self._in_background(self._end_unused(queue))

    async def _end_unused(self, queue: LocalQueue) -> None:
        # A client that uses it again, while it ends in turns, keeps it.
        with suppress(PreconditionFailed):
            await self.ending.queue(queue, queue.check_unused)

    # Bindings

    def bind(self, binding: Binding, connection: object) -> Commit:
        """Bind. The same binding again is no error.

        Raises `NotFound`, `ResourceLocked`, or what the exchange has against the binding.
        """
        source = self.exchange(binding.source)
        if binding.destination_kind == "queue":
            queue = self.queue(binding.destination)
            queue.check_access(connection)
            durable = queue.survives
        else:
            durable = self.exchange(binding.destination).durable
        source.check_binding(binding)
        if binding in source.bindings:
            return self._store.transact([])
        self.turns.spend(BIND_US + ARGUMENT_US * len(binding.arguments))
        key = self._contents.key_of(binding)
        record = BindingRecord(to_plain(binding.arguments))
        # A binding survives a restart if both its ends do.
        transient = not (source.durable and durable)
        return self._store.transact(
            [Write(key, record, transient)],
            [
                self._unchanged(("exchange", self.name, source.name)),
                self._unchanged((binding.destination_kind, self.name, binding.destination)),
            ],
        )

    def unbind(self, binding: Binding, connection: object) -> Commit:
        """Unbind. A binding that does not exist is no error, even if the queue is another's."""
        source = self.exchanges.get(binding.source)
        if binding.destination_kind == "queue" and source and binding in source.bindings:
            self.queue(binding.destination).check_access(connection)
        return self.delete(bindings=[binding])

    def bindings(self) -> Iterator[Binding]:
        """All bindings but the implicit ones of the default exchange."""
        return self._contents.all_bindings()

    def binding(self, key: Key) -> Binding | None:
        """The binding that has this key in the metadata store."""
        return self._contents.bindings.get(key)

    def bindings_to(self, kind: str, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return self._contents.bindings.to(kind, name)

    # Publishing

    def queues_by_key(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...] | None:
        """The queues for this key, or None if the message decides too. Raises `Unfinished`."""
        routed = route(
            self.exchanges.get,
            exchange,
            (routing_key,),
            lambda names: {},
            lambda name: None,
            self._is_addressable,
        )
        self.turns.spend(routed.cost_us)
        return self._queues(routed.queues) if routed.by_key_only else None

    def queues_for(
        self, exchange: Exchange, routing_keys: Sequence[str], header: bytes
    ) -> tuple[Queue, ...]:
        """The queues for a message with these keys and this header. Raises `Unfinished`."""
        routed = self.routed(exchange, routing_keys, header)
        self.turns.spend(routed.cost_us + table_us(len(header)))
        return self._queues(routed.queues)

    def routed(self, exchange: Exchange, routing_keys: Sequence[str], header: bytes) -> Routed:
        """The queues of a publish by their names, with the cost and the exchanges on the way."""
        return route(
            self.exchanges.get,
            exchange,
            routing_keys,
            lambda names: self.codec.named_headers(header, names),
            lambda name: self.codec.property_text(header, name),
            self._is_addressable,
        )

    def _is_addressable(self, name: str) -> bool:
        """Whether a queue gets what is published to the default exchange with its name as key."""
        queue = self.queues.get(name)
        return queue is not None and queue.settings.delays is None

    def reply(self, envelope: Envelope, body: bytes, routing_keys: Iterable[str]) -> None:
        """Hand a message for the default exchange to the waiting channels its keys name."""
        for key in routing_keys:
            if key.startswith(REPLY_TO_PREFIX):
                self._replies.deliver(key, envelope, body)

    async def publish(self, envelope: Envelope, body: bytes, routing_keys: Sequence[str]) -> None:
        """Publish for the broker itself: no permission is needed, and nothing is confirmed."""
        exchange = self.exchanges.get(envelope.exchange)
        if exchange is not None:
            find = partial(self.queues_for, exchange, routing_keys, envelope.header)
            self.histories.keep(exchange, routing_keys, envelope, body)
            for queue in await self.turns.answer(find):
                queue.published += 1
                queue.publish(envelope, body, None, 0)

    def count_past(self, stats: MessageStats) -> None:
        """Count what passed through a channel that is gone, or was none, as with HTTP."""
        if self._ended:
            self._counts.past_channels = self._counts.past_channels.plus(stats)
        else:
            self.past_channels = self.past_channels.plus(stats)

    def _count_past_queue(self, queue: Queue) -> None:
        """Keep counting the messages that passed through a queue that is going, by its type."""
        kind = queue.settings.type
        if isinstance(queue, LocalQueue) and kind is not CLASSIC:
            past = self._counts.past_of_type
            past[kind] = past.get(kind, NOTHING).plus(queue.stats())

    def connection_ended(self, received_octets: int, sent_octets: int) -> None:
        """Count what passed through a connection to the virtual host that is gone."""
        if self._ended:
            self._counts.past_received += received_octets
            self._counts.past_sent += sent_octets
        else:
            self.past_received += received_octets
            self.past_sent += sent_octets

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of what becomes of messages."""
        return self.observation if self.observation.is_needed else None

    # Policies

    def apply_policies(self) -> None:
        """Have every queue and exchange follow a change of a policy, in turns."""
        self._in_background(self._applied.have_changed())

    def stop(self) -> None:
        """The node stops; what is durable is to be found again."""
        for queue in self.queues.values():
            queue.stop()

    def stop_following(self) -> None:
        """Follow the definitions no more: their changes are for the node's next start."""
        self._following.stop()

    async def empty(self) -> None:
        """Delete most of what is in the virtual host, because all of it is to go."""
        self._is_going = True
        await self.ending.queues(list(self.queues.values())[FEW:])
        self.turns.let_go(await self.ending.most_of(list(self.bindings())))
        await self.ending.exchanges(list(self.exchanges.values())[len(PREDECLARED) :])

    def end(self) -> None:
        """End a virtual host that is deleted: its queues end, and with them their consumers."""
        self._ended = True
        self.stop_following()
        self.count_past(self.past_channels)
        self.connection_ended(self.past_received, self.past_sent)
        for queue in list(self.queues.values()):
            self._local_queues.remove(queue)
            self._count_past_queue(queue)
            queue.delete()
        self._applied.end()
        self.burials.end()
        self._contents.clear()

    # The calls of its queues

    def current(self, queue: Queue) -> Queue | None:
        """`QueueOwner`: the object that stands for the queue now; None when it was deleted."""
        return self._contents.current(queue)

    def follow_retention(self, queue: LocalQueue) -> None:
        """`QueueOwner`: what the queue is to retain may have changed."""
        follow_retention(self._makings, queue)

    def renew_queue(self, queue: Queue) -> None:
        """`QueueOwner`: begin anew with the leader of the queue, which has forgotten us."""
        self._following.renew(queue)

    # `FollowedBy`

    def has_no_owner(self, queue: Queue) -> None:
        self.delete(queues=[queue])

    def queue_has_ended(self, queue: Queue) -> None:
        self._counts.queues_deleted += 1
        self._count_past_queue(queue)
        if queue.settings.delays is not None:
            # Its exchange may go in the same transaction.
            self.turns.soon(partial(self._replace_delay_queue, queue.settings.delays))

    def _replace_delay_queue(self, exchange: str) -> None:
        """Make another delay queue where one has ended with its node, and not with its exchange:
        what the exchange is to delay would be dropped."""
        if exchange not in self.delayed or self.delay_queue(exchange) is not None:
            return
        if self._is_going or self._ended:
            return
        write = self._delay_queue(exchange, self.delayed[exchange].durable)
        keys = (write.key, ("exchange", self.name, exchange))
        # Another node may be faster.
        with suppress(Conflict):
            self._store.transact([write], [self._unchanged(key) for key in keys])

    def _in_background(self, waiting: Waiting[None]) -> None:
        """Go through an operation for which no client waits."""
        run(waiting, lambda result: result())

    # What is to be written

    def delete(
        self,
        *,
        queues: Iterable[Queue] = (),
        exchanges: Iterable[Exchange] = (),
        bindings: Iterable[Binding] = (),
    ) -> Commit:
        """Delete these as far as they exist, with their bindings, the groups of the queues, the
        auto-delete exchanges that leaves unused, and delay queues with their exchanges.

        All of it is one transaction: a crash leaves no exchange behind that only its last binding
        would have deleted.
        """
        removal = Removal(self.exchanges, self.bindings_to)
        here = [queue for queue in queues if self.queues.get(queue.name) is queue]
        for queue in here:
            removal.of_queue(queue.name)
        for exchange in exchanges:
            if self.exchanges.get(exchange.name) is exchange:
                removal.of_exchange(exchange)
        removal.of_bindings(bindings)
        behind = [self.delay_queue(name) for name in removal.exchanges]
        # Where all queues of a virtual host go, a delay queue may be among them.
        going = dict.fromkeys([*here, *[queue for queue in behind if queue is not None]])
        groups = [group_key(queue.queue_id) for queue in going]
        groups = [group for group in groups if self._store.get(group) is not None]
        keys: list[Key] = [("queue", self.name, queue.name) for queue in going]
        exchange_keys: list[Key] = [("exchange", self.name, name) for name in removal.exchanges]
        binding_keys = [self._contents.key_of(binding) for binding in removal.bindings]
        self.turns.spend(DELETE_US * (1 + len(keys) + len(exchange_keys) + len(binding_keys)))
        return self._store.transact(
            [Write(key, None) for key in (*keys, *groups, *binding_keys, *exchange_keys)],
            [self._unchanged(key) for key in (*keys, *exchange_keys)[:CHECKED_MAX]],
        )

    def _unchanged(self, key: Key) -> Precondition:
        """The precondition that a definition is still what was decided about."""
        stored = self._store.get(key)
        return Precondition(key, stored.version if stored is not None else 0)

    def _queues(self, names: Iterable[str]) -> tuple[Queue, ...]:
        queues = self.queues
        return tuple([queues[name] for name in names if name in queues])
