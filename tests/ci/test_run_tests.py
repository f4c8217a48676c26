"""The gate runs what failed once more: only what fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_TESTS = Path(__file__).parents[2] / ".ci" / "run_tests.py"

TESTS = """
import os
from pathlib import Path

import pytest


def seen(name):
    "Whether a test was run before."
    mark = Path(__file__).parent / f"{name}.seen"
    found = mark.exists()
    mark.touch()
    return found


def test_passing():
    pass


def test_workers_are_used():
    assert "PYTEST_XDIST_WORKER" in os.environ
"""
FLAKY = """

@pytest.mark.parametrize("word", ["a b"])
def test_flaky(word):
    assert seen("flaky")
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""
FLAKY_TEARDOWN = """

@pytest.fixture
def untidy():
    yield
    assert seen("untidy")


def test_untidy(untidy):
    pass
"""
SKIPPED_AGAIN = """

def test_skipped_again():
    if seen("skipped"):
        pytest.skip("not twice")
    assert False
"""
FAILING = """

def test_failing():
    assert not "always"
"""
CRASHING = """

def test_crashing():
    if not seen("crash"):
        os._exit(3)
"""
SLOW = """

def test_slow():
    import time
    time.sleep(0.01)
"""
NESTED = """

def test_nested(tmp_path):
    import subprocess, sys
    inner = tmp_path / "test_inner.py"
    inner.write_text("def test_inner(): assert False")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n0", "--rootdir", str(tmp_path)]
    command.append(str(inner))
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 1
"""


class Project:
    """A tiny project with tests of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        (path / "pytest.ini").write_text("[pytest]\naddopts = --numprocesses=1\n")

    def run(self, *tests: str) -> tuple[int, str]:
        (self._path / "test_it.py").write_text(TESTS + "".join(tests))
        (self._path / "prepared").unlink(missing_ok=True)
        # A second preparation would fail.
        command = f"mkdir prepared && {sys.executable} -m pytest -p no:cacheprovider -p xdist"
        done = subprocess.run(
            [sys.executable, str(RUN_TESTS), command],
            cwd=self._path,
            env={
                # What the run that this test is part of says to its own processes.
                **{name: value for name, value in os.environ.items() if "PYTEST" not in name},
                # To load all plugins there are is half of what such a run takes.
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def closing_lines(output: str) -> list[str]:
    """pytest's own last lines, as somebody finds them who reads the output of the gate."""
    return [line for line in output.splitlines() if line.startswith("=") and " passed" in line]


def test_a_run_in_which_all_tests_pass_is_left_as_it_is(project: Project) -> None:
    code, output = project.run(NESTED)
    assert code == 0
    assert "flaky" not in output
    assert " 3 passed in" in output.splitlines()[-1]


def test_a_run_ends_with_its_slowest_tests(project: Project) -> None:
    code, output = project.run(SLOW)
    assert code == 0, output
    (table,) = output.split(" slowest 25 durations ")[1:]
    assert "s call     test_it.py::test_slow" in table


def test_a_test_that_passes_when_run_again_by_itself_is_named_and_does_not_fail_the_run(
    project: Project,
) -> None:
    code, output = project.run(FLAKY, FLAKY_TEARDOWN)
    assert code == 0, output
    heading, *named = output.splitlines()[-3:]
    assert heading == "flaky:"
    assert sorted(named) == ["  test_it.py::test_flaky[a b]", "  test_it.py::test_untidy"]
    (line,) = closing_lines(output)
    assert "1 failed, 3 passed, 1 error in" in line


def test_a_test_that_fails_twice_fails_the_run(project: Project) -> None:
    code, output = project.run(FLAKY, FAILING, SKIPPED_AGAIN)
    assert code == 1, output
    flaky, failed = output.split("\nflaky:\n")[1].split("\n\nfailed twice:\n")
    assert flaky == "  test_it.py::test_flaky[a b]"
    assert sorted(failed.splitlines()) == [
        "  test_it.py::test_failing",
        "  test_it.py::test_skipped_again",
    ]
    (line,) = closing_lines(output)
    assert "3 failed, 2 passed" in line
    assert "    E       AssertionError: assert not 'always'" in output


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("import nothing_of_this_name\n", "test_it.py cannot be collected"),
        (CRASHING, "a worker crashed in test_it.py::test_crashing"),
        ("".join(f"\n\ndef test_{n}(): assert False\n" for n in range(25)), "26 tests failed"),
    ],
    ids=["collection", "crash", "many"],
)
def test_what_is_no_flaky_test_fails_the_run(project: Project, tests: str, reason: str) -> None:
    code, output = project.run(FLAKY, tests)
    assert code != 0, output
    assert f"Nothing is run again: {reason}" in output
    assert "flaky:" not in output


def test_a_run_without_a_result_fails(project: Project, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import os\n\ndef pytest_sessionstart(): os._exit(0)\n")
    code, _ = project.run()
    assert code != 0


def test_a_run_without_tests_fails(project: Project, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -n2 --ignore=test_it.py\n")
    code, output = project.run(FLAKY)
    assert code == 5, output
