"""The processes of a broker of several, forked instead of started, for brokers of `fork_server`.

Before a broker runs, it forks a *nursery*, which knows of nothing the broker does later: threads,
sockets, locks. When the broker wants to start a process, the nursery forks a process that forks the
new one and ends, which makes it a child of the broker, as if the broker had started Python for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
"""The option of prctl(2) by which a process becomes the parent of orphans among its offspring."""

PYTHON = [sys.executable, "-P", "-m", "warren"]
REQUEST_BYTES_MAX = 1 << 20
PID = struct.Struct("q")


def prepare() -> list[str] | None:
    """Fork the nursery of this process, and have asyncio start processes by it.

    Returns None in this process, and in each that the nursery forks the arguments it is to run
    `warren` with; its standard streams and its environment are then as they are to be.
    """
    broker = os.getpid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        return _nurse(theirs, broker)
    theirs.close()
    asyncio.create_subprocess_exec = _Starts(ours).start  # type: ignore[assignment]
    return None


class ForkedChild:
    """What a broker uses of an `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, stdin: asyncio.WriteTransport, stdout: asyncio.StreamReader):
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop.add_reader(self._descriptor, self._end)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()


class _Starts:
    def __init__(self, nursery: socket.socket) -> None:
        self._nursery = nursery

    async def start(
        self, *command: str, stdin: int, stdout: int, env: Mapping[str, str]
    ) -> ForkedChild:
        assert [*command[: len(PYTHON)]] == PYTHON, command
        assert stdin == stdout == asyncio.subprocess.PIPE
        loop = asyncio.get_running_loop()
        given, to_child = os.pipe()
        from_child, output = os.pipe()
        what = {"arguments": command[len(PYTHON) :], "environment": dict(env)}
        socket.send_fds(self._nursery, [json.dumps(what).encode()], [given, output])
        os.close(given)
        os.close(output)
        (pid,) = PID.unpack(await loop.run_in_executor(None, self._nursery.recv, PID.size))
        to_child_file = os.fdopen(to_child, "wb", buffering=0)
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, to_child_file)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(from_child, "rb", buffering=0))
        return ForkedChild(pid, writing, reader)


# In the nursery


def _nurse(requests: socket.socket, broker: int) -> list[str]:
    """Fork for each request until the broker has ended. Returns in the new processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        asked, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 2)
        if not asked:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                return _be_born(json.loads(asked), files, requests, broker)
            os._exit(0)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _be_born(
    what: dict[str, Any], files: list[int], requests: socket.socket, broker: int
) -> list[str]:
    while os.getppid() != broker:
        time.sleep(0.001)
    requests.send(PID.pack(os.getpid()))
    requests.close()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(what["environment"])
    arguments: list[str] = what["arguments"]
    return arguments
