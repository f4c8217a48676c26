"""Limits on work in a second."""

from __future__ import annotations

import pytest

from warren.mgmt.pace import BURST_S, Pace


def published(pace: Pace, now: float) -> int:
    count = 0
    while pace.allows(now) and count < 10_000:
        pace.used(now)
        count += 1
    return count


def test_without_a_rate_there_is_no_limit() -> None:
    assert published(Pace(None, 0.0), 0.0) == 10_000


def test_rate_is_kept_over_many_looks() -> None:
    pace = Pace(1000, 0.0)
    count = sum(published(pace, step / 100) for step in range(1, 101))
    assert count == pytest.approx(1000, abs=2)


def test_pause_is_not_followed_by_a_flood() -> None:
    pace = Pace(1000, 0.0)
    assert published(pace, 60.0) <= 1000 * BURST_S + 1


def test_rate_below_one_lets_one_through_at_a_time() -> None:
    pace = Pace(0.5, 0.0)
    assert not pace.allows(1.0)
    assert pace.wait_s(1.0) == 1.0
    assert published(pace, 2.0) == 1
    assert published(pace, 3.9) == 0


def test_much_at_once_is_paid_for_by_waiting() -> None:
    pace = Pace(1000, 0.0)
    pace.used(60.0, 500)
    assert pace.wait_s(60.0) == pytest.approx(0.5 - BURST_S, abs=0.01)
