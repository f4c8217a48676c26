"""An etcd process for tests: on free ports, with its own data, to be killed and stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest
from reserved_port import reserve_port

PATIENCE_S = 20.0

MEMORY = Path("/dev/shm")
"""No claim of these tests is about etcd's disk: a slow one shall not cost nodes their leases."""


def find_etcd() -> str:
    """The program; skips the test when there is none."""
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("etcd is not installed (Debian: apt-get install etcd-server)")
    return found


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Let the loop run until a condition holds; fails when it does not in a long while."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        await asyncio.sleep(0.002)


class EtcdServer:
    """`url` stays the same over restarts on the same data."""

    def __init__(
        self,
        directory: Path,
        tls: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        health_host: str = "127.0.0.1",
        command: Sequence[str] = (),
        heartbeat_ms: int = 20,
    ) -> None:
        """`tls` are options of etcd; files in them are in the directory.

        `command` starts it elsewhere: nodes find it at `host`, we at `health_host`. With rare
        heartbeats it takes a second to start, and a third of the processor time while it waits.
        """
        self.directory = directory
        self._tls = tls
        self._command = command
        self._heartbeat_ms = heartbeat_ms
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data = self.directory / "data"
        self._remove_scratch: Callable[[], object] = lambda: None
        if os.access(MEMORY, os.W_OK):
            scratch = tempfile.mkdtemp(prefix="warren-etcd-", dir=MEMORY)
            self.data = Path(scratch) / "data"
            # At the end of this process at the latest.
            remove = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self._remove_scratch = remove
        client_port, peer_port, health_port = (reserve_port(self) for _ in range(3))
        self.port = client_port
        self.url = f"{'https' if tls else 'http'}://{host}:{client_port}"
        self._peer_url = f"http://127.0.0.1:{peer_port}"
        self._health_url = f"http://{health_host}:{health_port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self) -> None:
        """Return when it answers."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start it without waiting."""
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command,
                    find_etcd(),
                    *("--data-dir", str(self.data)),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self._peer_url),
                    *("--initial-advertise-peer-urls", self._peer_url),
                    *("--initial-cluster", f"default={self._peer_url}"),
                    *("--listen-metrics-urls", self._health_url),
                    *("--heartbeat-interval", str(self._heartbeat_ms)),
                    *("--election-timeout", str(10 * self._heartbeat_ms)),
                    *self._tls,
                ],
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_healthy():
            assert time.monotonic() < deadline, (self.directory / "log").read_text()[-2000:]
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self.go_on()
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """For good: what it has in memory, more than 100 MB, is free at once."""
        self.kill()
        self._remove_scratch()

    def lose_data(self) -> None:
        """While it is down."""
        assert self._process is None
        shutil.rmtree(self.data)

    def stand_still(self) -> None:
        """Keeps its connections and says nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._health_url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False
