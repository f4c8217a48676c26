"""Runs the whole suite against one broker, for callers that are not pytest."""

import os
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent


def run(url: str, management: str | None, pytest_args: list[str]) -> int:
    """Runs every test against the broker at `url`, prints the verdict, returns the exit code.

    Without `management` the tests that need an administrator are skipped. Configuration files in
    the working directory are not read, so the suite behaves the same everywhere.
    """
    arguments = [
        str(DIRECTORY),
        "-c",
        os.devnull,
        f"--rootdir={DIRECTORY}",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-p",
        "warren.compat_tests.verdict",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-q",
        f"--broker={url}",
    ]
    if management is not None:
        arguments.append(f"--management={management}")
    return int(pytest.main([*arguments, *pytest_args]))
