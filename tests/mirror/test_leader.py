"""A leader writes batches, and says which of them all mirrors have."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope
from warren.mirror.carriers.batch import epoch_and_batch
from warren.mirror.replication.leading.flush_times import WAIT_S
from warren.mirror.replication.leading.leader import BATCH_BYTES_MAX, Leader
from warren.mirror.replication.leading.synchronisation import Synchronisation
from warren.mirror.replication.levels.instructions import Op
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.renumbering import LeaderChange, Renumbering


class Effects:
    """`LeaderEffects`: what was broadcast, and up to where all mirrors have everything."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.everywhere = 0
        self.flushes = 0

    def flush_soon(self) -> None:
        """The test flushes."""
        self.flushes += 1

    def broadcast(self, payload: bytes) -> None:
        self.batches.append(epoch_and_batch(payload)[1])

    def send_slice(self, mirror: str, payload: bytes) -> None:
        raise AssertionError("there is nothing to send")

    def now_in_sync(self, mirror: str) -> None:
        """Nobody writes it down."""

    def reported_by_all(self, batch: int) -> None:
        self.everywhere = max(self.everywhere, batch)

    def withhold(self) -> None:
        """There is no queue."""

    def hand_out(self) -> None:
        """There is no queue."""


class Clock:
    def now(self) -> float:
        return 0.0


def begins(leader: Leader) -> None:
    """The mirror b begins, with the whole queue."""
    leader.add_mirror("b")
    Synchronisation(leader, ManualClock()).start("b", synchronise=True)


def test_what_tells_the_first_mirror_to_begin_is_not_everywhere_before_it_is_written() -> None:
    """Otherwise it is not sent again to a mirror whose link breaks then."""
    effects = Effects()
    leader = Leader(1, 0, Clock(), effects)  # type: ignore[arg-type]
    leader.levels = [LeaderLevel(MemoryQueue(), 0, leader)]
    # Without mirrors nothing is broadcast, and everything is everywhere.
    leader.origin("somebody", 1)
    leader.flush()
    begins(leader)
    (batch,) = effects.batches
    assert effects.everywhere == batch - 1
    leader.has("b", batch)
    assert effects.everywhere == batch


def test_publishes_of_another_node_are_in_one_batch_with_the_number_of_the_last_one() -> None:
    """Or else the next leader may have them and not know it, and be sent them again."""
    effects = Effects()
    leader = Leader(1, 0, Clock(), effects)  # type: ignore[arg-type]
    leader.levels = [LeaderLevel(MemoryQueue(), 0, leader)]
    begins(leader)
    effects.batches.clear()
    envelope = Envelope("", "q", b"", True, 0, None)
    with leader.publishing_from_afar("c"):
        for _ in range(3):
            leader.publish(0, 0, envelope, bytes(BATCH_BYTES_MAX), None, False)
        leader.publish_many(0, 3, [envelope] * 2, [bytes(BATCH_BYTES_MAX)] * 2, None, False)
    assert effects.batches == []
    leader.origin("c", 5)
    assert len(effects.batches) == 1
    leader.publish(0, 5, envelope, bytes(BATCH_BYTES_MAX), None, False)
    assert len(effects.batches) == 2


def test_what_was_acknowledged_is_told_with_the_next_publish_or_a_moment_later() -> None:
    effects = Effects()
    clock = ManualClock()
    leader = Leader(1, 0, clock, effects)
    leader.levels = [LeaderLevel(MemoryQueue(), 0, leader)]
    begins(leader)
    begun = len(effects.batches)
    envelope = Envelope("", "q", b"", True, 0, None)
    effects.flushes = 0
    leader.runs(Op.ACK, 0, [1])
    leader.run(Op.FETCH, 0, 2)
    assert not effects.flushes
    leader.publish(0, 3, envelope, b"x", None, False)
    assert effects.flushes == 1
    leader.flush()
    assert len(effects.batches) == begun + 1
    leader.runs(Op.ACK, 0, [3])
    clock.advance(WAIT_S)
    assert len(effects.batches) == begun + 2
    # What clients wait for, and what changes the order, is told at once.
    leader.runs(Op.REQUEUE, 0, [2])
    assert effects.flushes == 2


def test_what_an_operator_removes_is_told_when_the_turn_is_over() -> None:
    effects = Effects()
    leader = Leader(1, 0, ManualClock(), effects)
    level = LeaderLevel(MemoryQueue(), 0, leader)
    leader.levels = [level]
    level.publish(Envelope("", "q", b"", True, 0, None), b"x", None, None, 0)
    taken = level.take([0])
    leader.flush()
    effects.flushes = 0
    level.ack(taken)
    assert effects.flushes == 1


@pytest.mark.parametrize("card_epoch", [3, 4])
def test_a_leader_goes_on_with_a_card_also_of_the_epoch_before(card_epoch: int) -> None:
    """It uses no position that it had when it took the lead; mirrors may have messages there."""
    leader = Leader(1, 4, ManualClock(), Effects())
    leader.levels = [LeaderLevel(MemoryQueue(), 0, leader)]
    known = Renumbering(2)
    known.step(LeaderChange(3, [5], [20], retained=(7, 9)))
    if card_epoch == 4:
        known.step(LeaderChange(4, [0], [30], retained=(9, 11)))
    leader.goes_on_with(known)
    assert leader.levels[0].next_position == (30 if card_epoch == 4 else 20)
    (since,) = leader.renumbering.since(3, 1) or ()
    assert since.shift == 0
    (since,) = leader.renumbering.since(2, 1) or ()
    assert since.shift == 5
    assert leader.renumbering.since(4, 1) is not None
    assert leader.renumbering.retained[0] == (7, 9)
