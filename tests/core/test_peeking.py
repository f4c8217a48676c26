"""Looking into long runs of messages: what is found there, wherever it is."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from warren.core.message import Envelope, Message
from warren.core.peeking import FAR, list_positions, peek

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
