"""Figures of several nodes, added up."""

from __future__ import annotations

from typing import Any

import pytest

from warren.mgmt.peers import added


def details(rate: float, *samples: tuple[int, float]) -> dict[str, Any]:
    return {"rate": rate, "samples": [{"timestamp": at, "sample": value} for at, value in samples]}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (1, 2, 3),
        (1, 0.5, 1.5),
        (None, 4, 4),
        (4, None, 4),
        (None, None, None),
        (True, True, True),
        ("a", "b", "a"),
        ({}, {"ack": 1}, {"ack": 1}),
        ({"ack": 1, "get": 2}, {"ack": 3}, {"ack": 4, "get": 2}),
        (
            {"ack_details": {"rate": 0.5}},
            {"ack_details": {"rate": 1}},
            {"ack_details": {"rate": 1.5}},
        ),
        # Clocks of nodes differ: the time is that of the node that was asked.
        (details(1, (20, 5), (10, 3)), details(2, (21, 1), (11, 1)), details(3, (20, 6), (10, 4))),
        # One of them has begun later: before that, there were the other's alone.
        (details(1, (20, 5), (10, 3)), details(2, (21, 1)), details(3, (20, 6), (10, 3))),
        (details(2, (21, 1)), details(1, (20, 5), (10, 3)), details(3, (21, 6), (10, 3))),
    ],
)
def test_numbers_are_added_place_by_place(one: Any, other: Any, both: Any) -> None:
    assert added(one, other) == both
