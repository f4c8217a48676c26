"""Runs a test command, then each test that failed once more by itself.

    python3 run_tests.py COMMAND

COMMAND is a line of shell that ends in a call of pytest. A test that fails and passes when it is
run again is named under the heading "flaky" and does not fail the run. A test that fails twice
fails the run, and so does everything else that goes wrong: an error of collection, a worker that
crashed, no tests at all. The slowest tests are listed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TESTS_FAILED = 1
"""pytest's exit code when all tests were run and some of them failed."""
AGAIN_MAX = 25
"""When more tests fail it is not by chance, and to run each by itself would take hours."""
SHOWN_MAX = 25
"""So many of the slowest tests are listed: a run that grows should show where."""


class Outcomes(NamedTuple):
    passed: list[str]
    failed: list[str]
    broken: list[str]


class Run(NamedTuple):
    code: int
    output: str
    outcomes: Outcomes


def main(command: str) -> int:
    first = run(command, f"--durations={SHOWN_MAX}")
    if first.code == 0 and not first.outcomes.broken:
        return 0
    if (reason := not_by_chance(first)) is not None:
        print(f"Nothing is run again: {reason}.", flush=True)
        return first.code or TESTS_FAILED
    flaky: list[str] = []
    failed: list[str] = []
    # The command may prepare something first (`a && b && pytest`), which need not be done again.
    pytest_command = command.rpartition("&&")[2].strip()
    for test in first.outcomes.failed:
        print(f"Once more, by itself: {test}", flush=True)
        again = run(pytest_command, "-n0", test, show=False)
        if again.code == 0 and test in again.outcomes.passed:
            flaky.append(test)
        else:
            failed.append(test)
            # Indented, so that the closing line of the first run remains the only one.
            print("".join(f"    {line}\n" for line in again.output.splitlines()), flush=True)
    show("flaky", flaky)
    show("failed twice", failed)
    return TESTS_FAILED if failed else 0


def not_by_chance(first: Run) -> str | None:
    """Why it makes no sense to run what failed once more."""
    if first.outcomes.broken:
        return "; ".join(first.outcomes.broken)
    if first.code != TESTS_FAILED or not first.outcomes.failed:
        return f"pytest ended with {first.code}, and not because tests failed"
    if len(first.outcomes.failed) > AGAIN_MAX:
        return f"{len(first.outcomes.failed)} tests failed, more than {AGAIN_MAX}"
    return None


def run(command: str, *arguments: str, show: bool = True) -> Run:
    """Run a command that ends in a call of pytest, with more arguments for pytest."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "outcomes.json")
        path = [str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", "")]
        arguments = ("-p", "outcomes", f"--outcomes={file}", *arguments)
        done = subprocess.run(
            ["bash", "-c", f'{command} "$@"', "bash", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=None if show else subprocess.PIPE,
            stderr=None if show else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return Run(done.returncode, done.stdout or "", outcomes_in(file))


def outcomes_in(file: Path) -> Outcomes:
    if not file.exists():
        return Outcomes([], [], ["pytest did not end by itself"])
    return Outcomes(**json.loads(file.read_text(encoding="utf-8")))


def show(heading: str, tests: list[str]) -> None:
    if tests:
        print(f"\n{heading}:", *(f"  {test}" for test in tests), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
