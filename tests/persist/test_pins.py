"""The look after snapshots: what one of them is like is nobody else's business."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from warren.persist.snapshots.cursors import (
    Cursor,
    cursor_path,
    list_cursors,
    read_release,
    write_cursor,
)
from warren.persist.snapshots.pin_owner import Owner, owner_of
from warren.persist.snapshots.pins import (
    LEASE_FILE,
    RELEASED_DIRECTORY,
    EarlyRelease,
    Pins,
    keep_within,
    read_early_release,
    remove,
    sweep,
)

UNREADABLE, OVER, KEPT = (f"20260101T00000{n}Z-00000000" for n in range(3))


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    """Snapshots, the first of which has a lease that nobody can read."""
    (tmp_path / UNREADABLE / LEASE_FILE).mkdir(parents=True)
    (tmp_path / OVER).mkdir()
    (tmp_path / OVER / LEASE_FILE).write_text('{"expires_us": 1}')
    return tmp_path


def snapshot_of(pins: Path, cursor: str, octets: int) -> None:
    (pins / KEPT).mkdir()
    (pins / KEPT / LEASE_FILE).write_text(f'{{"expires_us": 1, "cursor": "{cursor}"}}')
    (pins / KEPT / "log").write_bytes(bytes(octets))
    cursor_path(pins, cursor).mkdir(parents=True)
    write_cursor(cursor_path(pins, cursor), Cursor(cursor, "00", 1000, 1, "here", 0))


def test_a_snapshot_that_cannot_be_read_keeps_no_other(pins: Path) -> None:
    sweep(pins, 2)
    assert [path.name for path in sorted(pins.iterdir())] == [UNREADABLE]


@pytest.mark.parametrize(("octets", "stands"), [(900, True), (1001, False)])
def test_cursors_keep_what_they_may_beside_one_that_cannot_be_read(
    pins: Path, octets: int, stands: bool
) -> None:
    snapshot_of(pins, "archive", octets)
    sweep(pins, 2)
    assert (pins / KEPT).exists() == stands
    assert (read_release(cursor_path(pins, "archive")) is None) == stands
    assert not (pins / OVER).exists()


def test_what_is_no_directory_is_no_cursor(pins: Path) -> None:
    snapshot_of(pins, "archive", 0)
    (pins / "cursors" / "note").write_text("of somebody")
    assert [cursor.name for cursor in list_cursors(pins)] == ["archive"]


NEVER_US = 1 << 60
NOW_US = 1_800_000_000_000_000


def snapshot(pins: Path, number: int, octets: int = 0, owner: Owner | None = None) -> Path:
    """One that is wanted; a higher number is younger."""
    path = pins / f"20260101T00000{number}Z-00000000"
    path.mkdir(parents=True)
    (path / LEASE_FILE).write_text(json.dumps({"expires_us": NEVER_US, "owner": owner}))
    (path / "log").write_bytes(bytes(octets))
    return path


def test_a_snapshot_goes_with_the_process_it_stands_for(tmp_path: Path) -> None:
    own = owner_of(os.getpid())
    assert own is not None
    of_us, of_nobody = snapshot(tmp_path, 0, owner=own), snapshot(tmp_path, 1)
    of_other = snapshot(tmp_path, 2, owner=own._replace(started=own.started - 1))
    sweep(tmp_path, NOW_US)
    assert of_us.exists() and of_nobody.exists() and not of_other.exists()


def test_above_the_limit_of_all_the_oldest_go_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    oldest, middle, youngest = (snapshot(tmp_path, number, 10_000) for number in range(3))
    assert keep_within(tmp_path, NOW_US, 40_000) == 0
    caplog.set_level(logging.WARNING)
    assert keep_within(tmp_path, NOW_US, 15_000) == 2
    assert not oldest.exists() and not middle.exists() and youngest.exists()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["snapshot_released"] * 2
    assert f"path={oldest}" in lines[0] and "max_bytes=15000" in lines[0]
    release = read_early_release(oldest)
    assert release is not None and release.octets > 30_000
    assert release == EarlyRelease(NOW_US, release.octets, 15_000)
    assert read_early_release(youngest) is None


def test_age_is_when_it_was_begun(tmp_path: Path) -> None:
    first, second = (snapshot(tmp_path, number, 10_000) for number in range(2))
    lease = {"expires_us": NEVER_US, "created_us": 5}
    (first / LEASE_FILE).write_text(json.dumps(lease))
    assert keep_within(tmp_path, NOW_US, 15_000) == 1
    assert first.exists() and not second.exists()


def test_what_the_store_has_as_well_is_not_counted(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "pins", 0)
    (tmp_path / "log").write_bytes(bytes(50_000))
    os.link(tmp_path / "log", path / "linked")
    assert keep_within(tmp_path / "pins", NOW_US, 20_000) == 0
    (tmp_path / "log").unlink()
    assert keep_within(tmp_path / "pins", NOW_US, 20_000) == 1


def test_that_a_snapshot_was_released_is_known_for_a_day(tmp_path: Path) -> None:
    path = snapshot(tmp_path, 0, 10_000)
    keep_within(tmp_path, NOW_US, 0)
    note = tmp_path / RELEASED_DIRECTORY / path.name
    written_us = int(note.stat().st_mtime * 1e6)
    sweep(tmp_path, written_us + 23 * 3_600_000_000)
    assert read_early_release(path) is not None
    sweep(tmp_path, written_us + 25 * 3_600_000_000)
    assert not note.exists()


def test_two_may_remove_a_snapshot_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who releases it, and a sweep that finds it unfinished."""
    snapshot = tmp_path / "one"
    (snapshot / "queues").mkdir(parents=True)
    for number in range(3):
        (snapshot / "queues" / str(number)).touch()
    remove_tree = shutil.rmtree
    others: list[Path] = []

    def removed_meanwhile(path: Path) -> None:
        """Another one removes a part of it while this one is at it."""
        if not others:
            others.append(path)
            (path / "queues" / "1").unlink()
            raise FileNotFoundError(path / "queues" / "1")
        remove_tree(path)

    monkeypatch.setattr(shutil, "rmtree", removed_meanwhile)
    remove(snapshot)
    assert others and not list(tmp_path.iterdir())
    remove(snapshot)


def test_a_directory_that_cannot_be_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "pins"
    looked_after = Pins(directory, lambda job: job(), lambda: 1.0)

    def times_told() -> int:
        for _ in range(3):
            looked_after.check(0.0)
        return caplog.text.count("snapshots_unreadable")

    directory.write_text("no directory")
    assert times_told() == 1
    directory.unlink()
    directory.mkdir()
    assert times_told() == 1
    directory.rmdir()
    directory.write_text("again none")
    assert times_told() == 2
