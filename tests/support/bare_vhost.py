"""A virtual host without connections, and its restart."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.access.limits import VhostLimits
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.field import Table, long, longstr
from warren.core.policies.policy import Policies
from warren.core.ports import MetadataStore, Write
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.local_queues import LocalQueues
from warren.core.queues.placement import OneNode
from warren.core.scheduling.turns import Turns
from warren.core.vhosts.node_counts import NodeCounts
from warren.core.vhosts.reply_to import Replies
from warren.core.vhosts.shared_parts import SharedParts
from warren.core.vhosts.vhost import VirtualHost


def in_memory(spec: BackingSpec) -> BackingQueue:
    return MemoryQueue()


def new_vhost(
    store: MetadataStore,
    clock: ManualClock,
    new_backing_queue: Callable[[BackingSpec], BackingQueue] = in_memory,
) -> VirtualHost:
    """A virtual host over a store; another one over the same store is its restart."""
    policies = Policies(store)
    parts = SharedParts(
        clock=clock,
        turns=Turns(clock),
        codec=AmqpContentCodec(),
        store=store,
        policies=policies,
        limits=VhostLimits(store),
        replies=Replies(),
        counts=NodeCounts(),
        random=Random(1),
        new_backing_queue=new_backing_queue,
        placement=OneNode(),
        local_queues=LocalQueues(),
    )
    vhost = VirtualHost("/", parts)
    policies.watch(lambda name: vhost.apply_policies())
    return vhost


def what_lasts(store: VolatileMetadataStore) -> VolatileMetadataStore:
    """What a store on disk would have after a restart."""
    after = VolatileMetadataStore()
    after.transact(
        [
            Write(stored.key, stored.record)
            for stored in store.records(())
            if stored.key not in store._transient
        ]
    )
    return after


def add_queue(
    vhost: VirtualHost, name: str, dead_to: str | None = None, **arguments: int | str
) -> LocalQueue:
    table: Table = {
        f"x-{key.replace('_', '-')}": long(value) if isinstance(value, int) else longstr(value)
        for key, value in arguments.items()
    }
    if dead_to is not None:
        table["x-dead-letter-exchange"] = longstr("")
        table["x-dead-letter-routing-key"] = longstr(dead_to)
    vhost.declare_queue(
        name, durable=True, exclusive_owner=None, auto_delete=False, arguments=table
    )
    return vhost.queues[name]
