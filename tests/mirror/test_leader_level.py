"""What the backing queue of a leader knows and its own store does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warren.core.backing.backing_queue import Peeked
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.messages.message import Envelope
from warren.mirror.replication.levels.leader_level import LeaderLevel

ENVELOPE = Envelope("", "ha", b"", True, 0, None)


@pytest.mark.parametrize("may_be_delivered", [True, False])
def test_what_another_leader_may_have_delivered_is_redelivered_after_a_stop_in_order(
    may_be_delivered: bool,
) -> None:
    journal = SimpleNamespace(
        again=may_be_delivered,
        publish=lambda *_: 1,
        without_confirms=lambda *_: None,
        run=lambda *_: None,
    )
    store = MemoryQueue()
    level = LeaderLevel(store, 0, journal)  # type: ignore[arg-type]
    level.publish(ENVELOPE, b"body", None, None, 0)
    assert level.delivered_below == may_be_delivered
    level.stop()
    message = store.fetch()
    assert message is not None and message.redelivered is may_be_delivered


class NotingJournal:
    """Notes what may be handed out at once, or when the test says so."""

    again = False

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.level: LeaderLevel
        self.announced: list[int] = []
        self.withheld = 0

    def hand_out(self, level: int, below: int) -> None:
        if self.at_once:
            self.level.hand_outs.noted_by_all(below)
        else:
            self.announced.append(below)

    def withhold(self) -> None:
        self.withheld += 1

    def publish(self, *_: object) -> int:
        return 1

    def without_confirms(self, *_: object) -> None: ...

    def run(self, *_: object) -> None: ...

    def runs(self, *_: object) -> None: ...


def level_with_gaps(journal: NotingJournal) -> LeaderLevel:
    """Messages at every thousandth position."""
    store = MemoryQueue()
    journal.level = level = LeaderLevel(store, 0, journal)  # type: ignore[arg-type]
    for number in range(20):
        store.skip_to(1000 * number)
        level.publish(ENVELOPE, b"%d" % number, None, None, 0)
    return level


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_positions_that_are_gone_do_not_hold_up_a_leader_without_mirrors(limit: int) -> None:
    """Fetched one by one, or many."""
    journal = NotingJournal(at_once=True)
    level = level_with_gaps(journal)
    found: list[bytes] = []
    while messages := level.fetch_many(limit) if limit else [m for m in [level.fetch()] if m]:
        found += [bytes(message.body) for message in messages]
    assert found == [b"%d" % number for number in range(20)]
    assert not journal.withheld


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_nothing_is_fetched_beyond_positions_that_mirrors_know(limit: int) -> None:
    journal = NotingJournal(at_once=False)
    level = level_with_gaps(journal)
    found: list[bytes] = []
    noted = 0
    for _ in range(100):
        messages = level.fetch_many(limit) if limit else [m for m in [level.fetch()] if m]
        assert all(message.position < noted and not message.redelivered for message in messages)
        found += [bytes(message.body) for message in messages]
        if messages or not level.length:
            continue
        assert journal.withheld
        journal.withheld = 0
        noted = journal.announced.pop(0)
        assert level.hand_outs.noted_by_all(noted)
    assert found == [b"%d" % number for number in range(20)]


def test_what_is_dropped_waits_for_no_mirror() -> None:
    journal = NotingJournal(at_once=False)
    level = level_with_gaps(journal)
    message = level.fetch_to_drop()
    assert message is not None and message.body == b"0" and not journal.announced


def test_what_was_noted_stays_so_when_an_older_announcement_is_heard_of_late() -> None:
    """Or a leader that has lost its mirrors, and has others, would hand out nothing any more."""
    journal = NotingJournal(at_once=False)
    level = level_with_gaps(journal)
    assert not level.fetch_many(7)
    old = journal.announced.pop()
    level.hand_outs.announce(10_000)
    level.hand_outs.noted_by_all(journal.announced.pop())
    level.hand_outs.noted_by_all(old)
    assert len(level.fetch_many(7)) == 7


class InPieces(MemoryQueue):
    """Looks at so many positions at once, as one does that has messages on a disk."""

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        end = min(start + 700, self.next_position)
        peeked = super().peek(start, count_max, bytes_max)
        there = [message for message in peeked.messages if message.position < end]
        return Peeked(there, peeked.next_position if there else end)


def test_the_oldest_message_is_found_behind_a_part_without_any() -> None:
    """A mirror that lacks it would count as whole otherwise."""
    journal = NotingJournal(at_once=True)
    store = InPieces()
    journal.level = level = LeaderLevel(store, 0, journal)  # type: ignore[arg-type]
    assert level.oldest() == 0
    for position in (5000, 6000):
        store.skip_to(position)
        level.publish(ENVELOPE, b"body", None, None, 0)
    assert level.oldest() == 5000
    level.ack([store.fetch() or pytest.fail("it is there")])
    assert level.oldest() == 6000
    level.ack([store.fetch() or pytest.fail("it is there")])
    assert level.oldest() == store.next_position
