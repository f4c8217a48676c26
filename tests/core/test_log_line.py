"""Lines of the log: what they look like, and that nothing in a value forges one."""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.access.audit import audit
from warren.core.log_line import VALUE_MAX, event_line, log_event, log_fault, visible

FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)')


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """What a reader of the log makes of a line."""
    event, _, rest = line.partition(" ")
    fields = {}
    while rest:
        found = FIELD.match(rest)
        assert found is not None, rest
        value = found[2]
        fields[found[1]] = json.loads(value) if value.startswith('"') else value
        rest = rest[found.end() :].removeprefix(" ")
    return event, fields


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("orders", "orders"),
        ("/", "/"),
        (5, "5"),
        (True, "true"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("a=b", '"a=b"'),
        ("line\nbreak\r", r'"line\nbreak\r"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("\u2028", r'"\u2028"'),
        ("\u202eright to left", r'"\u202eright to left"'),
        ("\udcff", r'"\udcff"'),
        ("größe", "größe"),
        ("\U000e0001", r'"\udb40\udc01"'),
    ],
)
def test_a_value_is_quoted_where_it_could_be_mistaken(value: object, written: str) -> None:
    assert event_line("event", value=value) == f"event value={written}"


def test_a_value_that_is_none_is_left_out() -> None:
    assert event_line("event", a=None, b=1) == "event b=1"


def test_a_long_value_is_cut() -> None:
    assert event_line("event", a="x" * 10_000) == f"event a={'x' * VALUE_MAX}..."
    assert len(event_line("event", a="\0" * 1_000_000)) < 7 * VALUE_MAX


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=300)))
def test_every_line_can_be_read_back(values: dict[str, str]) -> None:
    line = event_line("event", **values)
    assert line.isprintable() and len(line.splitlines()) == 1
    assert parsed(line) == ("event", values)


@given(st.text())
def test_what_is_visible_is_one_line(text: str) -> None:
    assert visible(text).isprintable()


def test_nothing_is_formatted_that_nobody_wants(caplog: pytest.LogCaptureFixture) -> None:
    class Expensive:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    log = logging.getLogger("warren.test")
    with caplog.at_level(logging.INFO, "warren.test"):
        log_event(log, logging.DEBUG, "event", value=Expensive())
        log_event(log, logging.INFO, "event", event="a value", level=1, log=2)
    assert caplog.messages == ['event event="a value" level=1 log=2']


def test_a_fault_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("of ours")
    except ValueError:
        log_fault(logging.getLogger("warren.test"), "internal_error", peer="a b")
    (record,) = caplog.records
    assert (record.levelname, record.message) == ("ERROR", 'internal_error peer="a b"')
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_an_audit_line_says_who_did_what(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "warren.audit"):
        audit("ctl", "user_deleted", user="bob\nforged")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("warren.audit", "INFO")
    assert record.message == 'user_deleted who=ctl user="bob\\nforged"'
