"""What becomes of a synchronisation when pieces of the queue are lost with links or leaders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster, random_delays
from manual_clock import ManualClock
from pamqp import commands

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import Envelope
from warren.mirror.messages.post import PostKind
from warren.mirror.replication.copies.mirror import Mirror
from warren.mirror.replication.levels.instructions import NEVER, Op, Script
from warren.mirror.replication.levels.mirror_level import NOWHERE

NODES = ("a", "b", "c", "d", "e")


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(*NODES, delay=random_delays(1, 0.01))
    set_policy(cluster, "manual")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue="ha", durable=True, arguments={})
    cluster.clock.advance(5)
    cluster["a"].node.policies.clear("/", "ha")
    cluster.clock.advance(5)
    assert not record(cluster).mirrors
    for number in range(300):
        client.publishes("ha", b"%d" % number)
    cluster.clock.advance(1)
    return cluster


def set_policy(cluster: Cluster, mode: str) -> None:
    policy = {"ha-mode": "all", "ha-sync-mode": mode}
    cluster["a"].node.policies.set("/", "ha", "^ha", policy, 0, "queues")


def record(cluster: Cluster, node: str = "b") -> QueueRecord:
    stored = cluster[node].metadata.get(("queue", "/", "ha"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def lose_slice(cluster: Cluster, chosen: str, lose: Callable[[], None]) -> list[str]:
    """Do this instead of carrying the first slice for a node; returns whom that befell."""
    carry = cluster.carry
    lost: list[str] = []

    def carrying(node: str, peer: str, frame: tuple[int, bytes]) -> None:
        if frame[0] == PostKind.SLICE and peer == chosen and not lost:
            lost.append(peer)
            lose()
        else:
            carry(node, peer, frame)

    cluster.carry = carrying  # type: ignore[method-assign]
    return lost


@pytest.mark.parametrize("mirror", ["b", "c", "d", "e"])
def test_a_mirror_is_in_sync_in_the_end_though_a_piece_was_lost_with_the_link(
    cluster: Cluster, mirror: str
) -> None:
    """Two of the four are no neighbours of the leader, and stay in the group meanwhile."""

    def break_link() -> None:
        # Noticed when the turn is over.
        cluster.clock.call_soon(lambda: cluster.cut("a", mirror))
        cluster.clock.call_later(0.1, lambda: cluster.connect("a", mirror))

    lost = lose_slice(cluster, mirror, break_link)
    set_policy(cluster, "automatic")
    cluster.clock.advance(20)
    assert lost
    # A neighbour may take its leader for dead.
    assert sorted({record(cluster).leader, *record(cluster).in_sync}) == [*NODES]
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.publishes("ha", b"last")
    cluster.clock.advance(1)
    client.receives(commands.Basic.Ack)


EMPTY: tuple[int, list[object], list[int], int, int] = (0, [], [], 0, 0)


FURTHER = (1, 9)
"""Whoever leads next has carried out more batches of the first epoch than the mirror."""


class Leading:
    """Writes what the leader of an epoch would, to a mirror of a queue with one level."""

    def __init__(self, mirror: Mirror, epoch: int) -> None:
        self._mirror = mirror
        self._epoch = epoch
        self._batch = 0

    def says(self, op: Op, *arguments: object) -> None:
        script = Script()
        script.control(op, *arguments)
        self._batch += 1
        self._mirror.deliver(script.take(self._epoch, self._batch))

    def sends_slice(self, number: int, *numbers: int) -> None:
        script = Script()
        for position in numbers:
            envelope = Envelope("", "ha", b"", False, 0, None)
            script.publish(0, position, envelope, b"%d" % position, NEVER, False)
        self._mirror.slice_came(self._epoch, number, script.take(self._epoch, 0))


@pytest.fixture
def mirror() -> Mirror:
    mirror = Mirror("m", 1, [MemoryQueue()], ManualClock(), lambda mirror, batch: None)
    Leading(mirror, 1).says(Op.START, "m", [0], [0], *EMPTY)
    return mirror


def bodies(mirror: Mirror) -> list[bytes]:
    return [m.body for m in mirror.levels[0].backing.peek(0, 100, 1 << 20).messages]


def test_a_piece_of_a_former_leader_is_not_taken_for_one_of_the_next(mirror: Mirror) -> None:
    """Both count from one; the first leader died before it could say where its piece belongs."""
    Leading(mirror, 1).sends_slice(1, 0, 1, 2)
    second = Leading(mirror, 2)
    second.says(Op.EPOCH, [0], [0], [], FURTHER)
    second.says(Op.START, "m", [5], [5], *EMPTY)
    second.says(Op.SLICE, "m", 1, 0, NOWHERE, 0)
    assert mirror.awaits_slice
    assert bodies(mirror) == []
    second.sends_slice(1, 5, 6)
    assert bodies(mirror) == [b"5", b"6"]


def test_a_piece_that_comes_too_late_is_thrown_away(mirror: Mirror) -> None:
    first, second = Leading(mirror, 1), Leading(mirror, 2)
    second.says(Op.EPOCH, [0], [0], [], FURTHER)
    first.sends_slice(1, 0, 1)
    second.says(Op.START, "m", [5], [5], *EMPTY)
    second.says(Op.SLICE, "m", 1, 0, NOWHERE, 0)
    assert bodies(mirror) == []


def test_a_mirror_goes_on_with_what_it_has_when_the_next_piece_died_with_the_leader(
    mirror: Mirror,
) -> None:
    first, second = Leading(mirror, 1), Leading(mirror, 2)
    first.sends_slice(1, 0, 1)
    first.says(Op.SLICE, "m", 1, 0, 2, 0)
    first.says(Op.SLICE, "m", 2, 0, NOWHERE, 0)
    first.says(Op.EPOCH, [0], [9], [], FURTHER)
    assert mirror.awaits_slice
    second.says(Op.EPOCH, [0], [9], [], FURTHER)
    assert not mirror.awaits_slice
    assert bodies(mirror) == [b"0", b"1"]
    assert mirror.levels[0].upto == 2


def test_pieces_of_a_synchronisation_that_was_cancelled_are_not_kept(mirror: Mirror) -> None:
    first = Leading(mirror, 1)
    first.sends_slice(1, 0, 1)
    first.says(Op.START, "m", [9], [NOWHERE], 0, [], [], 1, 0)
    first.says(Op.START, "m", [0], [0], 0, [], [], 1, 0)
    first.says(Op.SLICE, "m", 1, 0, NOWHERE, 0)
    assert mirror.awaits_slice
