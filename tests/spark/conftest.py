"""One Spark for all tests that need one; they are skipped where there is no Java."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What Spark's workers are started with: the Python of the tests, with pyspark as installed.

    Spark puts an archive before it in which modules are not compiled; each worker takes a second to
    import from that.
    """
    script = tmp_path_factory.mktemp("python") / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH= exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="session")
def any_spark(
    tmp_path_factory: pytest.TempPathFactory, worker_python: str
) -> Iterator[Callable[[], SparkSession]]:
    """Gives the Spark that runs, and starts another one when its Java has ended."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java (Debian: apt-get install openjdk-17-jre-headless)")
    from quick_spark import is_alive, let_go, new_spark

    session: SparkSession | None = None

    def running() -> SparkSession:
        nonlocal session
        if session is not None and not is_alive(session):
            let_go()
            session = None
        if session is None:
            with warnings.catch_warnings():
                # What Spark and its libraries warn of is theirs.
                warnings.simplefilter("ignore")
                session = new_spark(tmp_path_factory.mktemp("spark"), worker_python, "1g")
        return session

    yield running
    if session is not None and is_alive(session):
        for query in session.streams.active:
            query.stop()
        session.stop()


@pytest.fixture(scope="module")
def spark(any_spark: Callable[[], SparkSession]) -> SparkSession:
    """One Spark for all modules, as long as it lives."""
    return any_spark()
