"""A virtual host: its exchanges, queues and bindings, and the rules between them.

The definitions in the metadata store are the truth, and the objects here follow them. A method
that declares, binds or deletes works out a transaction and hands it to the store; exchanges, queues
and bindings come and go when the store reports the change. On a single node the store does so
before the call returns; in a cluster it does so when the commit becomes `visible`, and the caller
repeats the call if the commit was `refused`.

Every change that may lead a publish to other queues raises `topology.generation`, by which
connections notice that the routes they have kept are outdated.

The rules are those of amqp_semantics.md sections 2.1, 3 and 4.1. The caller checks permissions.
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
from warren.core.errors import NotFound, PreconditionFailed, unknown_type
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.delay import DELAYED_TYPE, check_name, delay_queue_name
from warren.core.exchanges.exchange import (
    ALTERNATE_EXCHANGE,
    EXCHANGE_TYPES,
    INTERNAL_USER,
    Exchange,
)
from warren.core.exchanges.message_headers import MessageHeaders
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
"""The costs of a declaration, of each level of a queue, of a binding and each of its arguments, and
of a deletion, in the microseconds of `core/scheduling/turns.py`."""

CHECKED_MAX = 100
"""A deletion checks of so many definitions that no other node has changed them meanwhile."""

PREDECLARED = (
    (DEFAULT_EXCHANGE, "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    (TRACE_EXCHANGE, "topic", True),
)
"""The exchanges of every virtual host: name, type, and whether it is internal."""


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
        # The quotas of its queues, set by `Node`.
        self.quotas: VhostQuotas | None = None
        # Counts of channels and connections that have ended.
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
        """Make the exchanges, queues and bindings that the store has.

        A definition that cannot be used, such as an exchange of a type that this version does not
        know, is logged and left in the store. Messages that a queue drops while it is made become
        dead letters only when all queues are there.
        """
        self.burials.hold()
        self._following.recover()
        self.burials.release()

    # Exchanges

    def exchange(self, name: str) -> Exchange:
        """Raises `NotFound`."""
        return self._contents.exchange(name)

    def check_exchange_type(self, kind: str) -> None:
        """Raise `CommandInvalid` if there is no such type."""
        if kind not in EXCHANGE_TYPES:
            raise unknown_type(kind)

    def check_exchange_arguments(self, name: str, arguments: Table) -> None:
        """Raise `PreconditionFailed` if the alternate exchange is not named by a string."""
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
        """Make an exchange that does not exist yet, and its delay queue if it is a delayed one.
        Raises `PreconditionFailed` for arguments that its type does not have."""
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
        """`placed` for the delay queue of an exchange that was just declared, if it has one."""
        queue = self.queues.get(delay_queue_name(name))
        if queue is not None:
            await self._placement.placed(queue)

    def delay_queue(self, exchange: str) -> Queue | None:
        """The queue in which the delayed messages of an exchange wait; None without one."""
        return self._contents.delay_queue(exchange)

    async def end_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete the exchange and its bindings, in turns if they are many.

        It need not exist. Raises `PreconditionFailed` if it must be unused and is not.
        """
        exchange = self.exchanges.get(name)
        bindings: list[Binding] = []
        if exchange is not None and not (if_unused and exchange.bindings):
            bindings = [*exchange.bindings, *self.bindings_to("exchange", name)]
        delete = partial(self.delete_exchange, name, if_unused=if_unused)
        await self.ending.exchange(bindings, delete)

    def delete_exchange(self, name: str, *, if_unused: bool) -> Commit:
        """Delete the exchange, which need not exist, and its bindings."""
        exchange = self.exchanges.get(name)
        if if_unused and exchange is not None and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        return self.delete(exchanges=[] if exchange is None else [exchange])

    # Queues

    def queue(self, name: str) -> Queue:
        """Raises `NotFound`."""
        return self._contents.queue(name)

    def queues_here(self) -> Iterator[LocalQueue]:
        """The queues that this node leads."""
        return (queue for queue in self.queues.values() if isinstance(queue, LocalQueue))

    def check_queue_limit(self, name: str) -> None:
        """Raise `PreconditionFailed` if the virtual host has as many queues as it may have."""
        self._limits.check_queue(self.name, name, len(self.queues) - len(self.delayed))

    def with_default_type(
        self, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> Table:
        """The arguments of a declaration, with the default type of queue if they name none."""
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
        """Make a queue that does not exist yet.

        Raises `PreconditionFailed` for its arguments; `NotFound` if the node is stopping; and
        `InternalFault` if it is a quorum queue or stream, too few members are up, and it may not
        wait for them (`may_wait`).
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
        """Wait until a queue that was just declared has all mirrors that its policy demands."""
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
        """Compare a declaration with the queue that exists.

        Raises `ResourceLocked` if only one of them is exclusive, or another connection owns the
        queue; and `PreconditionFailed` for any other difference.
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
        """`QueueOwner`: delete an auto-delete or expired queue, unless the node is stopping."""
        if not queue.deleted and not self._following.is_stopped:
            self._in_background(self._end_unused(queue))

    async def _end_unused(self, queue: LocalQueue) -> None:
        # A client that begins to use it while it is deleted in turns keeps it.
        with suppress(PreconditionFailed):
            await self.ending.queue(queue, queue.check_unused)

    # Bindings

    def bind(self, binding: Binding, connection: object) -> Commit:
        """Bind; the binding may exist already.

        Raises `NotFound`, `ResourceLocked`, and the errors of `Exchange.check_binding`.
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
        """Unbind; the binding need not exist. Raises `ResourceLocked` for a queue of others."""
        source = self.exchanges.get(binding.source)
        if binding.destination_kind == "queue" and source and binding in source.bindings:
            self.queue(binding.destination).check_access(connection)
        return self.delete(bindings=[binding])

    def bindings(self) -> Iterator[Binding]:
        """All bindings except the implicit ones of the default exchange."""
        return self._contents.all_bindings()

    def binding(self, key: Key) -> Binding | None:
        """The binding that has this key in the metadata store."""
        return self._contents.bindings.get(key)

    def bindings_to(self, kind: str, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return self._contents.bindings.to(kind, name)

    # Publishing

    def queues_by_key(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...] | None:
        """The queues for this key; None if they depend on more. Raises `Unfinished`."""
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
        """The names of the queues for a publish, the cost, and the exchanges on the way."""
        return route(
            self.exchanges.get,
            exchange,
            routing_keys,
            MessageHeaders(self.codec, header),
            lambda name: self.codec.property_text(header, name),
            self._is_addressable,
        )

    def _is_addressable(self, name: str) -> bool:
        """Whether the default exchange leads to this queue: it exists and is no delay queue."""
        queue = self.queues.get(name)
        return queue is not None and queue.settings.delays is None

    def reply(self, envelope: Envelope, body: bytes, routing_keys: Iterable[str]) -> None:
        """Hand a direct reply to the channels that its routing keys name."""
        for key in routing_keys:
            if key.startswith(REPLY_TO_PREFIX):
                self._replies.deliver(key, envelope, body)

    async def publish(self, envelope: Envelope, body: bytes, routing_keys: Sequence[str]) -> None:
        """Publish a message of the broker itself, without permissions and confirms."""
        exchange = self.exchanges.get(envelope.exchange)
        if exchange is not None:
            find = partial(self.queues_for, exchange, routing_keys, envelope.header)
            self.histories.keep(exchange, routing_keys, envelope, body)
            for queue in await self.turns.answer(find):
                queue.published += 1
                queue.publish(envelope, body, None, 0)

    def count_past(self, stats: MessageStats) -> None:
        """Keep the counts of a channel that has ended, or of publishes over HTTP."""
        if self._ended:
            self._counts.past_channels = self._counts.past_channels.plus(stats)
        else:
            self.past_channels = self.past_channels.plus(stats)

    def _count_past_queue(self, queue: Queue) -> None:
        """Keep the counts of a queue that ends, by its type."""
        kind = queue.settings.type
        if isinstance(queue, LocalQueue) and kind is not CLASSIC:
            past = self._counts.past_of_type
            past[kind] = past.get(kind, NOTHING).plus(queue.stats())

    def connection_ended(self, received_octets: int, sent_octets: int) -> None:
        """Keep the counts of a connection that has ended."""
        if self._ended:
            self._counts.past_received += received_octets
            self._counts.past_sent += sent_octets
        else:
            self.past_received += received_octets
            self.past_sent += sent_octets

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of messages; None if there is nothing to observe."""
        return self.observation if self.observation.is_needed else None

    # Policies

    def apply_policies(self) -> None:
        """A policy has changed: apply the policies to every queue and exchange, in turns."""
        self._in_background(self._applied.have_changed())

    def stop(self) -> None:
        """The node stops: end every queue, so that the next start finds what is durable."""
        for queue in self.queues.values():
            queue.stop()

    def stop_following(self) -> None:
        """Ignore changes of definitions from now on: the node's next start will see them."""
        self._following.stop()

    async def empty(self) -> None:
        """Delete most queues, bindings and exchanges: the virtual host is about to be deleted."""
        self._is_going = True
        await self.ending.queues(list(self.queues.values())[FEW:])
        self.turns.let_go(await self.ending.most_of(list(self.bindings())))
        await self.ending.exchanges(list(self.exchanges.values())[len(PREDECLARED) :])

    def end(self) -> None:
        """End a virtual host that was deleted: end its queues, which cancels their consumers."""
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
        """`QueueOwner`: the object that now stands for the queue; None if it was deleted."""
        return self._contents.current(queue)

    def follow_retention(self, queue: LocalQueue) -> None:
        """`QueueOwner`: the settings for messages that the queue retains may have changed."""
        follow_retention(self._makings, queue)

    def renew_queue(self, queue: Queue) -> None:
        """`QueueOwner`: make another object for a queue whose leader has forgotten this node."""
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
        """Make another delay queue if one has ended with its node and its exchange exists: without
        it, delayed messages would be dropped."""
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
        """Run an operation for which no client waits."""
        run(waiting, lambda result: result())

    # Transactions

    def delete(
        self,
        *,
        queues: Iterable[Queue] = (),
        exchanges: Iterable[Exchange] = (),
        bindings: Iterable[Binding] = (),
    ) -> Commit:
        """Delete those of these that exist; with them their bindings, the groups of queues, delay
        queues of exchanges, and auto-delete exchanges that become unused.

        All of it is one transaction: otherwise a crash could leave an auto-delete exchange without
        bindings, which no later unbinding would delete.
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
        # `queues` may have delay queues too, when all queues of the virtual host are deleted.
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
        """The precondition that no other node has changed this definition meanwhile."""
        stored = self._store.get(key)
        return Precondition(key, stored.version if stored is not None else 0)

    def _queues(self, names: Iterable[str]) -> tuple[Queue, ...]:
        queues = self.queues
        return tuple([queues[name] for name in names if name in queues])
