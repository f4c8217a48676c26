"""The exchanges, queues and bindings of a virtual host follow their definitions.

The metadata store tells of each definition that has come, changed or gone. What cannot be brought
to life, such as an exchange of a type that this version does not know, is logged and left in the
store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Protocol, cast

import msgspec

from warren.core.backing.backing_queue import LEVELS
from warren.core.definitions.records import BindingRecord, ExchangeRecord, QueueRecord
from warren.core.errors import BrokerError
from warren.core.exchanges.binding import Binding, DestinationKind
from warren.core.exchanges.exchange import DelayedExchange, Exchange, make_exchange
from warren.core.field import from_plain
from warren.core.log_line import log_event
from warren.core.ports import Key, MetadataStore, Write
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.local_queues import LocalQueues
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.vhosts.applied_policies import AppliedPolicies
from warren.core.vhosts.contents import Contents
from warren.core.vhosts.exclusive_queues import NO_OWNER
from warren.core.vhosts.histories import Histories
from warren.core.vhosts.observation import Observation
from warren.core.vhosts.queue_making import Makings, made_queue

log = logging.getLogger("warren.vhost")
queue_log = logging.getLogger("warren.queue")

QUEUE_ID_BITS = 54
"""Random bits in the id of a queue: ids are unique on disk, those of deleted queues included."""


def new_queue_id(random: Random) -> int:
    """The id of a new queue; the numbers of its levels are added to it."""
    return random.getrandbits(QUEUE_ID_BITS) * LEVELS


def made_exchange(name: str, record: ExchangeRecord, random: Random) -> Exchange:
    """The exchange that a definition describes. Raises the errors of `make_exchange`."""
    return make_exchange(
        record.type,
        name,
        durable=record.durable,
        auto_delete=record.auto_delete,
        internal=record.internal,
        arguments=from_plain(record.arguments),
        random=random,
    )


class FollowedBy(Protocol):
    """The calls to the virtual host."""

    def queue_has_ended(self, queue: Queue) -> None:
        """A queue is about to end: its definition was removed."""
        ...

    def has_no_owner(self, queue: Queue) -> None:
        """An exclusive queue was made, and its connection has ended meanwhile."""
        ...


class Following:
    """Makes and ends the contents of one virtual host as its definitions change."""

    def __init__(
        self,
        vhost: FollowedBy,
        contents: Contents,
        store: MetadataStore,
        makings: Makings,
        policies: AppliedPolicies,
        local_queues: LocalQueues,
        histories: Histories,
        observation: Observation,
    ) -> None:
        self._vhost = vhost
        self._contents = contents
        self._store = store
        self._makings = makings
        self._placement = makings.placement
        self._policies = policies
        self._local_queues = local_queues
        self._histories = histories
        self._observation = observation
        self._random = makings.random
        self._watched: tuple[tuple[str, Callable[[Key, object | None], None]], ...] = (
            ("exchange", self._exchange_changed),
            ("queue", self._queue_changed),
            ("binding", self._binding_changed),
        )
        self._stop_watching: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin to follow the store."""
        self._stop_watching = [
            self._store.watch((kind, self._contents.vhost), told) for kind, told in self._watched
        ]

    def recover(self) -> None:
        """Make all exchanges, queues and bindings that the store has."""
        for kind, told in self._watched:
            for stored in self._store.records((kind, self._contents.vhost)):
                told(stored.key, stored.record)

    @property
    def is_stopped(self) -> bool:
        return not self._stop_watching

    def stop(self) -> None:
        """Ignore changes of definitions from now on: the node's next start will see them."""
        for stop in self._stop_watching:
            stop()
        self._stop_watching.clear()

    @contextmanager
    def _skipping(self, key: Key) -> Iterator[None]:
        """Pass over a definition that cannot be used."""
        try:
            yield
        except BrokerError as error:
            log_event(
                log,
                logging.ERROR,
                "definition_skipped",
                key="/".join(key),
                reason=error.text,
            )

    # Exchanges

    def _exchange_changed(self, key: Key, record: object | None) -> None:
        name, contents = key[2], self._contents
        if record is None:
            exchange = contents.exchanges.pop(name, None)
            if exchange is not None:
                contents.delayed.pop(name, None)
                self._histories.remove(exchange)
                for binding in list(exchange.bindings):
                    self._forget_binding(contents.key_of(binding))
                contents.topology.generation += 1
            return
        assert isinstance(record, ExchangeRecord)
        if name not in contents.exchanges:
            with self._skipping(key):
                self.add_exchange(name, record)

    def add_exchange(self, name: str, record: ExchangeRecord) -> None:
        """Make the exchange of this definition."""
        contents = self._contents
        exchange = made_exchange(name, record, self._random)
        exchange.declared_by = record.declared_by
        contents.exchanges[name] = exchange
        exchange.alternate = self._policies.alternate(exchange)
        if isinstance(exchange, DelayedExchange):
            contents.delayed[name] = exchange
        self._histories.add(exchange)
        contents.topology.generation += 1

    # Queues

    def _queue_changed(self, key: Key, record: object | None) -> None:
        name = key[2]
        queue = self._contents.queues.get(name)
        assert record is None or isinstance(record, QueueRecord)
        if queue is not None and record is not None and record.queue_id == queue.queue_id:
            self._follow_leader(queue, record)
            return
        if queue is not None:
            # Or it was deleted and declared anew, and this node hears of both at once.
            self._end_queue(queue)
        if record is None:
            return
        if not record.queue_id:
            # Declared before queues had a storage.
            record = msgspec.structs.replace(record, queue_id=new_queue_id(self._random))
            self._store.transact([Write(key, record)])
        with self._skipping(key):
            self._add_queue(name, record)

    def _follow_leader(self, queue: Queue, record: QueueRecord) -> None:
        """Follow the changed definition of an existing queue."""
        here = self._placement.is_here(record)
        if not queue.is_led_as(record.leader, record.epoch, here):
            self._renew(queue, record)
        else:
            queue.mirrored = record.can_move

    def renew(self, queue: Queue) -> None:
        """Make another object for a queue whose leader has forgotten this node."""
        stored = self._store.get(queue.key)
        if stored is not None and self._contents.queues.get(queue.name) is queue:
            assert isinstance(stored.record, QueueRecord)
            # If the id differs, the queue was declared anew; this object ends when that is told.
            if stored.record.queue_id == queue.queue_id:
                self._renew(queue, stored.record)

    def _renew(self, queue: Queue, record: QueueRecord) -> None:
        """Replace the object of a queue by another one."""
        self._local_queues.remove(queue)
        moving = queue.move_out()
        self._add_queue(queue.name, record)
        successor = self._contents.queues[queue.name]
        self._placement.move_in(successor, moving)
        # Operations that wait for the leader ask the next one, after those under way before.
        queue.succeeded_by(successor)

    def _add_queue(self, name: str, record: QueueRecord) -> None:
        contents = self._contents
        queue = self._made_queue(name, record)
        self._observation.queue_is_here(queue)
        contents.queues[name] = queue
        queue.mirrored = record.can_move
        queue.declared_by = record.declared_by
        owner = queue.exclusive_owner
        if owner is not None:
            contents.exclusive.add(owner, name, queue)
        contents.topology.generation += 1
        if isinstance(queue, LocalQueue):
            self._local_queues.add(queue)
            queue.keep_limits()
        if owner is NO_OWNER:
            self._vhost.has_no_owner(queue)

    def _made_queue(self, name: str, record: QueueRecord) -> Queue:
        arguments = from_plain(record.arguments)
        settings = self._policies.settings(name, arguments)
        declared = DeclaredQueue(name, record, None, arguments)
        if not self._placement.is_here(record):
            return self._placement.remote_queue(self._makings.vhost, declared, settings)
        if record.exclusive:
            connection = self._contents.exclusive.owner_of_new(record.queue_id)
            declared = declared._replace(exclusive_owner=connection)
        return made_queue(self._makings, declared, settings, self._placement.storage_id(record))

    def _end_queue(self, queue: Queue) -> None:
        contents = self._contents
        del contents.queues[queue.name]
        self._observation.queue_is_gone(queue)
        self._local_queues.remove(queue)
        log_event(queue_log, logging.DEBUG, "queue_deleted", queue=queue.name, vhost=contents.vhost)
        if queue.exclusive_owner is not None:
            contents.exclusive.remove(queue.exclusive_owner, queue.name)
        contents.topology.generation += 1
        self._vhost.queue_has_ended(queue)
        queue.delete()

    # Bindings

    def _binding_changed(self, key: Key, record: object | None) -> None:
        if record is None:
            self._forget_binding(key)
            return
        assert isinstance(record, BindingRecord)
        _, _, source, kind, destination, routing_key, fingerprint = key
        arguments = from_plain(record.arguments)
        binding = Binding(
            source, cast(DestinationKind, kind), destination, routing_key, arguments, fingerprint
        )
        contents = self._contents
        with self._skipping(key):
            exchange = contents.exchange(source)
            exchange.check_binding(binding)
            if kind == "queue":
                contents.queue(destination)
            else:
                contents.exchange(destination)
            if exchange.add(binding):
                contents.bindings.add(key, binding)
                contents.topology.generation += 1
                self._histories.bound(exchange, binding)

    def _forget_binding(self, key: Key) -> None:
        contents = self._contents
        binding = contents.bindings.pop(key)
        if binding is None:
            return
        source = contents.exchanges.get(binding.source)
        if source is not None:
            source.remove(binding)
        contents.topology.generation += 1
