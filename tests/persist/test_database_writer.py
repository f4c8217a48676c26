"""Writing to an LMDB file in the background, with a disk that refuses now and then."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from manual_clock import ManualClock

from warren.persist.definitions.database import MAP_BYTES_FIRST, Database, open_environment
from warren.persist.definitions.database_writer import DatabaseWriter
from warren.persist.definitions.deleted_queues import Puts


class Freed(list[tuple[bytes, bytes | None]]):
    """What is written; unlike a list it can be watched."""


class Writing:
    """A writer without a thread, whose disk refuses while `error` is set."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.error: Exception | None = None
        self.faults: list[BaseException] = []
        self.database = Database(path, open_environment, MAP_BYTES_FIRST, lambda key, value: set())
        self.writer: DatabaseWriter[Puts] = DatabaseWriter(
            "shelf",
            self.database,
            self.write,
            call_on_loop=self.clock.call_soon,
            call_later=self.clock.call_later,
            sync_thread=None,
            on_fault=self.faults.append,
        )

    def write(self, batch: Sequence[Puts]) -> None:
        if self.error is not None:
            raise self.error
        self.database.write(batch)


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path)


def test_what_is_committed_is_in_the_file(writing: Writing) -> None:
    commit = writing.writer.submit([(b"k", b"1")])
    writing.clock.settle()
    assert commit.done and writing.writer.uncommitted() is None
    assert list(writing.database.entries()) == [(b"k", b"1")]
    assert writing.writer.close() == 0


def test_what_was_written_is_let_go_before_the_loop_hears_of_it(writing: Writing) -> None:
    """To free a large batch at once would hold up the loop."""
    puts: Puts = Freed([(b"k", b"1")])
    freed = weakref.ref(puts)
    commit = writing.writer.submit(puts)
    del puts
    assert freed() is None and not commit.done
    writing.clock.settle()
    assert commit.done


def test_a_disk_that_refuses_is_tried_again_and_the_log_says_so_once(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writing.error = OSError(28, "No space left on device")
    commit = writing.writer.submit([(b"k", b"1")])
    writing.clock.advance(60.0)
    assert not commit.done
    writing.error = None
    writing.clock.advance(60.0)
    assert commit.done
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "shelf_write_failed",
        "shelf_write_recovered",
    ]
    assert "action=retrying" in caplog.messages[0] and "No space left" in caplog.messages[0]
    assert not writing.faults


def test_what_a_disk_refuses_to_the_last_is_counted(writing: Writing) -> None:
    writing.error = OSError(5, "Input/output error")
    for value in (b"1", b"2"):
        writing.writer.submit([(b"k", value)])
    writing.clock.settle()
    assert writing.writer.close() == 2


def test_an_error_that_no_disk_makes_is_a_fault(writing: Writing) -> None:
    writing.error = ValueError("no such key")
    commit = writing.writer.submit([(b"k", b"1")])
    writing.clock.advance(60.0)
    assert writing.faults == [writing.error] and not commit.done
