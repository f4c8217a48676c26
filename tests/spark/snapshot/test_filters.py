from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from warren.spark_export.snapshot.filters import EVERYTHING, Interval, Pushed, understand
from warren.spark_export.snapshot.options import parse_options

SEQ, TIME = ("seq",), ("enqueued_at",)
MOMENT = datetime(2026, 1, 1, 1, tzinfo=UTC)
MOMENT_US = 1_767_229_200_000_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EqualTo(SEQ, 5), Interval(5, 6)),
        (EqualNullSafe(SEQ, 5), Interval(5, 6)),
        (GreaterThan(SEQ, 5), Interval(6)),
        (GreaterThanOrEqual(SEQ, 5), Interval(5)),
        (LessThan(SEQ, 5), Interval(None, 5)),
        (LessThanOrEqual(SEQ, 5), Interval(None, 6)),
        (In(SEQ, (7, None, 3)), Interval(3, 8)),
    ],
)
def test_bounds_of_seq(given: Filter, expected: Interval) -> None:
    assert understand([given]) == Pushed(seq=expected)


def test_times_are_microseconds() -> None:
    later = GreaterThan(TIME, MOMENT + timedelta(microseconds=1))
    assert understand([later, LessThanOrEqual(TIME, MOMENT + timedelta(seconds=1))]) == Pushed(
        enqueued_us=Interval(MOMENT_US + 2, MOMENT_US + 1_000_001)
    )


def test_names_of_several_filters_are_those_in_all_of_them() -> None:
    pushed = understand(
        [
            In(("queue",), ("a", "b", None)),
            In(("queue",), ("b", "c")),
            EqualTo(("vhost",), "/"),
            EqualNullSafe(("exchange",), "x"),
        ]
    )
    assert pushed.queues == {"b"} and pushed.vhosts == {"/"} and pushed.exchanges == {"x"}
    assert pushed.has_queue("/", "b")
    assert not pushed.has_queue("/", "a") and not pushed.has_queue("v", "b")


@pytest.mark.parametrize(
    "given",
    [
        Not(EqualTo(("queue",), "a")),
        IsNotNull(("queue",)),
        StringStartsWith(("queue",), "a"),
        EqualNullSafe(("queue",), None),
        EqualNullSafe(SEQ, None),
        EqualTo(("headers", "a"), "x"),
        EqualTo(("message_id",), "m"),
        EqualTo(TIME, datetime(2026, 1, 1)),
        In(SEQ, (None,)),
    ],
)
def test_what_is_not_understood_narrows_nothing(given: Filter) -> None:
    assert understand([given]) == EVERYTHING


def test_times_of_options_and_of_filters_count_both() -> None:
    options = parse_options({"startingTimestamp": "2026-01-01", "endingTimestamp": "2026-01-02"})
    kept = understand([GreaterThanOrEqual(TIME, MOMENT)]).row_filter(options)
    assert kept.enqueued_us == Interval(MOMENT_US, MOMENT_US + 23 * 3_600_000_000)
