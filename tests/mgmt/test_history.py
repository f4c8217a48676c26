"""Samples, rates and windows: the arithmetic under the charts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from warren.mgmt.statistics.history import (
    RETENTION,
    RETENTION_OF_ONE,
    SAMPLE_OCTETS,
    History,
    PastWindow,
    Recent,
    pack,
    room_for,
)


def test_a_rate_is_over_the_last_seconds() -> None:
    recent = Recent(0.0)
    for second in range(0, 60, 5):
        recent.add(float(second), pack((10.0 * second,)))
    assert recent.rates(57.0, (570.0,)) == (10.0,)
    # A burst of this moment shows at once.
    assert recent.rates(57.0, (1370.0,))[0] == pytest.approx((1370 - 500) / 7)


def test_what_stands_still_has_no_rate() -> None:
    recent = Recent(0.0)
    recent.add(0.0, pack((100.0,)))
    assert recent.rates(60.0, (100.0,)) == (0.0,)
    assert recent.rates(5.0, (100.0,)) == (0.0,)


def test_it_is_known_when_something_last_moved() -> None:
    recent = Recent(0.0)
    for second in (0, 5, 10):
        recent.add(float(second), pack((1.0,)))
    assert recent.changed_at == 0.0
    recent.add(15.0, pack((2.0,)))
    recent.add(20.0, pack((2.0,)))
    assert recent.changed_at == 15.0


def test_a_window_is_newest_first_and_bounded() -> None:
    times = PastWindow(60, 5).times(1003.0)
    assert times[0] == 1000.0 and times[-1] == 940.0
    assert all(later - earlier == 5 for later, earlier in pairwise(times))
    assert len(PastWindow(10**9, 1).times(5.0)) == 500


def test_the_recent_past_is_in_detail_and_the_rest_in_outline() -> None:
    history = History(((5.0, 600.0), (60.0, 3600.0)))
    for second in range(0, 7200, 5):
        history.add(float(second), pack((float(second),)))
    recent = history.at(PastWindow(300, 5).times(7195.0))
    assert [sample.figures[0] for sample in recent] == [s.at for s in recent]
    old = history.at(PastWindow(3000, 60).times(7195.0))
    assert len(old) == 51
    # A minute's sample is of its end.
    assert all(0 <= sample.at - sample.figures[0] <= 5 for sample in old)


def test_before_anything_was_known_there_are_no_samples() -> None:
    history = History()
    assert history.at([1.0, 0.0]) == []
    history.add(100.0, pack((1.0,)))
    assert [sample.at for sample in history.at([105.0, 100.0, 95.0])] == [105.0, 100.0]


def test_times_are_whole_increments_of_the_day_so_that_nodes_agree() -> None:
    times = PastWindow(60, 10).times(1003.0, wall_offset_s=4.0)
    assert [(at + 4.0) % 10 for at in times] == [0.0] * 7
    assert 993.0 < times[0] <= 1003.0


def test_memory_is_bounded() -> None:
    history = History(RETENTION)
    for second in range(0, 200_000, 5):
        history.add(float(second), pack((second * 1000,) * 12))
    assert history.octets <= room_for(RETENTION)
    assert history.at(PastWindow(600, 5).times(199_995.0))[-1].at == 199_395.0


def test_a_coarse_history_takes_its_share_and_still_goes_as_far_back() -> None:
    history = History(RETENTION_OF_ONE)
    for second in range(0, 7200, 5):
        history.add(float(second), pack((second, 7)), 10)
    assert history.octets <= room_for(RETENTION_OF_ONE) / 10
    samples = history.at(PastWindow(600, 50).times(7195.0))
    assert samples[-1].at == 6550.0
    assert all(0 <= at - figures[0] <= 50 for at, figures in samples)


def test_what_there_is_shrinks_at_once_when_samples_become_coarser() -> None:
    history = History(RETENTION_OF_ONE)
    for second in range(0, 7200, 5):
        history.add(float(second), pack((second,) * 20))
    history.limit(30)
    assert history.octets <= room_for(RETENTION_OF_ONE) / 30
    assert history.at([7195.0])[0].figures[0] == 7195


def test_the_last_of_a_burst_is_kept_in_outline_though_nothing_follows() -> None:
    history = History(((5.0, 20.0), (60.0, 3600.0)))
    for second in (0, 5, 10, 15):
        history.add(float(second), pack((second,)))
    # Nothing changes any more: the short past is as the end of the burst was.
    assert [sample.figures[0] for sample in history.at([3000.0, 100.0, 15.0, 0.0])] == [
        15,
        15,
        15,
        0,
    ]


def test_a_history_is_the_same_after_it_was_stored() -> None:
    history = History(RETENTION_OF_ONE)
    for second in range(0, 7200, 5):
        history.add(float(second), pack((second, 0.5)))
    # The clock of the next start is behind by 7,000 seconds.
    restored = History.restored(history.stored(), RETENTION_OF_ONE, 2, -7000.0, 195.0)
    for window in (PastWindow(600, 5), PastWindow(3500, 60)):
        before = history.at(window.times(7195.0, 5.0))
        after = restored.at([at - 7000.0 for at, _ in before])
        assert [sample.figures for sample in after] == [sample.figures for sample in before]


def test_counters_go_on_after_a_restart_and_levels_do_not() -> None:
    history = History(RETENTION_OF_ONE)
    history.add(0.0, pack((100, 40)))
    restored = History.restored(history.stored(), RETENTION_OF_ONE, 2, 0.0, 10.0)
    restored.go_on([0])
    restored.add(10.0, pack((3, 5)))
    assert restored.at([10.0, 0.0]) == [(10.0, (103, 5)), (0.0, (100, 40))]


def test_what_is_too_old_is_not_restored() -> None:
    history = History(((5.0, 600.0),))
    history.add(0.0, pack((1,)))
    history.add(500.0, pack((2,)))
    assert not History.restored(history.stored(), ((5.0, 600.0),), 1, 0.0, 1000.0).empty
    assert History.restored(history.stored(), ((5.0, 600.0),), 1, 0.0, 5000.0).empty


def test_figures_of_another_version_are_refused() -> None:
    history = History(((5.0, 600.0),))
    history.add(0.0, pack((1, 2, 3)))
    with pytest.raises(ValueError, match="not 2 figures"):
        History.restored(history.stored(), ((5.0, 600.0),), 2, 0.0, 0.0)
    with pytest.raises(ValueError, match="1 rings instead of 2"):
        History.restored(history.stored(), RETENTION_OF_ONE, 3, 0.0, 0.0)


def test_usual_samples_fit_the_room_they_are_given() -> None:
    busy_queue = (123_456_789, 0, 0, 0, 0, 0, 0, 0, 0, 123_456_700, 0, 12, 123_456_000, 0, 0)
    assert len(pack((*busy_queue, 5_000, 4_000, 1_000, 0, 0, 0, 0, 0))) + 6 <= SAMPLE_OCTETS
