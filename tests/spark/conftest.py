"""One Spark for all tests that need one; they are skipped where there is no Java."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
for folder in (HERE, *(HERE.parent / name for name in ("persist", "simulation", "system"))):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Of Spark's classes, which have been verified often enough.
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""What makes a JVM that lives for a minute start sooner."""


@pytest.fixture(scope="session")
def java_options() -> str:
    return JAVA_OPTIONS


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
def spark(tmp_path_factory: pytest.TempPathFactory, worker_python: str) -> Iterator[SparkSession]:
    """Two cores of this machine; nothing of it listens elsewhere."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java (Debian: apt-get install openjdk-17-jre-headless)")
    with warnings.catch_warnings():
        # What Spark and its libraries warn of is theirs.
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = worker_python
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        directory = tmp_path_factory.mktemp("spark")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("warren tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            # To compile a query takes longer than to go through some hundred rows without.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()
