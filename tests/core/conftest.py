"""A virtual host without connections, and the way to the modules the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bare_vhost import in_memory, new_vhost, what_lasts
from manual_clock import ManualClock

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.ports import Write
from warren.core.vhosts.vhost import VirtualHost


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


@pytest.fixture
def fresh_vhost() -> Callable[[], tuple[VirtualHost, ManualClock]]:
    """Makes virtual hosts that know nothing of each other, each with its clock."""

    def fresh() -> tuple[VirtualHost, ManualClock]:
        clock, store = ManualClock(), VolatileMetadataStore()
        store.transact([Write(("vhost", "/"), VirtualHostRecord())])
        return new_vhost(store, clock), clock

    return fresh


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
