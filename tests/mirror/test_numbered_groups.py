"""Numbers given to groups, and the groups of numbers: against a dictionary."""

from __future__ import annotations

import random

import pytest

from warren.mirror.replication.levels.numbered_groups import TIDY_AT, NumberedGroups


@pytest.mark.parametrize("seed", range(20))
def test_each_number_comes_back_with_its_group_and_offset(seed: int) -> None:
    rng = random.Random(seed)
    groups: NumberedGroups[str] = NumberedGroups()
    left: dict[int, tuple[str, int]] = {}
    open_numbers: dict[str, int] = {}
    for step in range(400):
        if rng.random() < 0.5:
            name, count = f"group {step}", rng.choice((1, 1, 2, 7, 40))
            first = groups.add(name, count)
            left.update({first + offset: (name, offset) for offset in range(count)})
            open_numbers[name] = count
        elif left:
            first = rng.choice(list(left))
            count = 1
            while first + count in left and rng.random() < 0.9:
                count += 1
            found = []
            for part in groups.settled(first, count):
                found += [(part.group, part.offset + at) for at in range(part.size)]
                open_numbers[part.group] -= part.size
                assert part.is_last is (open_numbers[part.group] == 0)
            assert found == [left.pop(number) for number in range(first, first + count)]
        still_open = [name for name, count in open_numbers.items() if count]
        assert sorted(groups) == sorted(still_open)
        assert bool(groups) is bool(still_open)


def test_groups_that_are_gone_take_no_room_for_long() -> None:
    groups: NumberedGroups[int] = NumberedGroups()
    kept = groups.add(0, 1)
    for number in range(10_000):
        first = groups.add(number, 3)
        list(groups.settled(first, 3))
    assert len(groups._starts) <= TIDY_AT + 2
    assert [part.group for part in groups.settled(kept, 1)] == [0]


def test_numbers_of_cleared_groups_are_passed_over() -> None:
    groups: NumberedGroups[str] = NumberedGroups()
    first = groups.add("gone", 5)
    groups.clear()
    again = groups.add("new", 2)
    assert list(groups.settled(first, 5)) == []
    assert [part.group for part in groups.settled(again, 2)] == ["new"]
