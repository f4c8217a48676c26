"""What a history keeps, and how much of it."""

from __future__ import annotations

import pytest

from warren.core.errors import PreconditionFailed
from warren.core.exchanges import recent_history
from warren.core.exchanges.recent_history import LENGTH_MAX, RecentHistory, history_length, is_kept
from warren.core.field import Field, long, longstr
from warren.core.messages.message import Envelope

ENVELOPE = Envelope("x", "k", b"", False, 0, None)


def kept(history: RecentHistory) -> list[bytes]:
    return [message.body for message in history.messages()]


def test_the_last_ones_are_kept_oldest_first() -> None:
    history = RecentHistory(2)
    assert kept(history) == []
    for body in (b"1", b"2", b"3"):
        history.keep(ENVELOPE, body)
    assert kept(history) == [b"2", b"3"]


def test_no_more_octets_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_history, "OCTETS_MAX", 10)
    history = RecentHistory(100)
    for body in (b"1234", b"56", b"7890", b"a"):
        history.keep(ENVELOPE, body)
    assert kept(history) == [b"56", b"7890", b"a"]
    history.keep(ENVELOPE, b"x" * 11)
    assert kept(history) == [b"x" * 11]
    history.keep(ENVELOPE, b"y")
    assert kept(history) == [b"y"]


def test_the_length_has_a_bound_of_its_own() -> None:
    history = RecentHistory(10**12)
    for _ in range(LENGTH_MAX + 1):
        history.keep(ENVELOPE, b"m")
    assert len(kept(history)) == LENGTH_MAX


def test_the_length_is_a_positive_integer() -> None:
    assert history_length({}) == 20
    assert history_length({"x-recent-history-length": Field("b", 3)}) == 3
    for wrong in (long(0), long(-1), longstr("5"), Field("d", 2.0), Field("t", True)):
        with pytest.raises(PreconditionFailed, match="must be a positive integer"):
            history_length({"x-recent-history-length": wrong})


def test_only_true_keeps_a_message_out() -> None:
    assert is_kept({})
    assert not is_kept({"x-recent-history-no-store": Field("t", True)})
    for other in (Field("t", False), longstr("true"), long(1)):
        assert is_kept({"x-recent-history-no-store": other})
