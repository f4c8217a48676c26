"""The storage of a directory that no node has used is there before the node joins a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Stored
from warren.persist.disk.data_directory import PROCESSES, DataDirectory, DataDirectoryRefused
from warren.persist.storage.missing_store import begin_storage, expect_store

MIRRORED = [
    Stored(
        ("queue", "/", "q"),
        QueueRecord(False, {}, 1, leader="warren@a", mirrors=["warren@b"], stores={"warren@b": 2}),
        1,
    )
]
"""A leader has given the node a mirror as soon as that had joined."""


def start(path: Path) -> None:
    with DataDirectory.open(path) as directory:
        begin_storage(directory)
        expect_store(directory, MIRRORED, "warren@b")


def test_a_new_node_may_have_mirrors_at_once(tmp_path: Path) -> None:
    start(tmp_path / "data")
    start(tmp_path / "data")


def test_so_may_one_whose_directory_the_supervisor_has_made(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data"):
        (tmp_path / "data" / PROCESSES).mkdir()
    start(tmp_path / "data")


def test_so_may_one_that_was_reset(tmp_path: Path) -> None:
    start(tmp_path / "data")
    with DataDirectory.open(tmp_path / "data") as directory:
        directory.begin_anew()
    start(tmp_path / "data")


def test_a_storage_that_is_gone_is_missed(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        (directory.path / "definitions").mkdir()
    with pytest.raises(DataDirectoryRefused, match="is missing"):
        start(tmp_path / "data")
