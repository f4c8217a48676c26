"""One process of a broker, as its supervisor sees it: started, ready, ended.

The supervisor writes the configuration to the process's standard input, pickled, because both run
the same code. The process prints a line on its standard output when it is ready; its other output
is passed on.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import sys
from collections.abc import Callable, Mapping

from warren.config import Config

READY = re.compile(rb"warren \S+ ready: ")
OUTPUT_S = 0.1
"""Time for the last output of a process to arrive after its end."""
READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 20
"""Octets of a line that are held until its end has come; more are passed on without it."""
SERVICE_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of the service manager, which are for the supervisor alone."""


class Child:
    """A process; `ready_line` is the line it printed when it was ready, None before. Its other
    lines go to `pass_on`, which does not wait."""

    def __init__(
        self, process: asyncio.subprocess.Process, pass_on: Callable[[bytes], None]
    ) -> None:
        self.ready_line: str | None = None
        self._process = process
        self._pass_on = pass_on
        self._is_ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, config: Config, variables: Mapping[str, str], pass_on: Callable[[bytes], None]
    ) -> Child:
        """Start a process. Raises OSError."""
        assert config.node_name is not None
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "warren", "process", str(os.getpid()), config.node_name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in variables.items() if name not in SERVICE_MANAGER},
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()
        return cls(process, pass_on)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> bool:
        """Return when the process is ready; False when it has ended instead."""
        waits = (asyncio.create_task(self._is_ready.wait()), self._reading)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[0].cancel()
        return self._is_ready.is_set()

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, which is negative for a signal."""
        code = await self._process.wait()
        # A program that it has started may live longer and keep its standard output open.
        await asyncio.wait((self._reading,), timeout=OUTPUT_S)
        return code

    def signal(self, *numbers: signal.Signals) -> None:
        if self._process.returncode is None:
            for number in numbers:
                self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        unended = b""
        while octets := await self._process.stdout.read(READ_BYTES):
            *lines, unended = (unended + octets).split(b"\n")
            for line in lines:
                self._take(line + b"\n")
            if len(unended) > LINE_BYTES_MAX:
                self._take(unended)
                unended = b""
        if unended:
            self._take(unended)

    def _take(self, line: bytes) -> None:
        if self.ready_line is None and READY.match(line):
            self.ready_line = line.decode("utf-8", "replace").rstrip("\n")
            self._is_ready.set()
        else:
            self._pass_on(line)


def ending(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
