"""`warren server` as a process of its own."""

from __future__ import annotations

import re
import select
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from fork_server import ForkedProcess

PATIENCE_S = 30.0
"""How long a test waits for something that must come; the machine may be busy."""


def launch(
    arguments: list[str], directory: Path, log: IO[bytes], descriptors: int | None = None
) -> ForkedProcess:
    """Start a server, with a limit of open files if one is given; returns at once."""
    return ForkedProcess(["server", "--http", "none", *arguments], directory, log, descriptors)


class ServerProcess:
    """A server that is ready when constructed."""

    def __init__(
        self,
        arguments: list[str],
        directory: Path,
        *,
        patience_s: float = PATIENCE_S,
        descriptors: int | None = None,
    ) -> None:
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = launch(arguments, directory, log, descriptors)
        with ExitStack() as unless_ready:
            # A timeout of the test may end the wait, too.
            unless_ready.callback(self.kill)
            self.ready_line = self._first_line(patience_s)
            ports = re.search(r"ready: amqp (\d+)(?:, amqps (\d+))?", self.ready_line)
            if ports is None:
                raise AssertionError(f"no ready line but {self.ready_line!r}: {self.log}")
            unless_ready.pop_all()
        self.port = int(ports[1])
        self.tls_port = int(ports[2]) if ports[2] else 0

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def rss_bytes(self) -> int:
        """The resident set of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def sockets(self) -> set[str]:
        """The sockets the process has open."""
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return {name for link in links if (name := _target(link)).startswith("socket:")}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        """Stop in order; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it as a power cut would, as far as the process goes."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def rest_of_output(self) -> str:
        """What it printed after the ready line; it must have ended."""
        return self.process.stdout.read().decode()

    def _first_line(self, patience_s: float) -> str:
        output = self.process.stdout
        readable, _, _ = select.select([output], [], [], patience_s)
        return output.readline().decode() if readable else ""


def _target(link: Path) -> str:
    """Where a link leads; nowhere when it is gone by now."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""
