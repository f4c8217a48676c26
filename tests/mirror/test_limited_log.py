"""Log lines that a peer could cause without end."""

from __future__ import annotations

import logging

import pytest
from manual_clock import ManualClock

from warren.mirror.links.limited_log import LINES_MAX, WINDOW_S, LimitedLog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limited(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> LimitedLog:
    caplog.set_level(logging.INFO)
    return LimitedLog(logging.getLogger("warren.cluster"), clock)


def test_an_event_of_a_peer_has_one_line_in_a_window_and_says_how_many_were_left_out(
    limited: LimitedLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        limited.event(logging.INFO, "knocked", "bob", node="bob")
    clock.advance(WINDOW_S)
    limited.event(logging.INFO, "knocked", "bob", node="bob")
    assert caplog.messages == ["knocked node=bob", "knocked node=bob repeated=99"]


def test_events_and_peers_are_limited_apart(
    limited: LimitedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for event, about in (("knocked", "bob"), ("rang", "bob"), ("knocked", "carol")):
        limited.event(logging.INFO, event, about)
    assert caplog.messages == ["knocked", "rang", "knocked"]


def test_many_peers_together_have_a_limit_too(
    limited: LimitedLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for window in range(3):
        for number in range(10 * LINES_MAX):
            limited.event(logging.INFO, "knocked", f"{window}.{number}")
        assert len(limited._logged) + len(limited._left_out) <= 2 * LINES_MAX
        clock.advance(WINDOW_S)
    left_out = f"link_lines_left_out lines={9 * LINES_MAX}"
    assert caplog.messages == (["knocked"] * LINES_MAX + [left_out]) * 2 + ["knocked"] * LINES_MAX


def test_what_is_not_wanted_takes_no_line_away_from_what_is(
    limited: LimitedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LINES_MAX):
        limited.event(logging.DEBUG, "passed", str(number))
    limited.event(logging.INFO, "knocked", "bob")
    assert caplog.messages == ["knocked"]
