"""Cards of copies: written behind the back of the loop, durable when it is said so, and never
believed when damaged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from disk import PowerLost, SimulatedDisk
from manual_clock import ManualClock

from warren.persist.disk.card_log import CARDS_FILE, FORMER_DIRECTORY, SLACK_BYTES, CardLog

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
def cards(disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock) -> CardLog:
    return cards_on(disk, jobs, clock)


def cards_on(disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock) -> CardLog:
    return CardLog(
        disk,
        STORE,
        run=jobs.append,
        call_on_loop=lambda callback: callback(),
        call_later=clock.call_later,
    )


def run(jobs: list[Callable[[], None]]) -> None:
    while jobs:
        jobs.pop(0)()


def write_octets(disk: SimulatedDisk, path: Path, octets: bytes, at: int = 0) -> None:
    disk.make_directory(path.parent)
    file = disk.open(path) if at else disk.create(path)
    file.write(at, octets)
    file.sync()
    file.close()
    disk.sync_directory(path.parent)


def size_of(disk: SimulatedDisk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def test_a_card_is_found_again(
    cards: CardLog,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    clock: ManualClock,
) -> None:
    cards.write(COPY, b"first")
    cards.write(OTHER, b"")
    cards.write(COPY, b"second, which is longer")
    cards.write(COPY, b"third")
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


def test_cards_that_are_asked_for_meanwhile_share_a_write_and_a_sync(
    cards: CardLog, disk: SimulatedDisk, jobs: list[Callable[[], None]]
) -> None:
    cards.write(COPY, b"the first makes the file")
    run(jobs)
    written: list[int] = []
    cards.write(OTHER, b"card")
    for storage_id in range(1000):
        cards.write(storage_id, b"card").then(lambda number=storage_id: written.append(number))
    assert not written
    disk.trace.clear()
    run(jobs)
    assert written == list(range(1000))
    steps = [step for step in disk.trace if "open" not in step and "close" not in step]
    assert len(steps) <= 4, steps


def test_a_card_that_is_removed_is_gone(cards: CardLog, jobs: list[Callable[[], None]]) -> None:
    cards.write(COPY, b"card")
    cards.remove(COPY)
    cards.remove(OTHER)
    run(jobs)
    assert cards.read() == {}


def test_damage_costs_the_card_it_is_in(
    cards: CardLog,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cards.write(COPY, b"card")
    cards.write(OTHER, b"other")
    run(jobs)
    write_octets(disk, STORE / CARDS_FILE, b"X", at=18)
    again = cards_on(disk, jobs, clock)
    assert again.read() == {OTHER: b"other"}
    assert caplog.text.count("cards_damaged") == 1
    caplog.clear()
    again.write(3, b"three")
    run(jobs)
    assert cards_on(disk, jobs, clock).read() == {OTHER: b"other", 3: b"three"}
    assert "cards_damaged" not in caplog.text


def test_an_entry_that_was_not_written_whole_hides_none_after_it(
    cards: CardLog, disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock
) -> None:
    cards.write(COPY, b"card")
    run(jobs)
    write_octets(disk, STORE / CARDS_FILE, b"half an ent", at=size_of(disk, STORE / CARDS_FILE))
    again = cards_on(disk, jobs, clock)
    assert again.read() == {COPY: b"card"}
    again.write(OTHER, b"other")
    again.write(3, b"three")
    run(jobs)
    assert cards_on(disk, jobs, clock).read() == {COPY: b"card", OTHER: b"other", 3: b"three"}


def test_the_cards_of_an_earlier_version_are_taken_over(
    cards: CardLog, disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock
) -> None:
    former = STORE / FORMER_DIRECTORY
    for storage_id, card in ((COPY, b"card"), (OTHER, b"other"), (7, b"to be removed")):
        octets = crc32(card).to_bytes(4, "little") + card
        write_octets(disk, former / f"{storage_id:016x}", octets)
    write_octets(disk, former / f"{8:016x}", b"damaged")
    write_octets(disk, former / f"{9:016x}.new", b"unfinished")
    write_octets(disk, former / "no number", b"")
    assert cards.read() == {COPY: b"card", OTHER: b"other", 7: b"to be removed"}
    cards.write(COPY, b"newer")
    cards.remove(7)
    run(jobs)
    assert cards_on(disk, jobs, clock).read() == {COPY: b"newer", OTHER: b"other"}
    assert not disk.names(former)


def test_cards_of_an_earlier_version_survive_a_loss_of_power_while_they_are_taken_over(
    clock: ManualClock,
) -> None:
    for fails_after in range(1, 100):
        disk = SimulatedDisk(Random(fails_after))
        disk.make_directory(STORE)
        octets = crc32(b"card").to_bytes(4, "little") + b"card"
        write_octets(disk, STORE / FORMER_DIRECTORY / f"{COPY:016x}", octets)
        jobs: list[Callable[[], None]] = []
        disk.crash_after(fails_after)
        with suppress(PowerLost):
            cards_on(disk, jobs, clock).write(OTHER, b"other")
            run(jobs)
            return
        disk.crash()
        assert cards_on(disk, jobs, clock).read()[COPY] == b"card"
    raise AssertionError("it was never taken over")


def test_the_file_does_not_grow_with_what_does_not_count_any_more(
    cards: CardLog, disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock
) -> None:
    for number in range(40):
        for storage_id in range(100):
            cards.write(storage_id, b"%d" % number * 100)
        run(jobs)
    assert size_of(disk, STORE / CARDS_FILE) < SLACK_BYTES + 100_000
    assert cards_on(disk, jobs, clock).read() == dict.fromkeys(range(100), b"39" * 100)


def test_a_disk_that_takes_no_card_costs_a_line_in_the_log(
    cards: CardLog,
    disk: SimulatedDisk,
    jobs: list[Callable[[], None]],
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.full_after(0)
    commit = cards.write(COPY, b"card")
    run(jobs)
    assert "card_not_written" in caplog.text
    assert cards_on(disk, jobs, clock).read() == {} and not commit.done


def test_a_card_is_written_when_the_disk_takes_it_again(
    cards: CardLog, disk: SimulatedDisk, jobs: list[Callable[[], None]], clock: ManualClock
) -> None:
    disk.full_after(0)
    commit = cards.write(COPY, b"card")
    run(jobs)
    disk.free(1000)
    clock.advance(10)
    run(jobs)
    assert commit.done and cards.read() == {COPY: b"card"}
