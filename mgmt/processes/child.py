"""One process of a broker, as its supervisor has it: started, ready, ended.

A process is told its configuration through its standard input, in Python's own form, because it
runs the same code. It says that it is ready in a line on its standard output; whatever else it
prints is passed on.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import sys
from collections.abc import Mapping

from warren.config import Config

READY = re.compile(r"warren \S+ ready: ")
OUTPUT_S = 0.1
"""How long the last that a process has printed may be on its way after its end."""
SERVICE_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What the service manager has for the supervisor alone."""


class Child:
    """`ready_line` is what it said when it was ready, None before."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.ready_line: str | None = None
        self._process = process
        self._is_ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, config: Config, variables: Mapping[str, str]) -> Child:
        """Raises OSError."""
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
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> bool:
        """Return when it is ready; False when it has ended instead."""
        waits = (asyncio.create_task(self._is_ready.wait()), self._reading)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[0].cancel()
        return self._is_ready.is_set()

    async def ended(self) -> int:
        """Its exit code when it has ended, negative for a signal."""
        code = await self._process.wait()
        # What it has started may live longer, and hold its output open.
        await asyncio.wait((self._reading,), timeout=OUTPUT_S)
        return code

    def signal(self, *numbers: signal.Signals) -> None:
        if self._process.returncode is None:
            for number in numbers:
                self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for octets in self._process.stdout:
            line = octets.decode("utf-8", "replace")
            if self.ready_line is None and READY.match(line):
                self.ready_line = line.rstrip("\n")
                self._is_ready.set()
            else:
                sys.stdout.write(line)
                sys.stdout.flush()


def ending(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
