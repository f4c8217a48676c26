"""A virtual host without connections, and the way to the modules the tests of this folder share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

HERE = Path(__file__).parent
for folder in (str(HERE.parent / "simulation"), str(HERE)):
    if folder not in sys.path:
        sys.path.append(folder)

from manual_clock import ManualClock  # noqa: E402

from warren.amqp.properties import AmqpContentCodec  # noqa: E402
from warren.core.backing_queue import BackingQueue, BackingSpec  # noqa: E402
from warren.core.limits import VhostLimits  # noqa: E402
from warren.core.local_queues import LocalQueues  # noqa: E402
from warren.core.memory_queue import MemoryQueue  # noqa: E402
from warren.core.node_counts import NodeCounts  # noqa: E402
from warren.core.placement import OneNode  # noqa: E402
from warren.core.policy import Policies  # noqa: E402
from warren.core.ports import MetadataStore, Write  # noqa: E402
from warren.core.records import VirtualHostRecord  # noqa: E402
from warren.core.reply_to import Replies  # noqa: E402
from warren.core.turns import Turns  # noqa: E402
from warren.core.vhost import VirtualHost  # noqa: E402
from warren.core.volatile_metadata import VolatileMetadataStore  # noqa: E402


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> VolatileMetadataStore:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return store


@pytest.fixture
def vhost(store: VolatileMetadataStore, clock: ManualClock) -> VirtualHost:
    return new_vhost(store, clock)


def in_memory(spec: BackingSpec) -> BackingQueue:
    return MemoryQueue()


def new_vhost(
    store: MetadataStore,
    clock: ManualClock,
    new_backing_queue: Callable[[BackingSpec], BackingQueue] = in_memory,
) -> VirtualHost:
    """A virtual host over a store; another one over the same store is its restart."""
    policies = Policies(store)
    vhost = VirtualHost(
        "/",
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


@pytest.fixture
def restarted(store: VolatileMetadataStore, clock: ManualClock):  # type: ignore[no-untyped-def]
    """What is left of the virtual host after a restart."""

    def restart(
        new_backing_queue: Callable[[BackingSpec], BackingQueue] = in_memory,
    ) -> VirtualHost:
        recovered = new_vhost(what_lasts(store), clock, new_backing_queue)
        recovered.recover()
        return recovered

    return restart
