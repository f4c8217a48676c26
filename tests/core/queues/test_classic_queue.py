"""What a classic queue does in slices goes on until it is done."""

from __future__ import annotations

import pytest
from bare_vhost import add_queue, new_vhost
from manual_clock import ManualClock

from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.messages.message import Envelope
from warren.core.ports import Write
from warren.core.queues.classic_queue import DROP_SLICE, EXPIRY_SLICE
from warren.core.queues.local_queue import LocalQueue
from warren.core.vhosts.vhost import VirtualHost

HEADER = b"\x00\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vhost(clock: ManualClock) -> VirtualHost:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return new_vhost(store, clock)


def fill(queue: LocalQueue, count: int) -> None:
    for _ in range(count):
        queue.publish(Envelope("", queue.name, HEADER, True, 0, None), b"m", None, 0)


def test_all_that_is_too_much_is_dropped_though_nothing_else_happens(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = add_queue(vhost, "q")
    fill(queue, 5 * DROP_SLICE)
    vhost._applied._policies.set("/", "p", "^q$", {"max-length": 10})
    clock.settle()
    assert len(queue) == 10
    assert queue.ways_out.dropped == 5 * DROP_SLICE - 10


def test_all_that_has_expired_is_dropped_though_nothing_else_happens(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = add_queue(vhost, "q", message_ttl=1000)
    fill(queue, 5 * EXPIRY_SLICE)
    clock.advance(1.5)
    clock.settle()
    assert len(queue) == 0
    assert queue.ways_out.expired == 5 * EXPIRY_SLICE
