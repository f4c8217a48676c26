"""Starts Spark for `warren export`, or says in a line why it cannot be started."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from warren.spark_export.errors import SparkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = re.compile(r"local(-cluster)?(\[.+\])?|yarn|[a-z0-9]+://.+")
"""A URL that Spark may know; Spark would need seconds to refuse another one."""


class Master(click.ParamType[str]):
    """A master of Spark's such as local[4] or spark://host:7077."""

    name = "master"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not MASTER.fullmatch(text):
            known = "there are local[*], local[4], spark://host:7077, yarn and k8s://host:443"
            self.fail(f"{text!r} is no master: {known}", param, ctx)
        return text


def check_java() -> None:
    """Raise `SparkRefused` if Spark could not be started."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which("java", path=f"{home}/bin")
    if java is None:
        where = "on the path" if home is None else f"in JAVA_HOME={home}"
        raise SparkRefused(
            f"there is no Java {where}, which Spark needs, from 17 on (Debian: apt-get install"
            " openjdk-17-jre-headless)"
        )


@contextmanager
def started_spark(master: str) -> Iterator[SparkSession]:
    """Spark for one export; its workers use this Python. An existing session is used, and not
    stopped. Raises `SparkRefused`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("warren export").master(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    try:
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkRefused(
            f"Spark, which needs Java 17 or later, could not be started: {_first_reason(error)}"
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _first_reason(error: Exception) -> str:
    """The first line of an error of Spark's that gives a reason."""
    lines = (line.removeprefix(": ") for line in str(error).splitlines())
    return next((line for line in lines if not line.startswith("An error occurred")), repr(error))
