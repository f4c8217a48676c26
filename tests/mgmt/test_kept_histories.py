"""The file in which histories outlive their node: writing, reading, and damage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pipe import Broker

from warren.mgmt.statistics import sampler
from warren.mgmt.statistics.history import RETENTION_OF_ONE, History, pack
from warren.mgmt.statistics.history_file import FILE, HEADER
from warren.mgmt.statistics.kept_histories import KeptHistories, Layout, Restored
from warren.mgmt.statistics.sampler import Statistics
from warren.persist.disk.filesystem import RealFileSystem

LAYOUT: Layout = {"queue": (RETENTION_OF_ONE, 2)}


def kept(directory: Path, layout: Layout = LAYOUT) -> KeptHistories:
    return KeptHistories(RealFileSystem(), directory, layout)


def history_of(first: int) -> History:
    history = History(RETENTION_OF_ONE)
    for second in range(0, 600, 5):
        history.add(float(second), pack((first + second, 1)))
    return history


def save(directory: Path, queues: int = 3, kind: str = "queue") -> None:
    async def histories() -> AsyncIterator[tuple[str, Hashable, History]]:
        for number in range(queues):
            yield kind, ("/", f"queue {number}", number), history_of(1000 * number)

    asyncio.run(kept(directory).save(histories(), 50.0))


def load(directory: Path, layout: Layout = LAYOUT) -> Restored:
    return asyncio.run(kept(directory, layout).load(1000.0, -350.0))


def test_what_was_saved_is_there_at_the_next_start(tmp_path: Path) -> None:
    save(tmp_path)
    found = load(tmp_path)["queue"]
    assert list(found) == [("/", f"queue {number}", number) for number in range(3)]
    # The clock of the next start shows 400 seconds more at the same time of day.
    at_500 = found["/", "queue 2", 2].at([900.0])
    assert [sample.figures for sample in at_500] == [(2500, 1)]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_many_histories_are_written_in_pieces(tmp_path: Path) -> None:
    save(tmp_path, 1500)
    assert (tmp_path / FILE).stat().st_size > 2 << 20
    assert len(load(tmp_path)["queue"]) == 1500


def test_without_a_file_there_is_no_past_and_no_complaint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(tmp_path) == {"queue": {}}
    assert caplog.records == []


def test_a_damaged_file_is_ignored_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    whole = (tmp_path / FILE).read_bytes()
    cut = [whole[:size] for size in range(0, len(whole), 37)]
    turned = [
        whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]
        for place in (*range(10), *range(HEADER.size, len(whole), 41))
    ]
    for contents in (b"", *cut, *turned):
        caplog.clear()
        (tmp_path / FILE).write_bytes(contents)
        with caplog.at_level(logging.WARNING):
            assert load(tmp_path) == {}
        assert [record.message.split()[0] for record in caplog.records] == ["history_not_loaded"]


def test_kinds_that_this_version_does_not_know_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, kind="stream")
    assert load(tmp_path) == {"queue": {}}


def test_figures_of_another_version_are_no_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path)
    assert load(tmp_path, {"queue": (RETENTION_OF_ONE, 3)}) == {}
    assert len(caplog.records) == 1


def test_a_stop_that_cannot_save_in_time_says_so_without_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def takes_long(_: Statistics) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Statistics, "save", takes_long)
    monkeypatch.setattr(sampler, "SAVE_S_MAX", 0.01)

    async def begin_and_stop() -> None:
        broker = Broker()
        managed = SimpleNamespace(data_directory=None, storage=None, machine=lambda: None)
        statistics = Statistics(broker.node, managed)  # type: ignore[arg-type]
        statistics.start()
        await statistics.stop()

    asyncio.run(begin_and_stop())
    (record,) = caplog.records
    assert record.message.startswith("history_not_saved") and not record.exc_info


def test_a_disk_that_refuses_keeps_the_file_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("warren.persist.disk.filesystem.RealFile.sync", refuse)
    save(tmp_path, 1)
    assert [record.message.split()[0] for record in caplog.records] == ["history_not_saved"]
    assert len(load(tmp_path)["queue"]) == 3
