"""Samples, rates and windows: the arithmetic under the charts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from warren.mgmt.statistics.history import History, Recent, Window


def test_a_rate_is_over_the_last_seconds() -> None:
    recent = Recent(0.0)
    for second in range(0, 60, 5):
        recent.add(float(second), (10.0 * second,))
    assert recent.rates(57.0, (570.0,)) == (10.0,)
    # A burst of this moment shows at once.
    assert recent.rates(57.0, (1370.0,))[0] == pytest.approx((1370 - 500) / 7)


def test_what_stands_still_has_no_rate() -> None:
    recent = Recent(0.0)
    recent.add(0.0, (100.0,))
    assert recent.rates(60.0, (100.0,)) == (0.0,)
    assert recent.rates(5.0, (100.0,)) == (0.0,)


def test_it_is_known_when_something_last_moved() -> None:
    recent = Recent(0.0)
    for second in (0, 5, 10):
        recent.add(float(second), (1.0,))
    assert recent.changed_at == 0.0
    recent.add(15.0, (2.0,))
    recent.add(20.0, (2.0,))
    assert recent.changed_at == 15.0


def test_a_window_is_newest_first_and_bounded() -> None:
    times = Window(60, 5).times(1003.0)
    assert times[0] == 1000.0 and times[-1] == 940.0
    assert all(later - earlier == 5 for later, earlier in pairwise(times))
    assert len(Window(10**9, 1).times(5.0)) == 500


def test_the_recent_past_is_in_detail_and_the_rest_in_outline() -> None:
    history = History(((5.0, 600.0), (60.0, 3600.0)))
    for second in range(0, 7200, 5):
        history.add(float(second), (float(second),))
    recent = history.at(Window(300, 5).times(7195.0))
    assert [sample.figures[0] for sample in recent] == [s.at for s in recent]
    old = history.at(Window(3000, 60).times(7195.0))
    assert len(old) == 51
    assert all(0 <= sample.at - sample.figures[0] <= 60 for sample in old)


def test_before_anything_was_known_there_are_no_samples() -> None:
    history = History()
    assert history.at([1.0, 0.0]) == []
    history.add(100.0, (1.0,))
    assert [sample.at for sample in history.at([105.0, 100.0, 95.0])] == [105.0, 100.0]


def test_memory_is_bounded() -> None:
    history = History(((5.0, 600.0),))
    for second in range(0, 100_000, 5):
        history.add(float(second), (0.0,))
    assert len(history._rings[0][1]) <= 122
