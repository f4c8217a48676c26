"""Which cluster a node is of is there after a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warren.persist.disk.cluster_file import (
    FILE,
    KnownCluster,
    read_known_cluster,
    write_known_cluster,
)
from warren.persist.disk.data_directory import DataDirectoryRefused

KNOWN = KnownCluster("c1", "rabbit@a")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_known_cluster(tmp_path) is None
    write_known_cluster(tmp_path, KNOWN)
    assert read_known_cluster(tmp_path) == KNOWN
    (tmp_path / FILE).write_text('{"cluster_id": "c1"}')
    assert read_known_cluster(tmp_path) == KnownCluster("c1", "")


@pytest.mark.parametrize("text", [b"", b"\x9d\x00", b"[]", b"7", b"{}", b'{"cluster_id": 7}'])
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(DataDirectoryRefused, match=f"{FILE} "):
        read_known_cluster(tmp_path)


def test_the_file_and_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.append((os.fstat(fd).st_ino, (tmp_path / FILE).exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write_known_cluster(tmp_path, KNOWN)
    file, directory = (os.stat(path).st_ino for path in (tmp_path / FILE, tmp_path))
    assert synced == [(file, False), (directory, True)]
