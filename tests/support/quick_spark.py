"""A Spark on two cores of this machine that lives for a minute, and is quick at starting."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Of Spark's classes, which have been verified often enough.
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    # Their classes alone fill the default several times, and each time all memory is collected.
    " -XX:MetaspaceSize=256m"
)


def new_spark(directory: Path, worker_python: str, memory: str) -> SparkSession:
    """Its workers are started with `worker_python`; what it writes by itself is in `directory`.

    Nothing of it listens elsewhere.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = worker_python
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("warren tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
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
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def is_alive(spark: SparkSession) -> bool:
    """Whether its Java answers, and has not stopped."""
    from py4j.protocol import Py4JError

    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):
        return False


def let_go() -> None:
    """Forget the Java that has ended, so that `new_spark` starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()
        with suppress(OSError):
            gateway.proc.stdin.close()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
