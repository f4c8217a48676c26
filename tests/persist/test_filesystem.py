"""The file system interface: one contract for the real one and the simulated one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from disk import SimulatedDisk
from hypothesis import given
from hypothesis import strategies as st

from warren.persist.disk.filesystem import (
    NO_SYNCED_WRITES,
    SYNC_ONE_BY_ONE_MAX,
    File,
    FileSystem,
    RealFileSystem,
)


@pytest.fixture(params=["real", "simulated"])
def filesystem(request: pytest.FixtureRequest) -> FileSystem:
    return RealFileSystem() if request.param == "real" else SimulatedDisk(Random(1))


@pytest.fixture
def directory(filesystem: FileSystem, tmp_path: Path) -> Path:
    filesystem.make_directory(tmp_path / "store")
    return tmp_path / "store"


def put(filesystem: FileSystem, path: Path, data: bytes) -> None:
    file = filesystem.create(path)
    file.write(0, data)
    file.close()


def content(filesystem: FileSystem, path: Path) -> bytes:
    file = filesystem.open(path, writable=False)
    data = file.read(0, file.size() + 1)
    file.close()
    return data


# Files


def test_what_was_written_is_read_at_once(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    reader = filesystem.open(directory / "a", writable=False)
    file.write(0, b"0123456789")
    file.write(4, b"xy")
    assert reader.read(0, 10) == b"0123xy6789"
    assert reader.read(3, 3) == b"3xy"
    assert reader.size() == 10


def test_a_read_past_the_end_is_short(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    file.write(0, b"abc")
    assert file.read(1, 100) == b"bc"
    assert file.read(3, 100) == b""
    assert file.read(50, 1) == b""


def test_a_gap_is_zero(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    file.write(600, b"z")
    assert file.read(0, 601) == bytes(600) + b"z"


def test_writing_nothing_does_not_grow_a_file(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    file.write(100, b"")
    assert file.size() == 0


def test_truncate_cuts_and_extends_with_zeros(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    file.write(0, b"abcdef")
    file.truncate(2)
    assert file.size() == 2
    file.truncate(4)
    assert file.read(0, 9) == b"ab\0\0"


def test_create_empties_a_file_that_exists(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "a", b"old")
    filesystem.create(directory / "a").close()
    assert content(filesystem, directory / "a") == b""


def test_open_wants_a_file_that_exists(filesystem: FileSystem, directory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        filesystem.open(directory / "a")
    with pytest.raises(IsADirectoryError):
        filesystem.open(directory)


def test_create_wants_a_directory(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "file", b"")
    with pytest.raises(FileNotFoundError):
        filesystem.create(directory / "missing" / "a")
    with pytest.raises(NotADirectoryError):
        filesystem.create(directory / "file" / "a")
    with pytest.raises(IsADirectoryError):
        filesystem.create(directory)


def test_a_file_opened_for_reading_is_not_written(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "a", b"abc")
    file = filesystem.open(directory / "a", writable=False)
    with pytest.raises(OSError):
        file.write(0, b"x")
    with pytest.raises(OSError):
        file.truncate(0)
    assert file.read(0, 3) == b"abc"


USES: list[Callable[[File], object]] = [
    lambda file: file.read(0, 1),
    lambda file: file.write(0, b"x"),
    lambda file: file.write_synced(0, b"x"),
    lambda file: file.truncate(0),
    lambda file: file.sync(),
    lambda file: file.size(),
]


@pytest.mark.parametrize("use", USES)
def test_a_closed_file_does_nothing(
    filesystem: FileSystem, directory: Path, use: Callable[[File], object]
) -> None:
    file = filesystem.create(directory / "a")
    file.close()
    file.close()
    with pytest.raises(OSError) as raised:
        use(file)
    assert raised.value.errno == errno.EBADF


def test_negative_offsets_and_sizes_are_errors(filesystem: FileSystem, directory: Path) -> None:
    file = filesystem.create(directory / "a")
    for use in (
        lambda: file.write(-1, b"x"),
        lambda: file.read(-1, 1),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError) as raised:
            use()
        assert raised.value.errno == errno.EINVAL


def test_a_removed_file_is_readable_while_it_is_open(
    filesystem: FileSystem, directory: Path
) -> None:
    put(filesystem, directory / "a", b"abc")
    file = filesystem.open(directory / "a")
    filesystem.remove(directory / "a")
    file.write(3, b"d")
    file.sync()
    assert file.read(0, 9) == b"abcd"
    assert filesystem.names(directory) == []


# Directories


def test_names_are_sorted_and_none_without_a_directory(
    filesystem: FileSystem, directory: Path
) -> None:
    for name in ("b", "a", "c"):
        put(filesystem, directory / name, b"")
    assert filesystem.names(directory) == ["a", "b", "c"]
    assert filesystem.names(directory / "missing") == []
    with pytest.raises(NotADirectoryError):
        filesystem.names(directory / "a")


def test_make_directory_makes_parents_and_may_be_repeated(
    filesystem: FileSystem, directory: Path
) -> None:
    for _ in range(2):
        filesystem.make_directory(directory / "x" / "y")
    assert filesystem.names(directory) == ["x"]
    assert filesystem.names(directory / "x") == ["y"]


def test_make_directory_does_not_replace_a_file(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "a", b"abc")
    for path in (directory / "a", directory / "a" / "b"):
        with pytest.raises(FileExistsError):
            filesystem.make_directory(path)
    assert content(filesystem, directory / "a") == b"abc"


def test_remove_directory_takes_its_files_along(filesystem: FileSystem, directory: Path) -> None:
    filesystem.make_directory(directory / "x")
    put(filesystem, directory / "x" / "a", b"1")
    put(filesystem, directory / "x" / "b", b"2")
    filesystem.remove_directory(directory / "x")
    filesystem.remove_directory(directory / "x")
    assert filesystem.names(directory) == []
    with pytest.raises(FileNotFoundError):
        filesystem.create(directory / "x" / "a")
    filesystem.make_directory(directory / "x")
    assert filesystem.names(directory / "x") == []


def test_remove_directory_is_not_for_trees_and_files(
    filesystem: FileSystem, directory: Path
) -> None:
    filesystem.make_directory(directory / "x" / "y")
    put(filesystem, directory / "a", b"")
    with pytest.raises(OSError):
        filesystem.remove_directory(directory / "x")
    with pytest.raises(NotADirectoryError):
        filesystem.remove_directory(directory / "a")
    assert filesystem.names(directory) == ["a", "x"]


def test_remove_may_be_repeated(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "a", b"")
    filesystem.remove(directory / "a")
    filesystem.remove(directory / "a")
    filesystem.remove(directory / "missing" / "a")
    assert filesystem.names(directory) == []


def test_rename_replaces_what_has_the_name(filesystem: FileSystem, directory: Path) -> None:
    put(filesystem, directory / "a", b"old")
    put(filesystem, directory / "a.new", b"new")
    file = filesystem.open(directory / "a.new")
    filesystem.rename(directory / "a.new", directory / "a")
    assert filesystem.names(directory) == ["a"]
    assert content(filesystem, directory / "a") == b"new"
    file.write(0, b"N")
    assert content(filesystem, directory / "a") == b"New"


def test_rename_wants_a_file_that_exists(filesystem: FileSystem, directory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        filesystem.rename(directory / "a", directory / "b")
    put(filesystem, directory / "a", b"1")
    filesystem.rename(directory / "a", directory / "a")
    assert filesystem.names(directory) == ["a"]


def test_syncing_wants_what_exists(filesystem: FileSystem, directory: Path) -> None:
    filesystem.sync_directory(directory)
    with pytest.raises(FileNotFoundError):
        filesystem.sync_directory(directory / "missing")
    with pytest.raises(FileNotFoundError):
        filesystem.sync_files([directory / "missing"])


@pytest.mark.parametrize("count", [0, 1, SYNC_ONE_BY_ONE_MAX, SYNC_ONE_BY_ONE_MAX + 1])
def test_sync_files_leaves_them_as_they_are(
    filesystem: FileSystem, directory: Path, count: int
) -> None:
    paths = [directory / f"{number:03}" for number in range(count)]
    for path in paths:
        put(filesystem, path, path.name.encode())
    filesystem.sync_files(paths)
    assert [content(filesystem, path) for path in paths] == [p.name.encode() for p in paths]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["write", "write_synced"]),
            st.sampled_from("ab"),
            st.integers(0, 1500),
            st.integers(0, 1200),
        ),
        st.tuples(st.just("truncate"), st.sampled_from("ab"), st.integers(0, 1500), st.just(0)),
        st.tuples(
            st.sampled_from(["create", "remove", "rename", "sync", "sync_directory"]),
            st.sampled_from("ab"),
            st.just(0),
            st.just(0),
        ),
    ),
    max_size=30,
)


@given(OPERATIONS)
def test_the_simulated_disk_does_as_the_real_one(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("same")
    disk = SimulatedDisk(Random(1))
    disk.make_directory(directory)
    for at, operation in enumerate(operations):
        assert outcome(RealFileSystem(), directory, operation, at) == outcome(
            disk, directory, operation, at
        ), operation
    assert disk.used_bytes() == sum(path.stat().st_size for path in directory.iterdir())


def outcome(
    filesystem: FileSystem, directory: Path, operation: tuple[str, str, int, int], at: int
) -> object:
    """What an operation leads to: the error, or all there is then."""
    verb, name, offset, size = operation
    path = directory / name
    try:
        if verb == "create":
            filesystem.create(path).close()
        elif verb == "remove":
            filesystem.remove(path)
        elif verb == "rename":
            filesystem.rename(path, directory / ("b" if name == "a" else "a"))
        elif verb == "sync_directory":
            filesystem.sync_directory(directory)
        else:
            file = filesystem.open(path)
            if verb == "write":
                file.write(offset, bytes([at + 1]) * size)
            elif verb == "write_synced":
                file.write_synced(offset, bytes([at + 1]) * size)
            elif verb == "truncate":
                file.truncate(offset)
            else:
                file.sync()
            file.close()
    except OSError as error:
        return error.errno
    names = filesystem.names(directory)
    return [(name, content(filesystem, directory / name)) for name in names]


# The real one


def test_only_the_owner_may_read_what_is_made(tmp_path: Path) -> None:
    filesystem = RealFileSystem()
    filesystem.make_directory(tmp_path / "x" / "y")
    put(filesystem, tmp_path / "x" / "y" / "a", b"")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "x" / "y").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "x" / "y" / "a").stat().st_mode & 0o777 == 0o600


def test_a_write_the_system_cuts_short_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 2), offset))
    file = RealFileSystem().create(tmp_path / "a")
    file.write(1, b"0123456789")
    assert file.read(0, 100) == b"\x000123456789"
    assert file.read(2, 5) == b"12345"
    file.close()


def test_a_synced_write_is_one_call_and_is_continued_where_the_system_cuts_it_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, flags = os.pwritev, []

    def cut_short(fd: int, parts: list[bytes], offset: int, how: int) -> int:
        flags.append(how)
        return pwritev(fd, [parts[0][:6]], offset, how)

    monkeypatch.setattr(os, "pwritev", cut_short)
    file = RealFileSystem().create(tmp_path / "a")
    file.write_synced(0, b"0123456789")
    assert file.read(0, 100) == b"0123456789"
    assert flags == [os.RWF_DSYNC] * 2
    file.close()


@pytest.mark.parametrize("number", NO_SYNCED_WRITES)
def test_a_system_that_knows_no_synced_writes_writes_and_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fdatasync, synced = os.fdatasync, []

    def refused(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    def noted(fd: int) -> None:
        synced.append(os.pread(fd, 10, 0))
        fdatasync(fd)

    monkeypatch.setattr(os, "pwritev", refused)
    monkeypatch.setattr(os, "fdatasync", noted)
    file = RealFileSystem().create(tmp_path / "a")
    file.write_synced(0, b"abc")
    assert synced == [b"abc"]
    file.close()


def test_files_leave_no_descriptor_open(tmp_path: Path) -> None:
    filesystem = RealFileSystem()
    before = os.listdir("/proc/self/fd")
    put(filesystem, tmp_path / "a", b"1")
    filesystem.sync_files([tmp_path / "a"] * (SYNC_ONE_BY_ONE_MAX + 1))
    filesystem.sync_files([tmp_path / "a"])
    filesystem.make_directory(tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before


class FailsToSync(RealFileSystem):
    """The next sync of a directory fails."""

    def __init__(self) -> None:
        self.failing = True
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        if self.failing:
            self.failing = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_directory(path)
        self.synced.append(path)


def test_a_directory_that_was_not_made_durable_is_made_again(tmp_path: Path) -> None:
    filesystem = FailsToSync()
    with pytest.raises(OSError):
        filesystem.make_directory(tmp_path / "x")
    filesystem.make_directory(tmp_path / "x")
    assert filesystem.synced == [tmp_path]
    assert filesystem.names(tmp_path) == ["x"]


def test_a_file_whose_closing_fails_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux has it. A second attempt would fail for ever, or close what another has opened."""
    close = os.close

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "the disk fails")

    file = RealFileSystem().create(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fail)
        with pytest.raises(OSError):
            file.close()
    other = os.open(tmp_path / "file", os.O_RDONLY)
    file.close()
    os.close(other)


@pytest.mark.parametrize("call", ["pread", "pwrite", "fdatasync", "ftruncate", "close"])
def test_an_error_names_the_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These calls know a descriptor only, and people must know which disk to look at."""
    file = RealFileSystem().create(tmp_path / "file")
    uses: dict[str, Callable[[], object]] = {
        "pread": lambda: file.read(0, 1),
        "pwrite": lambda: file.write(0, b"x"),
        "fdatasync": file.sync,
        "ftruncate": lambda: file.truncate(0),
        "close": file.close,
    }
    genuine = getattr(os, call)

    def fail(fd: int, *rest: object) -> None:
        if call == "close":
            genuine(fd)
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError) as raised:
            uses[call]()
    assert raised.value.errno == errno.EIO and raised.value.filename == str(tmp_path / "file")
    file.close()
