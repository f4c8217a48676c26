"""A virtual host without connections, and the way to the modules the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

SIMULATION = str(Path(__file__).parent.parent / "simulation")
if SIMULATION not in sys.path:
    sys.path.append(SIMULATION)

from manual_clock import ManualClock  # noqa: E402

from warren.amqp.properties import AmqpContentCodec  # noqa: E402
from warren.core.limits import VhostLimits  # noqa: E402
from warren.core.memory_queue import MemoryQueue  # noqa: E402
from warren.core.policy import Policies  # noqa: E402
from warren.core.ports import MetadataStore, Write  # noqa: E402
from warren.core.records import VirtualHostRecord  # noqa: E402
from warren.core.reply_to import Replies  # noqa: E402
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


def new_vhost(store: MetadataStore, clock: ManualClock) -> VirtualHost:
    """A virtual host over a store; another one over the same store is its restart."""
    policies = Policies(store)
    vhost = VirtualHost(
        "/",
        clock=clock,
        codec=AmqpContentCodec(),
        store=store,
        policies=policies,
        limits=VhostLimits(store),
        replies=Replies(),
        random=Random(1),
        new_backing_queue=MemoryQueue,
    )
    policies.watch(lambda name: vhost.apply_policies())
    return vhost


@pytest.fixture
def restarted(store: VolatileMetadataStore, clock: ManualClock):  # type: ignore[no-untyped-def]
    """What is left of the virtual host after a restart."""

    def restart() -> VirtualHost:
        recovered = new_vhost(store, clock)
        recovered.recover()
        return recovered

    return restart
