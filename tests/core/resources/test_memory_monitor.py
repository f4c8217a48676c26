"""The memory alarm: resident set against watermark, on machines made of text files."""

from __future__ import annotations

import pytest

from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.information_unit import parse_bytes
from warren.core.resources.memory_monitor import (
    Absolute,
    Fraction,
    MemoryMonitor,
    resident_memory,
    total_memory,
)

MIB = 1 << 20
MEMINFO = "MemTotal:        4194304 kB\nMemFree:  100 kB\n"
NO_LIMIT_V1 = "9223372036854771712\n"


class Files(dict[str, str]):
    def read(self, path: str) -> str:
        try:
            return self[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def use(self, mib: int) -> None:
        self["/proc/self/status"] = f"Name:\twarren\nVmHWM:\t1 kB\nVmRSS:\t  {mib * 1024} kB\n"


@pytest.fixture
def files() -> Files:
    files = Files({"/proc/meminfo": MEMINFO})
    files.use(10)
    return files


@pytest.mark.parametrize(
    ("watermark", "below_mib", "above_mib"),
    [(Fraction(0.5), 2048, 2049), (Absolute(100 * MIB), 100, 101)],
)
def test_the_alarm_is_on_above_the_watermark_and_off_below(
    files: Files, watermark: Fraction | Absolute, below_mib: int, above_mib: int
) -> None:
    alarms = Alarms("a@host")
    monitor = MemoryMonitor(files.read, alarms, watermark)
    for mib, raised in ((below_mib, False), (above_mib, True), (below_mib, False)):
        files.use(mib)
        monitor.check(0.0)
        assert alarms.raised is raised
        assert monitor.used_bytes == mib * MIB
        assert monitor.limit_bytes == below_mib * MIB


@pytest.mark.parametrize("blocks_all", [False, True])
def test_all_publishers_wait_when_a_tenth_more_than_the_watermark_is_used(
    files: Files, blocks_all: bool
) -> None:
    alarms = Alarms("a@host")
    watermark = Absolute(100 * MIB)
    monitor = MemoryMonitor(files.read, alarms, watermark, blocks_all=blocks_all)
    for mib, all_wait in ((101, False), (110, False), (111, True), (105, False)):
        files.use(mib)
        monitor.check(0.0)
        assert alarms.raised and alarms.all_wait is (all_wait or blocks_all)
    files.use(99)
    monitor.check(0.0)
    assert not alarms.raised and not alarms.all_wait


@pytest.mark.parametrize(
    ("used_mib", "interval_s"), [(10, 1.0), (3800, 0.311), (4090, 0.1), (5000, 1.0)]
)
def test_near_the_watermark_it_looks_more_often(
    files: Files, used_mib: int, interval_s: float
) -> None:
    """As often as the way to it takes at a gigabyte a second."""
    files.use(used_mib)
    monitor = MemoryMonitor(files.read, Alarms("a@host"), Absolute(4096 * MIB))
    assert monitor.check(0.0) == pytest.approx(interval_s, rel=0.01)


def test_what_is_free_goes_back_before_the_alarm_is_raised(files: Files) -> None:
    alarms = Alarms("a@host")
    files.use(150)
    monitor = MemoryMonitor(
        files.read, alarms, Absolute(100 * MIB), release_free=lambda: files.use(90)
    )
    monitor.check(0.0)
    assert not alarms.raised
    assert monitor.used_bytes == 90 * MIB


def test_the_memory_of_the_machine_may_be_given(files: Files) -> None:
    alarms = Alarms("n")
    given = MemoryMonitor(files.read, alarms, Fraction(0.5), total_bytes=40 * MIB)
    files.use(21)
    given.check(0.0)
    assert (given.total_bytes, given.limit_bytes) == (40 * MIB, 20 * MIB)
    assert [alarm.resource for alarm in alarms.local()] == [Resource.MEMORY]


def test_the_default_is_two_fifths_of_the_machine(files: Files) -> None:
    monitor = MemoryMonitor(files.read, Alarms("a@host"))
    monitor.check(0.0)
    assert monitor.total_bytes == 4096 * MIB
    assert monitor.limit_bytes == int(0.4 * 4096 * MIB)


def test_a_watermark_of_nothing_blocks_everybody(files: Files) -> None:
    alarms = Alarms("a@host")
    monitor = MemoryMonitor(files.read, alarms)
    monitor.check(0.0)
    assert not alarms.raised
    monitor.watermark = Fraction(0)
    monitor.check(1.0)
    assert alarms.raised


def test_the_ratio_is_that_of_the_use_to_the_limit(files: Files) -> None:
    files.use(60)
    monitor = MemoryMonitor(files.read, Alarms("a@host"), Absolute(100 * MIB))
    assert monitor.used_ratio is None
    monitor.check(0.0)
    assert monitor.used_ratio == pytest.approx(0.6)
    monitor.watermark = Fraction(0)
    assert monitor.used_ratio is None


def test_a_system_that_does_not_say_leaves_the_alarm_as_it_is(files: Files) -> None:
    alarms = Alarms("a@host")
    monitor = MemoryMonitor(files.read, alarms, Absolute(MIB))
    monitor.check(0.0)
    del files["/proc/self/status"]
    monitor.check(1.0)
    assert monitor.used_bytes is None and alarms.raised


def test_a_node_that_serves_clients_gives_memory_back_when_it_uses_much(files: Files) -> None:
    """It holds everybody up for tens of milliseconds."""
    given_back: list[float] = []
    now = 0.0
    monitor = MemoryMonitor(
        files.read,
        Alarms("a@host"),
        Absolute(1000 * MIB),
        release_free=lambda: given_back.append(now),
    )
    busy = True
    monitor.is_busy = lambda: busy
    used = 10
    for second in range(20):
        now = float(second)
        used += 9
        files.use(used)
        monitor.check(now)
    assert given_back == []
    files.use(251)
    monitor.check(20.0)
    now = 20.0
    assert len(given_back) == 1
    busy = False
    files.use(100)
    monitor.check(30.0)
    assert len(given_back) == 2


class TestTotalMemory:
    def test_without_any_information_a_gibibyte_is_assumed(self) -> None:
        assert total_memory(Files().read) == 1024 * MIB
        assert resident_memory(Files().read) is None

    def test_the_own_group_of_version_2_counts(self, files: Files) -> None:
        files["/proc/self/cgroup"] = "0::/system.slice/warren.service\n"
        files["/sys/fs/cgroup/system.slice/warren.service/memory.max"] = f"{512 * MIB}\n"
        files["/sys/fs/cgroup/system.slice/memory.max"] = "max\n"
        assert total_memory(files.read) == 512 * MIB

    def test_a_group_around_it_can_be_narrower(self, files: Files) -> None:
        files["/proc/self/cgroup"] = "0::/system.slice/warren.service\n"
        files["/sys/fs/cgroup/system.slice/warren.service/memory.max"] = "max\n"
        files["/sys/fs/cgroup/system.slice/memory.max"] = f"{256 * MIB}\n"
        assert total_memory(files.read) == 256 * MIB

    def test_in_a_container_the_root_is_the_own_group(self, files: Files) -> None:
        files["/proc/self/cgroup"] = "0::/../../docker/0123\n"
        files["/sys/fs/cgroup/memory.max"] = f"{300 * MIB}\n"
        assert total_memory(files.read) == 300 * MIB

    def test_the_groups_of_version_1_count(self, files: Files) -> None:
        files["/proc/self/cgroup"] = "5:cpu,cpuacct:/x\n4:memory:/docker/0123\n"
        files["/sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes"] = NO_LIMIT_V1
        files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = f"{128 * MIB}\n"
        files["/sys/fs/cgroup/cpu/x/memory.limit_in_bytes"] = "1\n"
        assert total_memory(files.read) == 128 * MIB

    def test_a_group_without_a_limit_leaves_the_whole_machine(self, files: Files) -> None:
        files["/proc/self/cgroup"] = "4:memory:/\n0::/\n"
        files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = NO_LIMIT_V1
        files["/sys/fs/cgroup/memory.max"] = "max\n"
        assert total_memory(files.read) == 4096 * MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1k", 1024),
        ("1kB", 1000),
        ("2KiB", 2048),
        ("512MB", 512_000_000),
        ("512M", 512 * MIB),
        ("512mib", 512 * MIB),
        ("1GiB", 1024 * MIB),
        ("1 GB ", 10**9),
        ("3TB", 3 * 10**12),
    ],
)
def test_amounts_of_bytes_have_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1.5GB", "1XB", "1G B", "0x10", "1iB2", "\u0661"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="amount of bytes"):
        parse_bytes(text)
