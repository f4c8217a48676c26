"""The disk alarm: free space against a limit, looked at the more often the less is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.ports import Timer
from warren.core.resources.alarms import Alarms
from warren.core.resources.disk_monitor import DirectoryGone, DiskMonitor
from warren.core.resources.memory_monitor import Absolute, Fraction
from warren.core.scheduling.periodic import Periodic

MB = 1_000_000
GB = 1000 * MB


class Disk:
    def __init__(self) -> None:
        self.free: int | None = 10 * GB
        self.gone = False
        self.looked = 0

    def free_bytes(self) -> int:
        self.looked += 1
        if self.gone:
            raise DirectoryGone("/data is not there any more")
        if self.free is None:
            raise OSError(5, "I/O error")
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def alarms() -> Alarms:
    return Alarms("a@host")


@pytest.fixture
def monitor(disk: Disk, alarms: Alarms) -> DiskMonitor:
    return DiskMonitor(disk.free_bytes, alarms, total_memory_bytes=lambda: 4 * GB)


@pytest.mark.parametrize("blocks_all", [False, True])
def test_all_publishers_wait_when_half_of_the_limit_is_used_up(
    disk: Disk, alarms: Alarms, blocks_all: bool
) -> None:
    monitor = DiskMonitor(
        disk.free_bytes, alarms, total_memory_bytes=lambda: 4 * GB, blocks_all=blocks_all
    )
    for free, all_wait in ((40 * MB, False), (25 * MB, False), (25 * MB - 1, True)):
        disk.free = free
        interval_s = monitor.check(0.0)
        assert alarms.raised and alarms.all_wait is (all_wait or blocks_all)
        assert interval_s == (10.0 if all_wait or blocks_all else 0.1)
    monitor.writes_fail(True)
    disk.free = 40 * MB
    monitor.check(0.0)
    assert alarms.all_wait


def test_all_publishers_wait_while_the_directory_is_gone(
    disk: Disk, alarms: Alarms, monitor: DiskMonitor
) -> None:
    monitor.check(0.0)
    for _ in range(2):
        disk.gone = True
        # However often it looks: it does not give up, as with a disk that cannot be asked.
        for _ in range(20):
            assert monitor.check(0.0) == 10.0
        assert alarms.raised and alarms.all_wait and monitor.enabled
        disk.gone = False
        monitor.check(0.0)
        assert not alarms.raised


def test_the_alarm_is_on_strictly_below_the_limit(
    disk: Disk, alarms: Alarms, monitor: DiskMonitor
) -> None:
    for free, raised in ((50 * MB, False), (50 * MB - 1, True), (50 * MB, False)):
        disk.free = free
        monitor.check(0.0)
        assert alarms.raised is raised
        assert monitor.free_bytes == free
    assert alarms.reason() == ""


@pytest.mark.parametrize(
    ("free", "interval_s"),
    [
        (50 * MB, 0.1),
        (50 * MB + 25 * MB, 0.1),
        (50 * MB + 500 * MB, 1.0),
        (50 * MB + 2 * GB, 4.0),
        (50 * MB + 5 * GB, 10.0),
        (500 * GB, 10.0),
        (0, 10.0),
    ],
)
def test_the_next_look_depends_on_what_is_left(
    disk: Disk, monitor: DiskMonitor, free: int, interval_s: float
) -> None:
    disk.free = free
    assert monitor.check(0.0) == pytest.approx(interval_s)


@given(free=st.integers(75 * MB, 10**13))
def test_a_disk_that_fills_fast_is_looked_at_before_it_passes_the_limit(free: int) -> None:
    disk = Disk()
    disk.free = free
    monitor = DiskMonitor(disk.free_bytes, Alarms("a@host"), total_memory_bytes=lambda: 0)
    interval_s = monitor.check(0.0)
    assert interval_s is not None and 0.1 <= interval_s <= 10.0
    assert free - interval_s * 250 * MB >= 50 * MB


def test_a_limit_can_be_a_share_of_the_memory(
    disk: Disk, alarms: Alarms, monitor: DiskMonitor
) -> None:
    monitor.limit = Fraction(1.5)
    disk.free = 6 * GB - 1
    monitor.check(0.0)
    assert alarms.raised and monitor.limit_bytes == 6 * GB
    monitor.limit = Absolute(GB)
    monitor.check(1.0)
    assert not alarms.raised


def test_a_disk_that_cannot_be_asked_is_given_up_in_the_end(
    disk: Disk, alarms: Alarms, monitor: DiskMonitor
) -> None:
    disk.free = 0
    monitor.check(0.0)
    disk.free = None
    assert [monitor.check(0.0) for _ in range(11)] == [120.0] * 10 + [None]
    assert not monitor.enabled and monitor.free_bytes is None
    assert alarms.raised, "nobody has seen that there is space again"


def test_one_success_starts_the_count_anew(disk: Disk, monitor: DiskMonitor) -> None:
    for _ in range(3):
        disk.free = None
        assert [monitor.check(0.0) for _ in range(10)] == [120.0] * 10
        disk.free = 10 * GB
        assert monitor.check(0.0) == 10.0
    assert monitor.enabled


class Clock:
    def __init__(self) -> None:
        self.time = 100.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def wall_time(self) -> float:
        return self.time

    def call_soon(self, callback: Callable[[], None]) -> object:
        raise NotImplementedError

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        entry = (delay_s, callback)
        self.waiting.append(entry)
        waiting = self.waiting

        class Entry:
            def cancel(self) -> None:
                waiting.remove(entry)

        return Entry()

    def advance(self) -> None:
        delay_s, callback = self.waiting.pop(0)
        self.time += delay_s
        callback()


class TestPeriodic:
    def test_it_checks_at_the_intervals_the_check_asks_for(self) -> None:
        clock = Clock()
        intervals = [5.0, 7.0, None]
        times: list[float] = []

        def check(now: float) -> float | None:
            times.append(now)
            return intervals.pop(0)

        Periodic(clock, check).start()
        while clock.waiting:
            clock.advance()
        assert times == [100.0, 105.0, 112.0]

    def test_it_can_be_stopped_and_hurried(self) -> None:
        clock = Clock()
        times: list[float] = []

        def check(now: float) -> float:
            times.append(now)
            return 5.0

        periodic = Periodic(clock, check)
        periodic.start()
        periodic.start()
        assert times == [100.0, 100.0] and len(clock.waiting) == 1
        periodic.stop()
        periodic.stop()
        assert clock.waiting == []


@pytest.mark.parametrize(
    ("pinned", "named"), [(0, False), (39 * MB, False), (40 * MB, True), (GB, True)]
)
def test_snapshots_are_named_when_the_alarm_would_not_be_without_them(
    disk: Disk,
    monitor: DiskMonitor,
    pinned: int,
    named: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor.pinned_bytes = lambda: pinned
    monitor.check(0)
    assert not monitor.snapshots_are_the_cause
    disk.free = 10 * MB
    for now in (10, 20):
        monitor.check(now)
    assert monitor.snapshots_are_the_cause == named
    said = [line for line in caplog.messages if line.startswith("disk_filled_by_snapshots")]
    assert len(said) == named
    assert not said or f"pinned_bytes={pinned}" in said[0]
