"""Cards of copies: written behind the back of the loop, and never believed when damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from disk import SimulatedDisk

from warren.persist.card_files import CARDS_DIRECTORY, CardFiles

STORE = Path("/data/store")
COPY, OTHER = 0xABC00, 1 << 60


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(Random(1))
    disk.make_directory(STORE)
    return disk


@pytest.fixture
def jobs() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def cards(disk: SimulatedDisk, jobs: list[Callable[[], None]]) -> CardFiles:
    return CardFiles(disk, STORE, jobs.append)


def run(jobs: list[Callable[[], None]]) -> None:
    while jobs:
        jobs.pop(0)()


def path(storage_id: int) -> Path:
    return STORE / CARDS_DIRECTORY / f"{storage_id:016x}"


def test_a_card_is_found_again(
    cards: CardFiles, disk: SimulatedDisk, jobs: list[Callable[[], None]]
) -> None:
    cards.write(COPY, b"first")
    cards.write(OTHER, b"")
    cards.write(COPY, b"second, which is longer")
    cards.write(COPY, b"third")
    assert cards.read() == {}
    run(jobs)
    disk.kill()
    assert CardFiles(disk, STORE, jobs.append).read() == {COPY: b"third", OTHER: b""}


def test_a_card_that_is_removed_is_gone(cards: CardFiles, jobs: list[Callable[[], None]]) -> None:
    cards.write(COPY, b"card")
    cards.remove(COPY)
    cards.remove(OTHER)
    run(jobs)
    assert cards.read() == {}


def test_a_damaged_card_is_passed_over(
    cards: CardFiles,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cards.write(COPY, b"card")
    cards.write(OTHER, b"other")
    run(jobs)
    file = disk.open(path(COPY), writable=True)
    file.write(5, b"X")
    file.close()
    disk.create(STORE / CARDS_DIRECTORY / "no number").close()
    assert cards.read() == {OTHER: b"other"}
    assert caplog.text.count("card_ignored") == 2
    assert str(path(COPY)) in caplog.text


def test_a_disk_that_takes_no_card_costs_a_line_in_the_log(
    cards: CardFiles,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.full_after(0)
    cards.write(COPY, b"card")
    run(jobs)
    assert "card_not_written" in caplog.text
    assert cards.read() == {}
