"""A pytest plugin: writes which tests failed, and what else went wrong, to a JSON file.

Used by run_tests.py: `pytest -p outcomes --outcomes=FILE`. If there is no file afterwards, pytest
itself was ended.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CRASH = "???"
"""What pytest-xdist reports, in place of setup, call or teardown, when a test ended its worker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="where to write the outcomes")


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist report to the process that started them, which writes the file.
    if config.getoption("outcomes") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(config.getoption("outcomes"))))


class Outcomes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: set[str] = set()
        self._failed: dict[str, None] = {}  # in the order in which they failed
        self._broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == CRASH:
            self._broken.append(f"a worker crashed in {report.nodeid}")
        elif report.failed:
            self._failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(f"{report.nodeid} cannot be collected")

    def pytest_internalerror(self, excrepr: object) -> None:
        self._broken.append("an internal error of pytest")

    def pytest_sessionfinish(self) -> None:
        outcomes = {
            "passed": sorted(self._passed - self._failed.keys()),
            "failed": list(self._failed),
            "broken": self._broken,
        }
        self._file.write_text(json.dumps(outcomes), encoding="utf-8")
