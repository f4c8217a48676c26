"""A data directory that begins anew, and files that are replaced in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warren.persist.disk import data_directory
from warren.persist.disk.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    DirectoryInUse,
    write_durably,
)


def test_a_directory_that_begins_anew_is_empty_and_of_another_node(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with DataDirectory.open(path) as directory:
        before = directory.node_id
        assert not directory.holds_data
        (directory.subdirectory("store") / "log").write_bytes(b"messages")
        (path / "cluster.json").write_text("{}")
        (path / "warren.conf").write_text("the user's")
        (path / "elsewhere").symlink_to(tmp_path)
        assert directory.holds_data
        directory.begin_anew(["warren.conf"])
        assert directory.node_id != before
        left = {entry.name for entry in path.iterdir()}
        assert left == {"identity.json", "lock", "warren.conf"}
        assert tmp_path.exists()
        # It is still ours.
        try:
            DataDirectory.open(path)
        except DirectoryInUse:
            pass
        else:
            raise AssertionError("somebody else opened it")
        again = directory.node_id
    with DataDirectory.open(path) as directory:
        assert directory.node_id == again


def test_a_directory_that_has_gone_is_noticed_by_whoever_has_it_open(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with DataDirectory.open(path) as directory:
        assert directory.is_new and directory.is_in_place
        path.rename(elsewhere)
        assert not directory.is_in_place
        path.mkdir()
        assert not directory.is_in_place
        with DataDirectory.open(path) as another:
            assert another.is_in_place and not directory.is_in_place
        path.rename(tmp_path / "another")
        elsewhere.rename(path)
        assert directory.is_in_place
        (path / "lock").unlink()
        assert directory.is_in_place
        with DataDirectory.open(path) as second:
            assert second.is_in_place and not second.is_new and not directory.is_in_place


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataDirectoryRefused, match=r"file/data cannot be created: Not a directory"):
        DataDirectory.open(tmp_path / "file" / "data")


def test_only_what_was_created_is_discarded(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two"
    for _ in range(2):
        directory = DataDirectory.open(path)
        directory.subdirectory("store")
        directory.close()
    directory.discard_new()
    assert path.exists(), "the second time it was there"
    (tmp_path / "new").mkdir()
    new = DataDirectory.open(tmp_path / "new" / "a" / "b")
    new.close()
    new.discard_new()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(tmp_path / "file", b"before")

    def fail(fd: int) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="is full"):
        patched.setattr(os, "fsync", fail)
        write_durably(tmp_path / "file", b"after")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"before"}
    write_durably(tmp_path / "file", b"after")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"after"}


def test_a_directory_that_cannot_be_written_to_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes, unfinished: Path) -> None:
        raise OSError("the disk is full")

    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setattr(data_directory, "write_durably", fail)
    for path in (there, tmp_path / "new" / "data"):
        with pytest.raises(OSError, match="is full"):
            DataDirectory.open(path)
    assert list(tmp_path.iterdir()) == [there]
