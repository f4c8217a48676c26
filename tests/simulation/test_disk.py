"""The simulated disk: what is durable, what may be lost, and what fails when asked to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from disk import PowerLost, SimulatedDisk
from disk_image import SECTOR_BYTES
from hypothesis import given
from hypothesis import strategies as st
from simulated_disks import ROOT, SEEDS, A, B, all_of, content, disks, durable


def test_synced_content_survives_every_crash() -> None:
    data = Random(0).randbytes(3000)
    for disk in disks():
        file = durable(disk, A, data)
        file.write(3000, b"more")
        disk.crash()
        assert content(disk, A)[:3000] == data


def test_synced_octets_survive_in_a_sector_that_is_written_on() -> None:
    for disk in disks():
        file = durable(disk, A, b"s" * 100)
        for at in range(100, 500, 40):
            file.write(at, b"u" * 40)
        disk.crash()
        left = content(disk, A)
        assert left[:100] == b"s" * 100
        assert set(left[100:]) <= {0, ord("u")}


def test_a_synced_write_is_durable_and_what_was_written_before_it_need_not_be() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"o" * SECTOR_BYTES)
        file.write(0, b"n" * SECTOR_BYTES)
        file.write_synced(SECTOR_BYTES, b"s" * 100)
        disk.crash()
        left = content(disk, A)
        assert left[SECTOR_BYTES:] == b"s" * 100
        seen.add(left[:1])
    assert seen == {b"o", b"n"}


def test_sectors_that_were_not_synced_are_kept_lost_or_torn_each_on_its_own() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"o" * 4 * SECTOR_BYTES)
        file.write(0, b"n" * 4 * SECTOR_BYTES)
        disk.crash()
        left = content(disk, A)
        fates = ""
        for start in range(0, len(left), SECTOR_BYTES):
            sector = left[start : start + SECTOR_BYTES]
            new = sector.count(b"n")
            assert sector == b"n" * new + b"o" * (SECTOR_BYTES - new)
            fates += {0: "-", SECTOR_BYTES: "+"}.get(new, "/")
        seen.add(fates)
    assert {"++++", "----"} <= seen
    assert any("/" in fates for fates in seen)
    assert any(fates[0] == "-" and fates[3] == "+" for fates in seen)


def test_the_size_may_be_newer_or_older_than_the_content() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"")
        file.write(0, b"x" * SECTOR_BYTES)
        file.write(SECTOR_BYTES, b"x" * SECTOR_BYTES)
        disk.crash()
        left = content(disk, A)
        seen.add((len(left) // SECTOR_BYTES, left.count(b"x") // SECTOR_BYTES))
    assert seen == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}


def test_a_sector_written_twice_may_be_left_as_it_was_between() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"1" * SECTOR_BYTES)
        file.write(0, b"2" * SECTOR_BYTES)
        file.write(0, b"3" * SECTOR_BYTES)
        disk.crash()
        seen.add(content(disk, A)[-1:])
    assert seen == {b"1", b"2", b"3"}


def test_a_truncation_is_durable_after_a_sync_only() -> None:
    sizes = set()
    for disk in disks():
        file = durable(disk, A, b"x" * 1000)
        file.truncate(10)
        disk.crash()
        left = content(disk, A)
        assert left[:10] == b"x" * 10
        sizes.add(len(left))
        file = disk.open(A)
        file.truncate(10)
        file.sync()
        file.truncate(700)
        file.sync()
        disk.crash()
        assert content(disk, A) == b"x" * 10 + bytes(690)
    assert sizes == {10, 1000}


def test_what_a_crash_left_is_durable() -> None:
    for disk in disks():
        durable(disk, A, b"o" * 2000).write(500, b"n" * 2000)
        disk.create(B).write(0, b"b" * 2000)
        disk.crash()
        left = all_of(disk)
        disk.crash()
        assert all_of(disk) == left


def test_a_killed_process_leaves_all_it_wrote_and_a_later_crash_does_not() -> None:
    lost = 0
    for disk in disks():
        disk.create(A).write(0, b"x" * 700)
        disk.kill()
        assert all_of(disk) == {"/a": b"x" * 700}
        disk.crash()
        lost += all_of(disk) != {"/a": b"x" * 700}
    assert 0 < lost < len(SEEDS)


@pytest.mark.parametrize("end", [SimulatedDisk.crash, SimulatedDisk.kill])
def test_open_files_end_with_the_process(end: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk(Random(1))
    file = durable(disk, A, b"x")
    end(disk)
    with pytest.raises(PowerLost):
        file.read(0, 1)
    with pytest.raises(PowerLost):
        file.write(0, b"y")
    file.close()
    assert content(disk, A) == b"x"


def test_an_entry_is_durable_after_its_directory_was_synced() -> None:
    seen = set()
    for disk in disks():
        for name in "abc":
            file = disk.create(ROOT / name)
            file.write(0, b"x")
            file.sync()
        disk.crash()
        seen.add("".join(disk.names(ROOT)))
    assert seen == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_removal_is_durable_after_its_directory_was_synced() -> None:
    seen = set()
    for disk in disks():
        durable(disk, A, b"a")
        durable(disk, B, b"b")
        disk.remove(A)
        disk.remove(B)
        again = disk.copy()
        disk.crash()
        seen.add("".join(disk.names(ROOT)))
        again.sync_directory(ROOT)
        again.crash()
        assert again.names(ROOT) == []
        assert again.used_bytes() == 0
    assert seen == {"", "a", "b", "ab"}


def test_a_rename_leaves_the_old_or_the_new_name() -> None:
    seen = set()
    for disk in disks():
        durable(disk, A, b"old")
        durable(disk, B, b"new")
        disk.rename(B, A)
        disk.crash()
        seen.add(tuple(all_of(disk).items()))
    assert seen == {(("/a", b"new"),), (("/a", b"old"), ("/b", b"new"))}


def test_a_file_renamed_twice_has_one_name() -> None:
    seen = set()
    for disk in disks():
        durable(disk, A, b"x")
        disk.rename(A, B)
        disk.rename(B, Path("/c"))
        disk.crash()
        assert list(all_of(disk).values()) == [b"x"]
        seen.update(disk.names(ROOT))
    assert seen == {"a", "b", "c"}


def test_a_name_does_not_make_the_content_durable() -> None:
    seen = set()
    for disk in disks():
        disk.create(A).write(0, b"x" * 10)
        disk.sync_directory(ROOT)
        disk.crash()
        seen.add(content(disk, A).rstrip(b"\0") == b"x" * 10)
    assert seen == {True, False}


def test_sync_files_makes_content_and_names_durable() -> None:
    for disk in disks():
        disk.make_directory(Path("/x"))
        paths = [A, Path("/x/b")]
        for path in paths:
            disk.create(path).write(0, b"abc")
        disk.sync_files(paths)
        disk.crash()
        assert all_of(disk) == {"/a": b"abc", "/x/b": b"abc"}


def test_a_made_directory_is_durable_and_what_stands_beside_it_is_not() -> None:
    seen = set()
    for disk in disks():
        disk.create(A)
        disk.make_directory(Path("/x/y"))
        disk.crash()
        assert disk.names(Path("/x")) == ["y"]
        seen.add("a" in disk.names(ROOT))
    assert seen == {True, False}


def test_a_removed_directory_may_come_back_with_any_of_its_files() -> None:
    seen = set()
    for disk in disks():
        disk.make_directory(Path("/x"))
        durable(disk, Path("/x/a"), b"")
        durable(disk, Path("/x/b"), b"")
        disk.remove_directory(Path("/x"))
        disk.crash()
        seen.add((*disk.names(ROOT), *disk.names(Path("/x"))))
    assert seen == {(), ("x",), ("x", "a"), ("x", "b"), ("x", "a", "b")}


def test_a_directory_made_anew_has_nothing_of_the_old_one() -> None:
    for disk in disks():
        disk.make_directory(Path("/x"))
        durable(disk, Path("/x/a"), b"")
        disk.remove_directory(Path("/x"))
        disk.make_directory(Path("/x"))
        disk.crash()
        assert disk.names(Path("/x")) == []


def replace_safely(disk: SimulatedDisk) -> None:
    """The usual way to replace a file."""
    file = disk.create(B)
    file.write(0, b"new" * 500)
    file.sync()
    disk.rename(B, A)
    disk.sync_directory(ROOT)


def replace_without_sync(disk: SimulatedDisk) -> None:
    disk.create(B).write(0, b"new" * 500)
    disk.rename(B, A)
    disk.sync_directory(ROOT)


def after_each_crash(work: Callable[[SimulatedDisk], None]) -> set[bytes]:
    """What is found at A when the power fails at each step of the work, and after the last."""
    found = set()
    for seed in range(60):
        start = SimulatedDisk(Random(seed))
        durable(start, A, b"old" * 500)
        finished = start.copy()
        work(finished)
        for step in range(1, finished.steps - start.steps + 1):
            disk = start.copy()
            disk.crash_after(step)
            with pytest.raises(PowerLost):
                work(disk)
            disk.crash()
            found.add(content(disk, A))
        finished.crash()
        found.add(content(finished, A))
    return found


def test_replacing_a_file_safely_is_atomic_at_every_step() -> None:
    assert after_each_crash(replace_safely) == {b"old" * 500, b"new" * 500}


def test_replacing_a_file_without_a_sync_is_caught() -> None:
    assert len(after_each_crash(replace_without_sync)) > 2


WORK = st.lists(
    st.tuples(st.integers(0, 10), st.sampled_from("abc"), st.integers(0, 2000)), max_size=40
)


def work(disk: SimulatedDisk, todo: list[tuple[int, str, int]]) -> None:
    """Some of everything; errors are expected and power failures end it."""
    try:
        for what, name, number in todo:
            try:
                work_once(disk, what, ROOT / name, number)
            except OSError:
                continue
    except PowerLost:
        return


def work_once(disk: SimulatedDisk, what: int, path: Path, number: int) -> None:
    if what == 0:
        disk.create(path)
    elif what <= 2:
        disk.open(path).write(number, b"w" * (number // 2))
    elif what == 3:
        disk.open(path).sync()
    elif what == 4:
        disk.open(path).truncate(number)
    elif what == 5:
        disk.rename(path, ROOT / "abc"[number % 3])
    elif what == 6:
        disk.remove(path)
    elif what == 7:
        disk.sync_directory(ROOT)
    elif what == 8:
        disk.sync_files([path])
    elif what == 9:
        disk.fail_sync(1 + number % 3)
        disk.fail_sync_directory(1 + number % 2)
    else:
        disk.crash_after(1 + number % 10)


@given(WORK, st.integers(0, 1000))
def test_the_same_seed_gives_the_same_trace_and_disk(
    todo: list[tuple[int, str, int]], seed: int
) -> None:
    once, twice = SimulatedDisk(Random(seed)), SimulatedDisk(Random(seed))
    for disk in (once, twice):
        work(disk, todo)
        disk.crash()
    assert once.trace == twice.trace
    assert all_of(once) == all_of(twice)
    assert once.used_bytes() == sum(once.files().values())


@given(WORK, WORK, st.integers(0, 1000))
def test_a_copy_has_the_same_future_and_its_own(
    before: list[tuple[int, str, int]], after: list[tuple[int, str, int]], seed: int
) -> None:
    disk = SimulatedDisk(Random(seed))
    work(disk, before)
    seen = disk.checksum()
    copy = disk.copy()
    work(copy, after)
    copy.crash()
    assert disk.checksum() == seen
    work(disk, after)
    disk.crash()
    assert disk.trace == copy.trace
    assert all_of(disk) == all_of(copy)


@given(WORK, st.integers(0, 1000))
def test_what_is_synced_as_a_whole_is_kept_as_a_whole(
    todo: list[tuple[int, str, int]], seed: int
) -> None:
    disk = SimulatedDisk(Random(seed))
    work(disk, [(what, name, number) for what, name, number in todo if what < 9])
    disk.sync_files(list(disk.files()))
    disk.sync_directory(ROOT)
    left = all_of(disk)
    disk.crash()
    assert all_of(disk) == left


@given(WORK, st.integers(0, 1000))
def test_no_file_has_two_names(todo: list[tuple[int, str, int]], seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    work(disk, todo)
    disk.crash()
    for name in disk.names(ROOT):
        disk.open(ROOT / name).write(0, name.encode())
    assert all(content(disk, ROOT / name)[:1] == name.encode() for name in disk.names(ROOT))


def test_a_copy_can_be_given_another_future() -> None:
    disk = SimulatedDisk(Random(1))
    disk.create(A).write(0, b"x" * 5000)
    left = set()
    for seed in SEEDS:
        copy = disk.copy(Random(seed))
        copy.crash()
        left.add(copy.checksum())
    assert len(left) > 50
