"""A pytest plugin that ends a run with a verdict per area, in sentences made of test names."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

# The most failing sentences and skip reasons that an area lists; further ones are only counted.
SENTENCES_MAX = 5


@dataclass
class Area:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


class Verdict:
    """Collects the outcome of each test under the `AREA` of its module."""

    def __init__(self) -> None:
        self.areas: dict[str, Area] = defaultdict(Area)
        self.area_of: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            module = getattr(item, "module", None)
            self.area_of[item.nodeid] = getattr(module, "AREA", item.nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        area = self.areas[self.area_of.get(report.nodeid, "Other")]
        if report.failed:
            # A test that passed and could not be cleaned up counts as passed and as failed.
            area.failed.append(sentence(report))
        elif report.skipped:
            area.skipped[skip_reason(report)] += 1
        elif report.when == "call":
            area.passed += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("verdict")
        for line in lines(self.areas):
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Verdict(), "conformance-verdict")


def sentence(report: pytest.TestReport) -> str:
    """`test_x.py::test_a_nack[tx]` reads `a nack (tx)`; failing setups say so."""
    path, bracket, parameter = report.nodeid.partition("[")
    words = path.rpartition("::")[2].removeprefix("test_")
    text = words.replace("_", " ") + (f" ({parameter[:-1]})" if bracket else "")
    return text if report.when == "call" else f"{text} [during {report.when}]"


def skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return "expected to fail" if hasattr(report, "wasxfail") else "no reason given"


def lines(areas: dict[str, Area]) -> Iterable[str]:
    """The verdict as text: a line per area, below it what failed and why something was skipped."""
    width = max((len(name) for name in areas), default=0)
    for name, area in sorted(areas.items()):
        skipped = sum(area.skipped.values())
        word = "FAILED" if area.failed else "ok" if area.passed else "skipped"
        yield (
            f"{name:<{width}}  {word:<7}  {area.passed:>3} passed"
            f"  {len(area.failed):>3} failed  {skipped:>3} skipped"
        )
        yield from (f"    fails: {text}" for text in area.failed[:SENTENCES_MAX])
        if len(area.failed) > SENTENCES_MAX:
            yield f"    fails: and {len(area.failed) - SENTENCES_MAX} more"
        for reason, count in area.skipped.most_common(SENTENCES_MAX):
            yield f"    skipped {count}: {reason}"
    passed = sum(area.passed for area in areas.values())
    failed = sum(len(area.failed) for area in areas.values())
    skipped = sum(sum(area.skipped.values()) for area in areas.values())
    good = "conforms" if passed and not failed else "does not conform"
    yield f"The broker {good}: {passed} passed, {failed} failed, {skipped} skipped."
