"""Latencies and counts: percentiles against a sorted list, tallies that add up."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mgmt.perf.measure import PERCENTILES, PerfHistogram, Tally

DURATIONS = st.lists(st.integers(0, 10**11), min_size=1, max_size=300)


def histogram_of(durations: list[int]) -> PerfHistogram:
    histogram = PerfHistogram()
    now_ns = 10**12
    histogram.record_since([now_ns - duration for duration in durations], now_ns)
    return histogram


@given(DURATIONS)
def test_percentiles_are_within_half_a_percent_of_a_sorted_list(durations: list[int]) -> None:
    histogram = histogram_of(durations)
    for _, permille in PERCENTILES:
        exact = sorted(durations)[ceil(permille * len(durations) / 1000) - 1]
        assert histogram.percentile(permille) == pytest.approx(exact, rel=0.005, abs=0)


@given(DURATIONS)
def test_smallest_and_largest_are_exact(durations: list[int]) -> None:
    values = histogram_of(durations).in_ms()
    assert values is not None
    assert values["min"] == min(durations) / 1e6
    assert values["max"] == max(durations) / 1e6


@given(DURATIONS, DURATIONS)
def test_added_histograms_are_the_histogram_of_both(first: list[int], second: list[int]) -> None:
    added = histogram_of(first)
    added.add(histogram_of(second))
    assert added.in_ms() == histogram_of(first + second).in_ms()


def test_the_report_names_seven_values_in_order() -> None:
    values = histogram_of(list(range(1, 1001))).in_ms()
    assert values is not None
    assert list(values) == ["min", "median", "p75", "p95", "p99", "p99.9", "max"]
    assert list(values.values()) == sorted(values.values())


def test_nothing_recorded_is_no_latency() -> None:
    assert PerfHistogram().in_ms() is None
    assert PerfHistogram().percentile(500) == 0


def test_a_stamp_of_another_clock_is_left_out() -> None:
    histogram = PerfHistogram()
    histogram.record_since([2_000, 400], 1_000)
    assert (histogram.total, histogram.smallest, histogram.largest) == (1, 600, 600)


def test_what_is_taken_from_a_tally_is_not_counted_again() -> None:
    tally = Tally(sent=3, received=2, published_until_ns=7)
    tally.consume_latency.record_since([10], 30)
    totals = tally.take()
    tally.sent += 4
    totals.add(tally.take())
    assert (totals.sent, totals.received, totals.published_until_ns) == (7, 2, 7)
    assert totals.consume_latency.total == 1
    assert totals.consume_latency.largest == 20
