"""Looking into long runs of messages: what is found there, wherever it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest

from warren.core.backing.peeking import (
    AHEAD_COUNT,
    FAR,
    Ahead,
    first_positions,
    list_positions,
    peek,
)
from warren.core.messages.message import Envelope, Message

ENVELOPE = Envelope("", "key", b"", False, 0, None)


def run_of(positions: list[int]) -> deque[Message]:
    return deque(Message(ENVELOPE, b"%d" % position, position, None) for position in positions)


@pytest.mark.parametrize("gaps", [0, 5, 3000])
@pytest.mark.parametrize("length", [0, 1, 100, 3 * FAR])
def test_a_run_is_found_and_left_as_it_is(length: int, gaps: int) -> None:
    random = Random(length + gaps)
    positions = sorted(random.sample(range(7, 7 + length + gaps), length))
    run = run_of(positions)
    end = 8 + length + gaps
    starts = [0, 7, FAR + 7, 2 * FAR, end - 1, end, *random.sample(range(end), min(end, 50))]
    for start in starts:
        wanted = [position for position in positions if position >= start]
        listed = list_positions((), (run,), start, end, 20, True)
        assert listed.positions == wanted[:20]
        assert listed.next_position == (wanted[20] if len(wanted) > 20 else end)
        peeked = peek((), (run,), start, end, 20, 1 << 20)
        assert [message.position for message in peeked.messages] == wanted[:20]
        assert peeked.next_position == listed.next_position
    assert [message.position for message in run] == positions


def test_what_is_lost_does_not_count() -> None:
    """Those behind it are found all the same."""
    run = run_of(list(range(100)))
    peeked = peek(
        (), (run,), 0, 100, 3, 1 << 20, lambda message: message if message.position > 50 else None
    )
    assert [message.position for message in peeked.messages] == [51, 52, 53]
    assert peeked.next_position == 54


def test_returned_messages_come_first_and_runs_in_order() -> None:
    returned = [(message.position, message) for message in run_of([4, 2])]
    runs = (run_of([5, 6]), run_of([9, 11]))
    assert list_positions(returned, runs, 3, 20, 10, True).positions == [4, 5, 6, 9, 11]
    assert list_positions(returned, runs, 3, 20, 2, True).positions == [4, 5]
    assert list_positions(returned, runs, 6, 11, 9, True).positions == [6, 9]


@pytest.mark.parametrize("seed", range(6))
def test_what_was_found_ahead_is_what_is_there(seed: int) -> None:
    """For readers who go through a queue that loses messages at both ends and gets others."""
    random = Random(seed)
    ahead = Ahead()
    gap = random.choice([1, 1, 3])
    positions = list(range(5, 5 + 4 * FAR * gap, gap))
    run = run_of(positions)
    readers = [5] * random.choice([1, 2, 3])
    while len(positions) > 100 and any(at < positions[-1] for at in readers):
        for _ in range(random.choice([0, 0, 0, 70])):
            positions.pop(0)
            run.popleft()
        for _ in range(random.choice([0, 0, 0, 70])):
            positions.pop()
            run.pop()
        if random.random() < 0.2:
            positions.append(max(*readers, positions[-1]) + random.choice([1, 5]))
            run.extend(run_of(positions[-1:]))
        reader = random.randrange(len(readers))
        start = readers[reader]
        count = random.choice([1, 64, 64, 700, 2 * AHEAD_COUNT])
        wanted = [position for position in positions if position >= start]
        peeked = peek((), (run,), start, 1 << 40, count, 1 << 20, ahead=ahead)
        assert [message.position for message in peeked.messages] == wanted[:count]
        assert peeked.next_position == (wanted[count] if len(wanted) > count else 1 << 40)
        readers[reader] = min(peeked.next_position, max(start, positions[-1] + 1))
        assert len(run) == len(positions) and run[-1].position == positions[-1]


def test_the_middle_of_a_long_run_is_gone_to_once_for_many_looks() -> None:
    ahead = Ahead()
    turns = 0

    class Turned(deque[Message]):
        def rotate(self, n: int = 1) -> None:
            nonlocal turns
            turns += 1
            super().rotate(n)

    run = Turned(run_of(list(range(8 * FAR))))
    at = 2 * FAR
    for _ in range(AHEAD_COUNT // 64):
        at = peek((), (run,), at, 8 * FAR, 64, 1 << 20, ahead=ahead).next_position
    assert turns <= 4


def test_large_bodies_are_not_held_in_number() -> None:
    body = bytes(1 << 18)
    run = deque(Message(ENVELOPE, body, position, None) for position in range(3 * FAR))
    ahead = Ahead()
    peek((), (run,), FAR + 10, 3 * FAR, 2, 1 << 30, ahead=ahead)
    assert len(ahead.known(run, FAR + 10)) == 4


@pytest.mark.parametrize("gap", [1, 2, 50])
def test_the_lowest_positions_are_found(gap: int) -> None:
    positions = list(range(10, 10 + 100 * gap, gap))
    there = dict.fromkeys(Random(1).sample(positions, len(positions)))
    for start, end, count in ((0, 5000, 7), (10 + gap, 5000, 30), (50, 60, 30), (9000, 9500, 1)):
        wanted = [position for position in positions if start <= position < end]
        assert first_positions(there, start, end, count) == wanted[:count]


def test_only_the_lowest_positions_are_looked_at_where_there_are_no_gaps() -> None:
    class Looked(dict[int, None]):
        looks = 0

        def __contains__(self, key: object) -> bool:
            self.looks += 1
            return super().__contains__(key)

        def __iter__(self) -> Iterator[int]:
            self.looks += len(self)
            return super().__iter__()

    there = Looked.fromkeys(range(10_000))
    assert first_positions(there, 5000, 10_000, 3) == [5000, 5001, 5002]
    assert there.looks == 3
