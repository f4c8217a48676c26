"""What the backing queue of a leader knows and its own store does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warren.core.memory_queue import MemoryQueue
from warren.core.message import Envelope
from warren.mirror.replication.leader_level import LeaderLevel

ENVELOPE = Envelope("", "ha", b"", True, 0, None)


@pytest.mark.parametrize("may_be_delivered", [True, False])
def test_what_another_leader_may_have_delivered_is_redelivered_after_a_stop_in_order(
    may_be_delivered: bool,
) -> None:
    journal = SimpleNamespace(
        again=may_be_delivered,
        publish=lambda *_: 1,
        nobody_asks=lambda *_: None,
        run=lambda *_: None,
    )
    store = MemoryQueue()
    level = LeaderLevel(store, 0, journal)  # type: ignore[arg-type]
    level.publish(ENVELOPE, b"body", None, None, 0)
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

    def nobody_asks(self, *_: object) -> None: ...

    def run(self, *_: object) -> None: ...


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
