"""The log on the console: a reader that stops reading does not stop the node."""

from __future__ import annotations

import logging
import os
import pty
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from warren.log_console import WAITING_BYTES_MAX, Console, print_error

PATIENCE_S = 30.0


class Reader:
    """A pipe, and what its reader has read."""

    def __init__(self) -> None:
        self.read_end, write_end = os.pipe()
        self.stream: TextIO = open(write_end, "w", encoding="ascii")

    def fill(self) -> int:
        """Write until the pipe takes no more; returns how many octets it took."""
        descriptor = self.stream.fileno()
        os.set_blocking(descriptor, False)
        octets = 0
        with suppress(BlockingIOError):
            while True:
                octets += os.write(descriptor, b"." * 4096)
        os.set_blocking(descriptor, True)
        return octets

    def read(self, octets: int) -> bytes:
        data = b""
        while len(data) < octets:
            data += os.read(self.read_end, octets - len(data))
        return data

    def read_lines_until(self, last: str) -> list[str]:
        data = b""
        while not data.endswith(f"{last}\n".encode()):
            data += os.read(self.read_end, 1 << 16)
        return data.decode("ascii").splitlines()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    with suppress(OSError):
        os.close(reader.read_end)
    reader.stream.close()


@pytest.fixture
def console(reader: Reader) -> Console:
    console = Console(reader.stream)
    console.setFormatter(logging.Formatter("%(message)s"))
    return console


def say(console: Console, *texts: str) -> None:
    """Log these texts, in a thread: what hangs is to fail the test and not to hang it."""

    def log() -> None:
        for text in texts:
            record = logging.LogRecord("warren.node", logging.INFO, "", 0, text, None, None)
            console.handle(record)

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the line waits for the reader"


def test_a_line_that_the_reader_has_room_for_is_there_at_once(
    console: Console, reader: Reader
) -> None:
    say(console, "one \u2603")
    assert reader.read(11) == b"one \\u2603\n"


def test_a_reader_that_has_stopped_holds_up_nothing_and_gets_all_lines_later(
    console: Console, reader: Reader
) -> None:
    filled = reader.fill()
    texts = [f"{number} {'x' * 100}" for number in range(1000)]
    say(console, *texts)
    reader.read(filled)
    assert reader.read_lines_until(texts[-1]) == texts
    console.flush()
    say(console, "again")
    assert reader.read_lines_until("again") == ["again"]


def test_a_line_longer_than_the_room_there_is_comes_as_a_whole(
    console: Console, reader: Reader
) -> None:
    text = "y" * 300_000
    say(console, text, "after")
    assert reader.read_lines_until("after") == [text, "after"]


def test_lines_beyond_the_bound_are_lost_and_counted(console: Console, reader: Reader) -> None:
    filled = reader.fill()
    line = "z" * 999
    kept = WAITING_BYTES_MAX // 1000
    say(console, *[line] * (kept + 1), *[line] * 50)
    reader.read(filled)
    found = reader.read(1000 * kept).decode("ascii").splitlines()
    assert found == [line] * kept
    console.flush()
    say(console, "end")
    *rest, told, _ = reader.read_lines_until("end")
    # The thread has one line in hand, which no longer counts as waiting.
    lost = 51 - len(rest)
    assert lost in (50, 51)
    assert told == f'log_lines_lost count={lost} reason="they were not read"'


@pytest.mark.parametrize("size", [3, 150, 1000, 3000])
def test_a_terminal_that_is_not_read_holds_up_nothing(size: int) -> None:
    """It may have less room than a line needs."""
    read_end, write_end = pty.openpty()
    with (
        open(write_end, "w", encoding="ascii") as stream,
        open(read_end, "rb", buffering=0) as read,
    ):
        console = Console(stream)
        console.setFormatter(logging.Formatter("%(message)s"))
        texts = [f"{number} {'x' * size}" for number in range(200_000 // size)]
        say(console, *texts)
        data = b""
        while not data.endswith(f"{texts[-1]}\r\n".encode()):
            data += read.read(1 << 16)
        assert data.decode("ascii").splitlines() == texts
        console.flush()
        console.close()


def test_a_pipe_that_another_process_fills_at_this_moment_holds_up_nothing(
    console: Console, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []

    class Readiness:
        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            if not filled:
                filled.append(reader.fill())
            return [(0, select.POLLOUT)]

    monkeypatch.setattr(console, "_readiness", Readiness())
    say(console, "one", "two")
    reader.read(filled[0])
    assert reader.read_lines_until("two") == ["one", "two"]


def test_lines_wait_in_order_while_there_can_be_no_thread(
    console: Console, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = reader.fill()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for text in ("one", "two"):
            console.handle(logging.LogRecord("warren.node", logging.INFO, "", 0, text, None, None))
    reader.read(filled)
    say(console, "three")
    assert reader.read_lines_until("three") == ["one", "two", "three"]


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(
    console: Console, reader: Reader
) -> None:
    reader.fill()
    say(console, "waits")
    os.close(reader.read_end)
    console.flush()
    say(console, "lost")
    console.flush()


def test_the_last_line_of_a_process_does_not_keep_it_from_ending(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", reader.stream)
    print_error("warren: a fault")
    assert reader.read(16) == b"warren: a fault\n"
    filled = reader.fill()
    thread = threading.Thread(target=print_error, args=("warren: a fault",), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    reader.read(filled)
    assert reader.read_lines_until("warren: a fault") == ["warren: a fault"]
