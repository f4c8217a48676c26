"""Faults of the simulated disk: failed syncs and writes, no room, damage, and the power."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from disk import PowerLost, SimulatedDisk
from simulated_disks import ROOT, SEEDS, A, B, content, disks, durable


def test_the_power_fails_before_amid_or_after_the_step() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"")
        disk.crash_after(1)
        with pytest.raises(PowerLost):
            file.write(0, b"0123456789")
        disk.kill()
        left = content(disk, A)
        assert b"0123456789".startswith(left)
        seen.add(len(left))
    assert seen == set(range(11))


def test_after_the_power_failed_everything_says_so() -> None:
    disk = SimulatedDisk(Random(1))
    file = durable(disk, A, b"x")
    disk.crash_after(2)
    file.write(1, b"y")
    with pytest.raises(PowerLost):
        file.sync()
    uses: list[Callable[[], object]] = [
        lambda: file.read(0, 1),
        lambda: file.size(),
        lambda: file.write(0, b"z"),
        lambda: disk.names(ROOT),
        lambda: disk.open(A),
        lambda: disk.create(B),
        lambda: disk.remove(A),
        lambda: disk.sync_directory(ROOT),
        lambda: disk.sync_files([]),
        lambda: disk.make_directory(B),
        lambda: disk.remove_directory(B),
    ]
    steps = disk.steps
    for use in uses:
        with pytest.raises(PowerLost):
            use()
    assert disk.steps == steps
    disk.crash()
    assert content(disk, A)[:1] == b"x"


def test_an_error_in_the_step_the_power_fails_at_is_not_told() -> None:
    for disk in disks():
        file = durable(disk, A, b"x")
        disk.fail_sync(1)
        disk.crash_after(1)
        with pytest.raises(PowerLost):
            file.sync()


def test_no_handler_for_errors_takes_a_power_failure() -> None:
    assert not issubclass(PowerLost, Exception)


def test_after_a_failed_sync_a_later_one_does_not_save_the_data() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"o" * 1024)
        disk.fail_sync(1)
        file.write(0, b"n" * 1024)
        with pytest.raises(OSError) as raised:
            file.sync()
        assert raised.value.errno == errno.EIO
        file.sync()
        assert file.read(0, 1024) == b"n" * 1024
        disk.crash()
        left = content(disk, A)
        assert len(left) == 1024
        seen.add(left)
    assert b"o" * 1024 in seen


def test_after_a_failed_sync_a_longer_file_has_a_tail_of_zeros() -> None:
    seen = set()
    for disk in disks():
        file = durable(disk, A, b"o" * 512)
        disk.fail_sync(1)
        file.write(512, b"n" * 512)
        with pytest.raises(OSError):
            disk.sync_files([A])
        disk.sync_files([A])
        disk.crash()
        seen.add(content(disk, A))
    assert b"o" * 512 + bytes(512) in seen
    assert {len(left) for left in seen} == {1024}


def test_after_a_failed_sync_what_is_written_again_is_saved() -> None:
    for disk in disks():
        file = durable(disk, A, b"o" * 1024)
        disk.fail_sync(1)
        file.write(0, b"n" * 1024)
        with pytest.raises(OSError):
            file.sync()
        file.write(0, b"n" * 1024)
        file.sync()
        disk.crash()
        assert content(disk, A) == b"n" * 1024


def test_after_a_failed_sync_of_a_directory_its_entries_wait_for_the_next() -> None:
    lost = 0
    for disk in disks():
        durable(disk, A, b"a")
        disk.rename(A, B)
        disk.fail_sync_directory(1)
        with pytest.raises(OSError):
            disk.sync_directory(ROOT)
        assert disk.names(ROOT) == ["b"]
        again = disk.copy()
        disk.crash()
        lost += disk.names(ROOT) == ["a"]
        again.sync_directory(ROOT)
        again.crash()
        assert again.names(ROOT) == ["b"]
    assert lost


def test_a_directory_whose_making_failed_is_durable_when_made_again() -> None:
    for disk in disks():
        disk.fail_sync_directory(1)
        with pytest.raises(OSError):
            disk.make_directory(Path("/x"))
        disk.make_directory(Path("/x"))
        disk.crash()
        assert disk.names(ROOT) == ["x"]


def test_the_nth_write_fails_and_may_have_written_a_part() -> None:
    sizes = set()
    for disk in disks():
        file = disk.create(A)
        disk.fail_write(2)
        file.write(0, b"12")
        with pytest.raises(OSError) as raised:
            file.write(2, b"345")
        assert raised.value.errno == errno.EIO
        assert b"12345".startswith(content(disk, A))
        sizes.add(file.size())
        file.write(2, b"345")
        assert content(disk, A) == b"12345"
    assert sizes == {2, 3, 4, 5}


def test_a_full_disk_takes_what_there_is_room_for() -> None:
    sizes = set()
    for disk in disks():
        file = disk.create(A)
        disk.full_after(10)
        file.write(0, b"x" * 8)
        with pytest.raises(OSError) as raised:
            file.write(8, b"x" * 8)
        assert raised.value.errno == errno.ENOSPC
        sizes.add(file.size())
        file.write(0, b"y" * 8)
    assert sizes == {8, 9, 10}


def test_room_comes_back_with_what_is_removed() -> None:
    disk = SimulatedDisk(Random(1), capacity=10)
    disk.create(A).write(0, b"x" * 10)
    for make in (lambda: disk.create(B), lambda: disk.make_directory(B)):
        with pytest.raises(OSError) as raised:
            make()
        assert raised.value.errno == errno.ENOSPC
    disk.open(A).truncate(4)
    disk.create(B).write(0, b"x" * 6)
    disk.rename(B, A)
    assert disk.used_bytes() == 6
    disk.remove(A)
    file = disk.create(A)
    with pytest.raises(OSError):
        file.truncate(11)
    disk.free(5)
    file.write(0, b"x" * 15)
    assert disk.used_bytes() == 15
    assert disk.files() == {A: 15}


def test_a_lying_disk_syncs_nothing() -> None:
    lost = 0
    for disk in disks():
        disk.lying = True
        durable(disk, A, b"x")
        disk.make_directory(B)
        disk.crash()
        lost += disk.names(ROOT) == []
    assert 0 < lost < len(SEEDS)


def test_a_flipped_bit_is_there_before_and_after_a_crash() -> None:
    disk = SimulatedDisk(Random(1))
    durable(disk, A, b"abc")
    disk.flip_bit(A, 1, 0)
    assert content(disk, A) == b"acc"
    disk.crash()
    assert content(disk, A) == b"acc"


def test_reads_of_a_bad_file_fail_until_it_is_healed() -> None:
    disk = SimulatedDisk(Random(1))
    durable(disk, A, b"abc")
    disk.fail_read(A)
    disk.crash()
    with pytest.raises(OSError) as raised:
        disk.open(A).read(0, 3)
    assert raised.value.errno == errno.EIO
    disk.heal()
    assert content(disk, A) == b"abc"


def test_a_healed_disk_has_no_fault_left() -> None:
    disk = SimulatedDisk(Random(1))
    disk.fail_sync(1)
    disk.fail_sync_directory(1)
    disk.fail_write(1)
    disk.full_after(0)
    disk.crash_after(1)
    disk.lying = True
    disk.heal()
    durable(disk, A, b"abc")
    disk.crash()
    assert content(disk, A) == b"abc"
