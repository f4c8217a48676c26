"""What becomes of positions from leader to leader."""

from __future__ import annotations

from warren.mirror.replication.levels.renumbering import (
    NO_LIMIT,
    STEPS_MAX,
    Gap,
    LeaderChange,
    Renumbering,
    Since,
)


def test_positions_of_the_same_epoch_stay() -> None:
    assert Renumbering(3).since(3, 2) == [Since(0, NO_LIMIT), Since(0, NO_LIMIT)]


def test_nobody_knows_of_epochs_before_the_first() -> None:
    assert Renumbering(3).since(2, 1) is None


def test_steps_add_up_and_cut_off_what_the_next_leader_never_got() -> None:
    known = Renumbering(0)
    # At 10 in the old positions the first of epoch 1 went on, at 25 that of epoch 2.
    known.step(LeaderChange(1, [100], [110]))
    known.step(LeaderChange(2, [-50], [75]))
    assert known.since(0, 1) == [Since(50, 10)]
    assert known.since(1, 1) == [Since(-50, 125)]
    assert known.since(2, 1) == [Since(0, NO_LIMIT)]


def test_nobody_knows_of_an_epoch_that_the_next_leader_never_heard_of() -> None:
    known = Renumbering(0)
    known.step(LeaderChange(2, [-1], [10]))
    assert known.since(1, 1) is None
    assert known.since(0, 1) == [Since(-1, 11)]


def test_how_a_leader_was_succeeded() -> None:
    known = Renumbering(0)
    known.step(LeaderChange(2, [-1], [10]))
    known.step(LeaderChange(3, [0], [20], [15]))
    assert known.up_to_gap(0) == Gap(LeaderChange(3, [-1], [10], [15]), [10])
    assert known.up_to_gap(2) == Gap(LeaderChange(3, [0], [20], [15]), [])


def test_what_a_later_leader_lacked_is_told_in_its_positions() -> None:
    known = Renumbering(0)
    known.step(LeaderChange(2, [-1], [10]))
    known.step(LeaderChange(3, [5], [40], [15]))
    known.step(LeaderChange(4, [7], [50]))
    # From 10 on epoch 2 had something else, which is 15 in epoch 3.
    assert known.up_to_gap(0) == Gap(LeaderChange(3, [4], [15], [15]), [15])
    assert known.up_to_gap(2) == Gap(LeaderChange(3, [5], [40], [15]), [])
    assert known.up_to_gap(3) == Gap(LeaderChange(4, [7], [50]), [])
    assert known.up_to_gap(1) is None
    assert known.up_to_gap(4) is None
    assert list(known.earlier(1)) == [(4, [0]), (3, [7]), (2, [12]), (0, [11])]


def test_the_oldest_steps_are_forgotten() -> None:
    known = Renumbering(0)
    for epoch in range(1, STEPS_MAX + 3):
        known.step(LeaderChange(epoch, [1], [epoch]))
    assert len(known.steps) == STEPS_MAX
    assert known.since(1, 1) is None
    since = known.since(2, 1)
    assert since is not None and since[0].shift == STEPS_MAX


def test_it_can_be_told() -> None:
    known = Renumbering(4)
    known.step(LeaderChange(5, [1, 2], [3, 4]))
    first_epoch, steps = known.plain()
    told = Renumbering.told(first_epoch, [list(step) for step in steps])
    assert told.since(4, 2) == known.since(4, 2)


def test_a_queue_with_other_levels_is_another_matter() -> None:
    known = Renumbering(0)
    known.step(LeaderChange(1, [1], [3]))
    assert known.since(0, 2) is None


def test_steps_of_a_queue_that_retains_nothing_are_told_as_older_nodes_know_them() -> None:
    renumbering = Renumbering(0)
    renumbering.step(LeaderChange(1, [0], [9]))
    renumbering.step(LeaderChange(2, [5], [14], [3], [7, 1 << 32]))
    assert renumbering.plain() == (0, [(1, [0], [9], []), (2, [5], [14], [3], [7, 1 << 32])])
    assert Renumbering.told(*renumbering.plain()).steps == [
        LeaderChange(1, [0], [9], [], ()),
        LeaderChange(2, [5], [14], [3], [7, 1 << 32]),
    ]
