"""The look after snapshots: what one of them is like is nobody else's business."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.persist.cursors import Cursor, cursor_path, list_cursors, read_release, write_cursor
from warren.persist.pins import LEASE_FILE, sweep

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
