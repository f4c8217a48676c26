"""Parts of Spark that run as if each were on a machine of its own, which lacks the broker's files.

A machine is a process with its own processes and mounts (`unshare`), for which the hidden directory
is an empty one. It ends with everything in it, when it is killed or when the tests end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from quick_spark import JAVA_OPTIONS

PATIENCE_S = 120.0
"""How long a test waits for a part of Spark to start; the computer may be busy."""

APPLICATION_S = 300.0
"""How long it waits for the end of an application."""

CLUSTER_DRIVER = Path(__file__).with_name("cluster_driver.py")

EXECUTOR_MIB = 1024
"""The memory of an executor, which `cluster_driver.py` asks for."""

GO = "go"
"""The file among the marks that lets the tasks of `cluster_driver.py` go on."""

ENDED = "the command has ended with"
"""What a machine says when its command has ended, and the exit code."""

ENDED_WELL = re.compile(f"{ENDED} 0$", re.MULTILINE)

FOUND = re.compile(r"^\{.*\}$", re.MULTILINE)
"""What `cluster_driver.py` has found."""

DAEMONS = "org.apache.spark.deploy"

MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")


def what_is_missing() -> str | None:
    """Why there can be no such machines here; None if there can."""
    if shutil.which("java") is None:
        return "there is no Java (Debian: apt-get install openjdk-17-jre-headless)"
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "`unshare` or `setpriv` is not installed (Debian: apt-get install util-linux)"
    if os.geteuid():
        return "file systems of one's own need root"
    return None


class SparkMachine:
    """A machine on which a command runs; it is there until it is killed, as machines are."""

    def __init__(
        self, command: list[str], hidden: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        """`log` is the file for what the command prints."""
        # The kernel ends `unshare` with the tests, and all processes inside with `unshare`.
        with_the_tests = ("setpriv", "--pdeathsig", "KILL")
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        script = f'mount -t tmpfs none "$0" && "$@"; printf "\\n{ENDED} $?\\n"; exec sleep infinity'
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*with_the_tests, *apart, "sh", "-c", script, str(hidden), *command],
                env={**os.environ, "TMPDIR": str(log.parent), **environment},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def check(self) -> None:
        """Fail if the command has ended."""
        assert self._process.poll() is None and ENDED not in self.log, self.log

    def until_it_says(
        self, wanted: re.Pattern[str], patience_s: float = PATIENCE_S
    ) -> re.Match[str]:
        """Wait for a text in what the command prints."""
        deadline = time.monotonic() + patience_s
        while True:
            found = wanted.search(self.log)
            if found is not None:
                return found
            self.check()
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def kill(self) -> None:
        """End all that runs on it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def settings(worker_python: str, home: Path) -> dict[str, str]:
    """The environment of a part of Spark; `home` is where Spark is."""
    return {
        "PYSPARK_PYTHON": worker_python,
        "PYTHONSAFEPATH": "1",
        "SPARK_HOME": str(home),
        # Workers need it to start executors.
        "SPARK_SCALA_VERSION": _scala_version(home),
        # Nothing listens elsewhere.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _scala_version(home: Path) -> str:
    (core,) = home.glob("jars/spark-core_*.jar")
    return core.name.split("_")[1].split("-")[0]


class StandaloneSpark:
    """A standalone master, which is ready when this is constructed, and two workers that start."""

    def __init__(self, directory: Path, hidden: Path, worker_python: str) -> None:
        import pyspark

        self._directory = directory
        self._hidden = hidden
        self._home = Path(pyspark.__file__).parent
        self.environment = settings(worker_python, self._home)
        self._machines: list[SparkMachine] = []
        try:
            master = self._launch("master.Master", "master")
            self.url = master.until_it_says(MASTER_URL)[1]
            self.workers = [self._launch_worker(f"worker-{number}") for number in range(2)]
        except BaseException:
            self.kill()
            raise

    def check(self) -> None:
        """Fail if a part of it has ended."""
        for one in self._machines:
            one.check()

    def kill(self) -> None:
        for one in self._machines:
            one.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _launch_worker(self, name: str) -> SparkMachine:
        room = ("--cores", "1", "--memory", f"{EXECUTOR_MIB}m", "--work-dir", f"{name}-files")
        return self._launch("worker.Worker", name, *room, self.url)

    def _launch(self, daemon: str, name: str, *arguments: str) -> SparkMachine:
        # Another server of the master, for applications that are sent over HTTP, has a fixed port.
        java = ["java", *JAVA_OPTIONS.split(), "-Xmx256m", "-Dspark.master.rest.enabled=false"]
        java += ["-cp", f"{self._home}/jars/*", f"{DAEMONS}.{daemon}"]
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = self._directory / f"{name}.log"
        one = SparkMachine([*java, *ports, *arguments], self._hidden, self.environment, log)
        self._machines.append(one)
        return one


class ClusterDriver(SparkMachine):
    """`cluster_driver.py` on a machine of its own."""

    def __init__(
        self,
        directory: Path,
        hidden: Path,
        environment: Mapping[str, str],
        *,
        master: str,
        url: str,
        marks: Path | None = None,
    ) -> None:
        """It reads from `url`, and writes to `directory`. `marks`: see there."""
        paths = [directory, hidden, *([] if marks is None else [marks])]
        command = [sys.executable, "-P", str(CLUSTER_DRIVER), url, *map(str, paths)]
        of_driver = {
            "JAVA_OPTIONS": JAVA_OPTIONS,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_MASTER": master,
        }
        super().__init__(command, hidden, {**environment, **of_driver}, directory / "driver.log")

    def found(self) -> Any:
        """Wait for its end; returns what it found."""
        self.until_it_says(ENDED_WELL, APPLICATION_S)
        return json.loads(self.until_it_says(FOUND)[0])
