"""The log on the console. A reader that has stopped reading does not stop the node.

A pipe, socket or terminal says whether it takes something at once. As long as it does, each line is
written when it is logged. Otherwise a thread writes, and waits for the reader; lines that are
logged meanwhile wait for the thread. When too many wait, further lines are lost, and a line of
their own tells how many.

A terminal that takes something may take less than a line, and another process may fill a pipe
after it was asked. So both are opened once more, for writes that never wait.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TextIO

from warren.core.log_line import event_line

WAITING_BYTES_MAX = 1 << 20
"""Octets of lines that wait for the reader; more than ten thousand lines as they mostly are."""

ENDING_S = 1.0
"""How long the end of the process waits for the reader."""

FULL_S = 0.01
"""The pause before the next try, if a write takes nothing though the console seems ready."""


def print_error(text: str) -> None:
    """`print_line` to the standard error output."""
    print_line(text, sys.stderr)


def print_line(text: str, stream: TextIO) -> None:
    """Print a line to a standard stream; if it has no reader, wait `ENDING_S` at most."""
    console = console_of(stream)
    if console is None:
        print(text, file=stream, flush=True)
        return
    console.handle(logging.LogRecord("warren", logging.ERROR, "", 0, text, None, None))
    console.flush()
    console.close()


def console_of(stream: TextIO) -> Console | None:
    """The console of a standard stream; None if it is closed, or a test has put something else in
    its place."""
    try:
        return Console(stream)
    except (AttributeError, OSError):
        return None


class Console(logging.Handler):
    """Writes to the file of a stream. Raises OSError if the stream has none."""

    def __init__(self, stream: TextIO) -> None:
        self._given_fd = stream.fileno()
        super().__init__()
        own_fd = _opened_again(self._given_fd)
        self._use(self._given_fd if own_fd is None else own_fd)
        self._encoding = stream.encoding
        # Guards the fields below, and is notified when the thread ends.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._octets(record)
        except Exception:
            self.handleError(record)
        else:
            self.write(line)

    def write(self, line: bytes) -> None:
        """Write a line that is encoded already, with its end."""
        with self._changed:
            if self._thread is None and not self._waiting:
                line = self._write_at_once(line)
            if line:
                self._wait(line)

    def flush(self) -> None:
        """Wait for the lines that wait, but not for long: the reader may never read again."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, ENDING_S)

    def close(self) -> None:
        super().close()
        with self._changed:
            # The thread, if there is one, waits for the descriptor.
            if self._fd != self._given_fd and self._thread is None:
                os.close(self._fd)
                self._use(self._given_fd)

    def _use(self, fd: int) -> None:
        self._fd = fd
        self._readiness = select.poll()
        self._readiness.register(fd, select.POLLOUT)

    def _octets(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _write_at_once(self, line: bytes) -> bytes:
        """Write as much as the console takes without a wait; returns the rest."""
        while line and self._readiness.poll(0):
            # A pipe that is ready has room for so much.
            count = self._write(line[: select.PIPE_BUF])
            if not count:
                break
            line = line[count:]
        return line

    def _write(self, data: bytes) -> int:
        """Write some of these octets; returns how many. What nothing reads any more is lost."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _wait(self, line: bytes) -> None:
        if self._waiting_bytes + len(line) > WAITING_BYTES_MAX:
            self._lost += 1
        else:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
        if self._thread is None:
            thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
            # There may be too many threads, or the process ends: then the line waits for the next.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _write_waiting(self) -> None:
        """Write the lines that wait; the work of the thread, which then ends."""
        while line := self._next():
            while line:
                self._readiness.poll()
                count = self._write(line)
                if not count:
                    time.sleep(FULL_S)
                line = line[count:]

    def _next(self) -> bytes:
        """The next line that waits; nothing if the thread is to end."""
        with self._changed:
            if self._waiting:
                line = self._waiting.popleft()
                self._waiting_bytes -= len(line)
                return line
            if self._lost:
                text = event_line("log_lines_lost", count=self._lost, reason="they were not read")
                self._lost = 0
                return self._octets(
                    logging.LogRecord("warren.node", logging.WARNING, "", 0, text, None, None)
                )
            self._thread = None
            self._changed.notify_all()
            return b""


def _opened_again(fd: int) -> int | None:
    """Open the pipe or terminal behind a descriptor once more, for writes that do not wait. None if
    it is neither, or cannot be opened. The given descriptor keeps its mode: other processes may
    share it."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return None
