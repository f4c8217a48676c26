"""Brokers that are forked off a process that has imported everything they need.

To start Python and to import the broker takes four tenths of a second of a core, and a run of all
tests starts some seven hundred brokers. So each process of tests has one *fork server*, started
when it is first needed. For each broker the fork server forks a *keeper*. The keeper forks the
broker, and reports the broker's process id and how it ended. The broker runs `warren`'s own main
function, in a directory, with an environment and with files of its own, as if Python had been
started for it; a broker of several processes forks these, too. Python is really started where a
test is about the start itself (`tests/warren/test_service_manager.py`, `start_python` of
`tests/system/test_server_process.py`, `START_PYTHON`), and for brokers in networks of their own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from typing import IO, Any

REPORT = struct.Struct("q")
"""One number. A keeper sends two: the broker's process id, and when it has ended its exit code,
which is negative if a signal ended it, as in `subprocess`."""

REQUEST_BYTES_MAX = 1 << 20
"""Arguments and environment of one broker are less than this."""

START_PYTHON = "TESTS_START_PYTHON"
"""A variable by which a broker of several processes starts Python for each, as it does for users;
otherwise it forks them (`forked_children`)."""

IMPORTED = (
    "warren.mgmt.command_line",
    "warren.mgmt.server_command",
    "warren.mgmt.processes.child_command",
    "warren.node",
    "warren.management",
    "warren.mgmt.http.server",
    "warren.http_server",
    "warren.cluster",
)


class ForkedProcess:
    """What tests use of a `subprocess.Popen`. `stdout` is not buffered."""

    def __init__(
        self,
        arguments: list[str],
        directory: os.PathLike[str],
        log: IO[bytes],
        descriptors: int | None = None,
    ) -> None:
        """Run `warren` with these arguments; `descriptors` is a limit of open files."""
        ours, theirs = socket.socketpair()
        output, end_of_output = os.pipe()
        what = {
            "arguments": arguments,
            "directory": os.fspath(directory),
            "environment": dict(os.environ),
            "descriptors": descriptors,
        }
        files = [end_of_output, log.fileno(), theirs.fileno()]
        socket.send_fds(_fork_server().socket, [json.dumps(what).encode()], files)
        os.close(end_of_output)
        theirs.close()
        self._reports = ours
        self._looking = threading.Lock()
        self.args = ["warren", *arguments]
        self.stdout: IO[bytes] = open(output, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = self._report()

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        # A broker that has ended may be gone a moment before its report is here: wait for that.
        self._look(0.0 if self._runs else None)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired` when it still runs after so many seconds."""
        end = inf if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = end - time.monotonic()
            if left <= 0.0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._look(min(left, 0.1))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The keeper keeps the process id from being used again until the exit code is read, which
        # needs the lock; so no other process is signalled.
        with self._looking:
            if self.returncode is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _report(self) -> int:
        number: int
        (number,) = REPORT.unpack(self._reports.recv(REPORT.size, socket.MSG_WAITALL))
        return number

    @property
    def _runs(self) -> bool:
        """Whether the system still runs it, reported or not."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return not status.rpartition(")")[2].startswith(" Z")

    def _look(self, seconds: float | None) -> None:
        """See whether it ends in that time; the lock is for tests that wait in several threads."""
        with self._looking:
            if self.returncode is None and select.select([self._reports], [], [], seconds)[0]:
                self.returncode = self._report()
                self._reports.close()


class _ForkServer:
    """The process that forks brokers. It ends when its socket is closed, as with this process."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self.socket.close()
        self._process.wait()


_fork_server = cache(_ForkServer)


def ready() -> None:
    """Start the fork server of this process, if there is none."""
    _fork_server()


# In the fork server


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in the broker, with what was asked for, and in this process,
    with None, when the tests are over."""
    while True:
        asked, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not asked:
            return None
        if os.fork() == 0:
            requests.close()
            return _keep(json.loads(asked), files)
        for file in files:
            os.close(file)


def _keep(what: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """Fork the broker and report on it; returns in the broker."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output, log, report = files
    broker = os.fork()
    if broker == 0:
        os.dup2(output, 1)
        os.dup2(log, 2)
        os.closerange(3, max(files) + 1)
        return what
    os.close(output)
    os.close(log)
    os.write(report, REPORT.pack(broker))
    ended = os.waitid(os.P_PID, broker, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    os.write(report, REPORT.pack(code))
    # The test closes its end when it has read that: only then may the process id be used again.
    os.read(report, 1)
    os.waitpid(broker, 0)
    os._exit(0)


def _become(what: dict[str, Any]) -> None:
    """Be the process that was asked for, up to its main function."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(what["directory"])
    os.environ.clear()
    os.environ.update(what["environment"])
    if what["descriptors"] is not None:
        limits = (what["descriptors"], what["descriptors"])
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    _be_called_with(what["arguments"])


def _be_called_with(arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-P", "-m", "warren", *arguments]


def _end_at_once(ending: SystemExit) -> None:
    """End as Python does, but leave what is in memory to the system.

    To take all modules apart, copying their pages, would be two thirds of what a broker costs.
    """
    assert ending.code is None or isinstance(ending.code, int), ending.code
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ending.code or 0)


if __name__ == "__main__":
    # Nobody waits for keepers. An interrupt (Ctrl-C) reaches the fork server and keepers too: they
    # ignore it, since keepers still have to report how their brokers end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        import_module(name)
    # Python is started with -P, so that brokers do not find the modules of tests.
    sys.path.append(str(Path(__file__).parent))
    children = import_module("forked_children")
    sys.path.pop()
    # No broker needs to look at what is there now, and to copy its pages by that.
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        _become(request)
        if "--processes" in request["arguments"] and START_PYTHON not in request["environment"]:
            forked = children.prepare()
            if forked is not None:
                _be_called_with(forked)
        from warren.mgmt.command_line import warren

        try:
            warren(prog_name="warren")
        except SystemExit as ending:
            _end_at_once(ending)
