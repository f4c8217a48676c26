"""The outputs of the log: levels, files that are rotated, and one line for one event."""

from __future__ import annotations

import errno
import io
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.config import LOG_CATEGORIES, Config
from warren.core.log_line import log_event, log_fault
from warren.log_output import LogOutput

connection = logging.getLogger("warren.connection")
queue = logging.getLogger("warren.queue")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LogOutput]]:
    """Starts the log with these fields of `Config`; a file in any case, no console unless asked."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    outputs = []

    def start_output(**settings: Any) -> LogOutput:
        settings = {"log_file": tmp_path / "warren.log", "log_console": False, **settings}
        outputs.append(LogOutput.start(Config(**settings)))
        return outputs[-1]

    yield start_output
    for output in outputs:
        output.stop()
    root.handlers[:], level = before
    root.setLevel(level)
    for category in LOG_CATEGORIES:
        logging.getLogger(f"warren.{category}").setLevel(logging.NOTSET)


def events(path: Path) -> list[str]:
    """The events of a log file, without time, level and logger."""
    return [line.split(" ", 4)[4] for line in path.read_text(encoding="utf-8").splitlines()]


def log_all() -> None:
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        for log in (connection, queue):
            log_event(log, level, f"{log.name[7:]}_{logging.getLevelName(level).lower()}")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["connection_info", "queue_info", "connection_warning", "queue_warning"]),
        ({"log_level": "warning"}, ["connection_warning", "queue_warning"]),
        ({"log_level": "none"}, []),
        (
            {"log_level": "warning", "log_levels": (("queue", "debug"),)},
            ["queue_debug", "queue_info", "connection_warning", "queue_warning"],
        ),
        ({"log_levels": (("connection", "none"),)}, ["queue_info", "queue_warning"]),
        (
            {"log_level": "none", "log_file_level": "warning"},
            ["connection_warning", "queue_warning"],
        ),
        (
            {"log_levels": (("queue", "debug"),), "log_file_level": "warning"},
            ["connection_warning", "queue_warning"],
        ),
        (
            {"log_levels": (("queue", "none"),), "log_file_level": "warning"},
            ["connection_warning"],
        ),
    ],
)
def test_categories_and_outputs_have_levels(
    start: Callable[..., LogOutput], tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    start(**settings)
    log_all()
    assert events(tmp_path / "warren.log") == expected


def test_loggers_refuse_what_no_output_wants(start: Callable[..., LogOutput]) -> None:
    start(log_level="warning", log_levels=(("queue", "debug"),))
    assert not connection.isEnabledFor(logging.INFO)
    assert queue.isEnabledFor(logging.DEBUG)
    start(log_file=None)
    assert not queue.isEnabledFor(logging.CRITICAL), "there is no output at all"


def test_two_outputs_have_levels_of_their_own(
    start: Callable[..., LogOutput], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(log_console=True, log_console_level="warning", log_file_level="debug")
    log_event(connection, logging.DEBUG, "small")
    log_event(connection, logging.WARNING, "large")
    assert events(tmp_path / "warren.log") == ["small", "large"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING warren.connection large")


def test_a_file_is_opened_anew_when_it_was_rotated(
    start: Callable[..., LogOutput], tmp_path: Path
) -> None:
    file, rotated = tmp_path / "warren.log", tmp_path / "warren.log.1"
    output = start()
    log_event(connection, logging.INFO, "first")
    file.rename(rotated)
    log_event(connection, logging.INFO, "second")
    output.reopen()
    log_event(connection, logging.INFO, "third")
    assert (events(rotated), events(file)) == (["first", "second"], ["third"])


def test_a_file_that_cannot_be_opened_anew_is_kept(
    start: Callable[..., LogOutput], tmp_path: Path
) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    home.mkdir()
    output = start(log_file=home / "warren.log")
    home.rename(moved)
    output.reopen()
    log_event(connection, logging.INFO, "after")
    failure, after = events(moved / "warren.log")
    assert failure.startswith("log_file_not_reopened file=") and after == "after"


def test_no_message_is_two_lines(start: Callable[..., LogOutput], tmp_path: Path) -> None:
    start()
    forged = "2026-01-01 00:00:00,000 INFO warren.audit vhost_deleted who=guest"
    connection.warning("text of somebody else\n%s", forged)
    try:
        raise ValueError(f"of a client\r\n{forged}\u2028{forged}")
    except ValueError:
        log_fault(connection, "internal_error")
    lines = (tmp_path / "warren.log").read_text(encoding="utf-8").split("\n")
    first, second, *traceback = lines[:-1]
    assert first.endswith(rf"text of somebody else\n{forged}")
    assert second.endswith("internal_error")
    assert len(traceback) > 3 and all(line.startswith(" | ") for line in traceback)
    assert all(line.isprintable() for line in lines)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_lines_and_nothing_else(
    start: Callable[..., LogOutput], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = start()
    assert output._file is not None and output._file.stream is not None
    output._file.stream.close()
    output._file.stream = FullDisk()  # type: ignore[assignment]
    log_event(connection, logging.INFO, "lost")
    assert capsys.readouterr().err == ""
    output.reopen()
    log_event(connection, logging.INFO, "found")
    assert events(tmp_path / "warren.log") == ["found"]


def test_every_logger_is_of_a_category() -> None:
    root = Path(warren.__file__).resolve().parent.parent
    houses = ("amqp", "core", "mgmt", "mirror", "persist", "warren")
    named = {
        name
        for house in houses
        for file in (root / house).rglob("*.py")
        for name in re.findall(r'getLogger\("warren\.([a-z]+)', file.read_text(encoding="utf-8"))
    }
    assert named <= set(LOG_CATEGORIES)
    assert named
