"""Cards of copies: written behind the back of the loop, durable when it is said so, and never
believed when damaged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from disk import PowerLost, SimulatedDisk
from manual_clock import ManualClock

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
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cards(disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock) -> CardFiles:
    return cards_on(disk, jobs, clock)


def cards_on(disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock) -> CardFiles:
    return CardFiles(
        disk,
        STORE,
        run=jobs.append,
        call_on_loop=lambda callback: callback(),
        call_later=clock.call_later,
    )


def run(jobs: list[Callable[[], None]]) -> None:
    while jobs:
        jobs.pop(0)()


def path(storage_id: int) -> Path:
    return STORE / CARDS_DIRECTORY / f"{storage_id:016x}"


def test_a_card_is_found_again(
    cards: CardFiles,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    clock: ManualClock,
) -> None:
    cards.write(COPY, b"first")
    cards.write(OTHER, b"")
    cards.write(COPY, b"second, which is longer")
    cards.write(COPY, b"third")
    assert cards.read() == {}
    run(jobs)
    disk.kill()
    assert cards_on(disk, jobs, clock).read() == {COPY: b"third", OTHER: b""}


def test_a_card_is_durable_when_it_is_said_so(clock: ManualClock) -> None:
    """Wherever the power fails, there is the last one that was, or a later one."""
    for fails_after in range(1, 100):
        disk = SimulatedDisk(Random(fails_after))
        disk.make_directory(STORE)
        jobs: list[Callable[[], None]] = []
        cards = cards_on(disk, jobs, clock)
        durable = [b"none yet"]
        disk.crash_after(fails_after)
        with suppress(PowerLost):
            for card in (b"first", b"second"):
                for storage_id in (COPY, OTHER):
                    commit = cards.write(storage_id, card)
                run(jobs)
                if commit.done:
                    durable.append(card)
        disk.crash()
        found = cards_on(disk, jobs, clock).read()
        if durable[-1] == b"second":
            assert found == {COPY: b"second", OTHER: b"second"}
            return
        if durable[-1] == b"first":
            assert set(found) == {COPY, OTHER} and set(found.values()) <= {b"first", b"second"}
    raise AssertionError("nothing was ever durable")


def test_cards_that_are_asked_for_meanwhile_share_a_sync(
    cards: CardFiles, disk: SimulatedDisk, jobs: list[Callable[[], None]]
) -> None:
    written: list[int] = []
    for storage_id in range(1000):
        cards.write(storage_id, b"card").then(lambda number=storage_id: written.append(number))
    assert not written
    run(jobs)
    assert written == list(range(1000))
    assert sum("sync_files" in step for step in disk.trace) == 2


def test_a_card_that_is_removed_is_gone(cards: CardFiles, jobs: list[Callable[[], None]]) -> None:
    cards.write(COPY, b"card")
    cards.remove(COPY)
    cards.remove(OTHER)
    run(jobs)
    assert cards.read() == {}


def test_a_damaged_card_is_removed_and_named_once(
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
    assert caplog.text.count("card_removed") == 1 == caplog.text.count("card_ignored")
    assert str(path(COPY)) in caplog.text
    caplog.clear()
    assert cards.read() == {OTHER: b"other"}
    assert "card_removed" not in caplog.text


def test_a_disk_that_takes_no_card_costs_a_line_in_the_log(
    cards: CardFiles,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.full_after(0)
    commit = cards.write(COPY, b"card")
    run(jobs)
    assert "card_not_written" in caplog.text
    assert cards.read() == {} and not commit.done


def test_a_card_is_written_when_the_disk_takes_it_again(
    cards: CardFiles, disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock
) -> None:
    disk.full_after(0)
    commit = cards.write(COPY, b"card")
    run(jobs)
    disk.free(1000)
    clock.advance(10)
    run(jobs)
    assert commit.done and cards.read() == {COPY: b"card"}
