"""When messages expire, and delayed ones are due, if the clock on the wall is set meanwhile."""

from __future__ import annotations

import pytest
from disk import SimulatedDisk
from manual_clock import ManualClock
from stored_queues import QUEUE, Node

from warren.core.messages.message import Envelope

TTL_S = 600.0


def publish(node: Node, body: bytes) -> float:
    """Publish a persistent message with a time to live; when it expires, by the node's clock."""
    expires_at = node.clock.now() + TTL_S
    node.published += 1
    envelope = Envelope("", "key", b"header", True, 0, None)
    node.queues[QUEUE].publish(envelope, body, expires_at, node.publisher, node.published)
    node.rest()
    return expires_at


def restarted(node: Node, disk: SimulatedDisk) -> Node:
    """The node after a stop; the clock on the wall goes on as it was set."""
    wall_time = node.clock.wall_time()
    node.stop()
    after = Node(disk, defined=(QUEUE,), clock=ManualClock(wall_start=wall_time))
    after.rest()
    return after


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_message_published_after_the_clock_was_set_expires_in_time_after_a_restart(
    node: Node, disk: SimulatedDisk, ahead_s: float
) -> None:
    publish(node, b"before")
    node.clock.set_wall(ahead_s)
    publish(node, b"after")
    after = restarted(node, disk)
    store = after.stores[QUEUE]
    expiries = [at for _, at in store.expiries()]
    assert expiries[-1] == pytest.approx(after.clock.now() + TTL_S, abs=5.0)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_message_on_disk_keeps_its_time_while_the_node_runs(node: Node, ahead_s: float) -> None:
    times = [publish(node, b"before")]
    for _ in range(2):
        node.clock.set_wall(ahead_s)
        times.append(publish(node, b"after"))
    store = node.stores[QUEUE]
    assert [at for _, at in store.expiries()] == pytest.approx(times, abs=0.001)
    start = next(position for position, _ in store.expiries())
    assert store.next_expiry(start, start + 3) == pytest.approx(times[0], abs=0.001)
    messages = store.read(start, start + 3, 3, 1 << 20).messages
    assert [message.expires_at for message in messages] == pytest.approx(times, abs=0.001)
