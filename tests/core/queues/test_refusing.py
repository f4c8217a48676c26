"""Queues that refuse what exceeds their length limit answer many publishes as they answer each."""

from __future__ import annotations

from random import Random

import pytest
from bare_vhost import add_queue, new_vhost
from manual_clock import ManualClock
from recorder import SOMEBODY

from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.messages.message import Envelope
from warren.core.messages.settlement import REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.ports import Write
from warren.core.queues.local_queue import LocalQueue
from warren.core.vhosts.vhost import VirtualHost

HEADER = b"\x00\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0"
TYPES = pytest.mark.parametrize("queue_type", ["classic", "quorum"])
LIMITS = ({"max_length": 20}, {"max_length_bytes": 100}, {"max_length": 20, "max_length_bytes": 60})


class Unasked(PublishConfirms):
    """Publishes whose answers are all known at once."""

    def settle(self, publish_seq: int) -> None:
        raise AssertionError("nothing was pending")

    refuse = settle


@pytest.fixture
def vhost() -> VirtualHost:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return new_vhost(store, ManualClock())


def refusing(vhost: VirtualHost, name: str, queue_type: str, **limits: int) -> LocalQueue:
    return add_queue(vhost, name, queue_type=queue_type, overflow="reject-publish", **limits)


def publish_each(queue: LocalQueue, bodies: list[bytes]) -> list[Settlement]:
    envelope = Envelope("", queue.name, HEADER, True, 0, None)
    return [queue.publish(envelope, body, Unasked(), 1) for body in bodies]


def publish_many(queue: LocalQueue, bodies: list[bytes]) -> list[Settlement]:
    """As a channel does it."""
    if queue.one_by_one:
        return publish_each(queue, bodies)
    envelopes = [Envelope("", queue.name, HEADER, True, 0, None)] * len(bodies)
    return list(queue.publish_many(envelopes, bodies, Unasked(), 1))


@TYPES
def test_a_queue_looks_at_each_message_only_while_it_is_full(
    vhost: VirtualHost, queue_type: str
) -> None:
    queue = refusing(vhost, "q", queue_type, max_length=10)
    assert not queue.one_by_one
    answers = publish_many(queue, [b"m"] * 12)
    # A quorum queue takes one message more than its limit.
    taken = 10 if queue_type == "classic" else 11
    assert answers == [SETTLED] * taken + [REJECTED] * (12 - taken)
    assert queue.ways_out.refused == 12 - taken
    assert queue.one_by_one
    for _ in range(5):
        queue.get(True, SOMEBODY)
    assert not queue.one_by_one


@TYPES
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: " ".join(limits))
@pytest.mark.parametrize("seed", range(6))
def test_many_at_a_time_are_refused_as_one_by_one(
    vhost: VirtualHost, queue_type: str, limits: dict[str, int], seed: int
) -> None:
    random = Random(seed)
    many = refusing(vhost, "many", queue_type, **limits)
    each = refusing(vhost, "each", queue_type, **limits)
    for number in range(100):
        count, size = random.choice((1, 2, 7, 12)), random.randrange(12)
        bodies = [b"%d" % number + b"." * size for _ in range(count)]
        assert publish_many(many, bodies) == publish_each(each, bodies)
        for _ in range(random.randrange(15)):
            got = [queue.get(True, SOMEBODY) for queue in (many, each)]
            assert [one and one.body for one in got[:1]] == [one and one.body for one in got[1:]]
    assert many.stock() == each.stock()
    assert many.ways_out.refused == each.ways_out.refused > 0
