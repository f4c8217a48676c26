"""The present exchanges, queues and bindings of a virtual host, by their names."""

from __future__ import annotations

from collections.abc import Iterator

from warren.core.errors import no_exchange, no_queue
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import DelayedExchange, Exchange
from warren.core.ports import Key
from warren.core.queues.queue import Queue
from warren.core.vhosts.binding_index import BindingIndex
from warren.core.vhosts.exclusive_queues import ExclusiveQueues
from warren.core.vhosts.observation import Topology


class Contents:
    """The contents of one virtual host. `delayed` are the exchanges that have a delay queue."""

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.delayed: dict[str, DelayedExchange] = {}
        self.bindings = BindingIndex()
        self.exclusive: ExclusiveQueues[Queue] = ExclusiveQueues()
        self.topology = Topology()

    def exchange(self, name: str) -> Exchange:
        """Raises `NotFound`."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise no_exchange(name, self.vhost)
        return exchange

    def queue(self, name: str) -> Queue:
        """Raises `NotFound`."""
        queue = self.queues.get(name)
        if queue is None:
            raise no_queue(name, self.vhost)
        return queue

    def current(self, queue: Queue) -> Queue | None:
        """The object that stands for the queue now; None when it was deleted."""
        current = self.queues.get(queue.name) if queue.deleted else queue
        return current if current is not None and current.queue_id == queue.queue_id else None

    def delay_queue(self, exchange: str) -> Queue | None:
        """The queue in which the delayed messages of an exchange wait; None without one."""
        found = self.delayed.get(exchange)
        return self.queues.get(found.delay_queue) if found is not None else None

    def all_bindings(self) -> Iterator[Binding]:
        """All bindings but the implicit ones of the default exchange."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings

    def key_of(self, binding: Binding) -> Key:
        """The key of a binding in the metadata store."""
        return (
            "binding",
            self.vhost,
            binding.source,
            binding.destination_kind,
            binding.destination,
            binding.routing_key,
            binding.fingerprint,
        )

    def clear(self) -> None:
        self.queues.clear()
        self.exchanges.clear()
        self.delayed.clear()
        self.bindings.clear()
        self.exclusive.clear()
        self.topology.generation += 1
